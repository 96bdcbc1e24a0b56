"""Shared by most tests: a store with small files, and messages to put into it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import CommitLogConfig, ConsumeQueueConfig, IndexConfig, Message, MessageStore, RetentionConfig
from mqlake.logs.log_writer import LogWriter
from mqlake.store.contents import Contents
from mqlake.store.writer import Writer

covers = pytest.mark.covers
"""Names the capabilities (docs/capabilities.md) that a test would miss."""

LOG_FILE = 65536
QUEUE_FILE = 2000
SMALL_FILES: dict[str, Any] = {
    "commit_log": CommitLogConfig(file_size_bytes=LOG_FILE),
    "consume_queue": ConsumeQueueConfig(file_size_bytes=QUEUE_FILE),
    "index": IndexConfig(slot_count=100, entry_count=400),
    "retention": RetentionConfig(enabled=False),  # the machine's disk use must not matter
}


def open_small(path: Path, **settings: Any) -> MessageStore:
    """Open a store with log files of 64 KiB, queue files of 100 entries and index files of 400."""
    return MessageStore.open(path, **SMALL_FILES | settings)


def open_bare(path: Path, **settings: Any) -> MessageStore:
    """Open such a store without delivery: it holds what the test puts, and nothing else."""
    return MessageStore.open(path, deliver=False, **SMALL_FILES | settings)


def writer_of(store: MessageStore) -> Writer:
    """Return the writer of a store, for tests that look inside."""
    assert isinstance(store._writing, Writer)
    return store._writing


def contents_of(store: MessageStore) -> Contents:
    """Return the logs of a store, the writer's or a reader's."""
    assert isinstance(store._reading, Contents)
    return store._reading


def message(number: int, topic: str = "orders", **fields: Any) -> Message:
    """Return a message with `number` in its key and tag."""
    fields.setdefault("tags", f"tag{number % 3}")
    fields.setdefault("keys", f"key-{number}")
    return Message(topic, fields.pop("body", b"body %d" % number), **fields)


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 0, start: int = 0) -> list[bytes]:
    """Return the bodies of a whole queue."""
    store.wait_dispatched()
    found: list[bytes] = []
    while batch := store.read(topic, queue_id=queue_id, start=start + len(found), limit=100):
        found += [m.body for m in batch]
    return found


def sync_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stores opened from now on sync their log through `os.fdatasync`, which a test can replace."""

    def sync(log: LogWriter, durable: int, target: int) -> bool:
        try:
            for file in (log.files.file_at(start) for start in log.files.starts):
                if file is not None and file.start < target and file.end > durable:
                    os.fdatasync(file.descriptor)
        except OSError as error:
            log.group.fail(error.errno or errno.EIO)
            log.group.abandon()
            return False
        return log.group.sync_files(target, [], [])

    monkeypatch.setattr(LogWriter, "_descriptor_of", lambda log, file: -1)
    monkeypatch.setattr(LogWriter, "sync", sync)


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Wait until another thread or process makes the condition true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return condition()
