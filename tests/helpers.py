"""What most tests need: a store with small files, and messages to put into it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import CommitLogConfig, ConsumeQueueConfig, IndexConfig, Message, MessageStore, RetentionConfig
from mqlake.logs.commit_log import LogWriter
from mqlake.store.message_store import MessageStore as BareStore

covers = pytest.mark.covers
"""Names the capabilities (docs/capabilities.md) that a test would miss."""

LOG_FILE = 65536
QUEUE_FILE = 2000
SMALL_FILES: dict[str, Any] = {
    "commit_log": CommitLogConfig(file_size_bytes=LOG_FILE),
    "consume_queue": ConsumeQueueConfig(file_size_bytes=QUEUE_FILE),
    "index": IndexConfig(slot_count=100, entry_count=400),
    "retention": RetentionConfig(enabled=False),  # how full the machine's disk is must not matter
}


def open_small(path: Path, **settings: Any) -> MessageStore:
    """A store with log files of 64 KiB, queue files of 100 entries and index files of 400."""
    return MessageStore.open(path, **SMALL_FILES | settings)


def open_bare(path: Path, **settings: Any) -> BareStore:
    """Such a store without delivery: it holds what is put, and nothing comes by itself."""
    return BareStore.open(path, **SMALL_FILES | settings)


def message(number: int, topic: str = "orders", **fields: Any) -> Message:
    """Message number `number`, with a key and a tag that say so."""
    fields.setdefault("tags", f"tag{number % 3}")
    fields.setdefault("keys", f"key-{number}")
    return Message(topic, fields.pop("body", b"body %d" % number), **fields)


def bodies(store: BareStore, topic: str = "orders", queue_id: int = 0, start: int = 0) -> list[bytes]:
    """The bodies of a queue, all of it."""
    store.wait_dispatched()
    found: list[bytes] = []
    while batch := store.read(topic, queue_id=queue_id, start=start + len(found), limit=100):
        found += [m.body for m in batch]
    return found


def sync_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores opened from here on sync their log through `os.fdatasync`, which a test can replace."""
    monkeypatch.setattr(LogWriter, "_descriptor_of", lambda log, file: -1)


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Wait for what another thread or process does."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return condition()
