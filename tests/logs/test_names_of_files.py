"""Names of log files are synced one after the other: a power cut must not leave a gap between files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mqlake import CommitLogConfig
from mqlake.kernel import GroupCommit
from tests.helpers import message, open_small, writer_of


def test_a_file_gets_no_name_before_the_name_of_the_previous_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(tmp_path / "store", commit_log=CommitLogConfig(file_size_bytes=4096)) as store:
        while not [path for path in (tmp_path / "store" / "commitlog").iterdir() if path.name.endswith("4096")]:
            store.put(message(0, body=bytes(900)))
        syncing, go_on = threading.Event(), threading.Event()

        class SlowGroup:
            """A group commit with slow syncs."""

            def __init__(self, group: GroupCommit) -> None:
                self._group = group

            def __getattr__(self, name: str) -> object:
                return getattr(self._group, name)

            def sync_files(self, target: int, files: list[int], folders: list[int]) -> bool:
                syncing.set()
                go_on.wait(10)
                return self._group.sync_files(target, files, folders)

        log = writer_of(store).log
        monkeypatch.setattr(log, "group", SlowGroup(log.group))
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
