"""Names of the log's files reach the disk one after the other: a power cut must not leave a gap between files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mqlake import CommitLogConfig
from mqlake.logs import commit_log
from tests.helpers import message, open_small


def test_a_file_gets_no_name_while_the_name_before_it_is_still_on_its_way_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(tmp_path / "store", commit_log=CommitLogConfig(file_size_bytes=4096)) as store:
        while not [path for path in (tmp_path / "store" / "commitlog").iterdir() if path.name.endswith("4096")]:
            store.put(message(0, body=bytes(900)))
        syncing, go_on = threading.Event(), threading.Event()

        def slow_sync(directory: Path) -> None:
            syncing.set()
            go_on.wait(10)

        monkeypatch.setattr(commit_log, "sync_directory", slow_sync)
        flusher = threading.Thread(target=store.flush)
        flusher.start()
        assert syncing.wait(10)
        writer = threading.Thread(target=lambda: [store.put(message(0, body=bytes(900))) for _ in range(8)])
        writer.start()
        writer.join(0.5)
        names = sorted(path.name for path in (tmp_path / "store" / "commitlog").iterdir())
        go_on.set()
        writer.join(10)
        flusher.join(10)
        assert names[-1].endswith("4096"), "the next file had to wait"
        assert not writer.is_alive() and len(list((tmp_path / "store" / "commitlog").iterdir())) > 2
