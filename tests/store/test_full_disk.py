"""On a full disk, writes are refused or wait, nothing is lost, and work resumes when space is freed."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mqlake import BackupFailed, CommitLogConfig, DiskFull, FlushConfig
from mqlake.codec.index_entry import key_hash, key_text
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.logs.key_index import KeyIndex
from mqlake.store.opening import refusal
from mqlake.store.writer import CLOSE_DISPATCH_S
from tests.helpers import bodies, eventually, message, open_small, writer_of
from tests.store.test_bad_places import disk_of


class Full:
    """Makes a method fail with a full disk while `now` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: type, method: str, error: Exception) -> None:
        self.now = False
        self.refused = 0
        real = getattr(where, method)

        def tried(*arguments: object) -> object:
            if self.now:
                self.refused += 1
                raise error
            return real(*arguments)

        monkeypatch.setattr(where, method, tried)


NO_SPACE = OSError(28, "No space left on device")


def test_dispatch_without_space_for_a_queue_waits_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full(monkeypatch, ConsumeQueue, "_write_bytes", NO_SPACE)
    with open_small(tmp_path / "s") as store:
        store.put(message(0, queue_id=0))
        assert store.wait_dispatched()
        full.now = True
        for number in range(1, 300):  # the log has room: puts are accepted
            store.put(message(number, queue_id=number % 2))
        assert eventually(lambda: "No space left" in str(store.stats().failure))
        assert eventually(lambda: full.refused > 2), "it retries"
        assert store.read("orders", queue_id=0)[0].body == b"body 0", "reads still work"
        full.now = False
        assert store.wait_dispatched(30)
        assert eventually(lambda: store.stats().failure is None)  # cleared a moment after the dispatch
        assert len(bodies(store)) == 150
        assert len(bodies(store, queue_id=1)) == 150
        for number in range(300):
            assert len(store.find("orders", f"key-{number}")) == 1
        assert not store.stats().damage


def test_keys_of_a_half_indexed_message_are_entered_once_when_the_index_runs_out_of_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Full(monkeypatch, KeyIndex, "_roll", DiskFull(tmp_path, 1, "No space left on device"))
    with open_small(tmp_path / "s") as store:
        store.put(message(0, queue_id=0))
        assert store.wait_dispatched()
        full.now = True
        for number in range(1, 80):  # a file holds 399 keys: it fills up in the middle of a message
            store.put(message(number, queue_id=0, keys=[f"{number}-{key}" for key in range(7)]))
        assert eventually(lambda: full.refused > 2)
        full.now = False
        assert store.wait_dispatched(30)
        index = writer_of(store).index
        assert index is not None
        for number in range(1, 80):
            for key in range(7):
                found = index.find(key_hash(key_text("orders", f"{number}-{key}")), 0, 1 << 60, 64)
                assert len(found) == 1, (number, key)


def test_closing_on_a_full_disk_neither_hangs_nor_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full(monkeypatch, ConsumeQueue, "_write_bytes", NO_SPACE)
    with open_small(tmp_path / "s") as store:
        full.now = True
        for number in range(50):
            store.put(message(number, queue_id=0))
        assert eventually(lambda: store.stats().failure is not None)
        began = time.monotonic()
    assert time.monotonic() - began < CLOSE_DISPATCH_S / 2
    assert (tmp_path / "s" / "abort").exists()
    full.now = False
    with open_small(tmp_path / "s") as store:
        assert bodies(store) == [b"body %d" % number for number in range(50)]


def test_no_checkpoint_is_taken_of_an_unfinished_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full(monkeypatch, KeyIndex, "put", NO_SPACE)  # queues are written before the index
    with open_small(tmp_path / "s") as store:
        store.put(message(0, queue_id=0))
        assert store.wait_dispatched()
        full.now = True
        store.put(message(1, queue_id=0))
        assert eventually(lambda: store.stats().failure is not None)
        assert writer_of(store).write_checkpoint() is False
        full.now = False


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_disk_that_repeatedly_fills_up_and_is_freed_loses_nothing(tmp_path: Path, kind: str) -> None:
    settings = {
        "commit_log": CommitLogConfig(file_size_bytes=1 << 20),
        "flush": FlushConfig(queue_interval_ms=10, queue_thorough_interval_ms=50),
    }
    with disk_of(tmp_path / "disk", "24M", kind) as disk:
        stored: list[bytes] = []
        for _ in range(3):
            with open_small(disk / "store", **settings) as store:
                ballast = disk / "ballast"
                with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(65536))
                with contextlib.suppress(DiskFull):
                    for _ in range(4000):
                        body = b"%06d" % len(stored) * 60
                        store.put(message(len(stored), queue_id=0, body=body))
                        stored.append(body)
                ballast.unlink()
                store.put(message(len(stored), queue_id=0, body=b"space again %d" % len(stored)))
                stored.append(b"space again %d" % len(stored))
                assert store.wait_dispatched(30)
                assert eventually(lambda: store.stats().failure is None)
                assert bodies(store) == stored
        with open_small(disk / "store", **settings) as store:
            assert bodies(store) == stored


def test_the_error_for_a_full_disk_at_opening_names_no_size_and_no_put(tmp_path: Path) -> None:
    error = refusal(tmp_path, OSError(errno.ENOSPC, "No space left on device"))
    assert str(error) == f"{tmp_path}: the disk is full (No space left on device); free space, then try again"


def test_a_backup_whose_gate_does_not_fit_on_the_disk_is_a_failed_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_small(tmp_path / "s") as store:
        monkeypatch.setattr("mqlake.store.gates.replace_file", full)
        with pytest.raises(BackupFailed, match=r"no backup was made: .*gates.*No space left on device"):
            store.backup(tmp_path / "b")
    assert not (tmp_path / "b").exists()


HELD = {"log": ("commitlog/*", 65536), "queue": ("consumequeue/orders/0/*", 4096), "index": ("index/*", 4096)}
"""Files that get a hole, and how much of them stays."""


@pytest.mark.parametrize("hole", [None, *HELD])
@pytest.mark.parametrize("command", [["check"], ["scrub"], ["repair"], ["repair", "--yes"]])
def test_no_look_at_a_store_on_a_full_tmpfs_is_a_bus_error(
    command: list[str], hole: str | None, tmp_path: Path
) -> None:
    with disk_of(tmp_path / "disk", "4M", "tmpfs") as disk:
        with open_small(disk / "store", commit_log=CommitLogConfig(file_size_bytes=1 << 18)) as store:
            for number in range(2000):
                store.put(message(number, queue_id=0))
        if hole is not None:
            pattern, kept = HELD[hole]
            for path in (disk / "store").glob(pattern):
                size = path.stat().st_size
                os.truncate(path, kept)
                os.truncate(path, size)
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        done = subprocess.run(
            [sys.executable, "-m", "mqlake", command[0], str(disk / "store"), *command[1:]],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode >= 0, done.stderr
        assert done.returncode == 0 or hole is not None, done.stdout + done.stderr
        assert done.returncode != 3 or "DiskFull" in done.stderr, "there is no room to save what repair replaces"
