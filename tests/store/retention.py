"""What tests of retention have in common: a store of many files, and a cleaner whose clock and disk a test sets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mqlake import MessageStore, RetentionConfig, StoredMessage
from mqlake.store.retention import Retention
from tests.helpers import LOG_FILE, message, open_small

HOUR = 3600.0
DAY_HOURS = ";".join(f"{hour:02d}" for hour in range(24))
BODY = bytes(500)
"""About a hundred messages fill a log file, and a queue file."""


def open_filled(path: Path, files: int, **settings: Any) -> MessageStore:
    """A store with so many log files, all messages in one queue, and no cleaner of its own."""
    settings.setdefault("retention", RetentionConfig(enabled=False, pause_ms=0, queue_pause_ms=0))
    store = open_small(path, **settings)
    if files:
        fill(store, files)
    return store


def fill(store: MessageStore, files: int, topic: str = "orders") -> None:
    """Put until the log has so many files more than none."""
    number = 0
    while store.end_offset <= store.first_offset + (files - 1) * LOG_FILE:
        number = store.put(message(number, topic, queue_id=0, body=BODY)).queue_offset + 1
    assert store.wait_dispatched()


class Cleaner:
    """A store's retention with a clock and a disk of the test's own."""

    def __init__(self, store: MessageStore, **config: Any) -> None:
        engine = store._writer
        assert engine is not None
        self.store = store
        self.now = time.time()
        self.used: int | list[int] = 10
        """How full the disk is; of a list, one after the other, the last for good."""
        config = {"pause_ms": 0, "queue_pause_ms": 0, "enabled": False, **config}
        self.retention = Retention(
            engine.layout,
            engine.log,
            engine.queues,
            engine.index,
            engine.positions.words,
            RetentionConfig(**config),
            engine.checkpoint_now,
            clock=lambda: self.now,
            disk_used=self._disk_used,
        )

    def _disk_used(self, path: Path) -> int:
        assert path == self.store.path / "commitlog"
        if isinstance(self.used, list):
            return self.used.pop(0) if len(self.used) > 1 else self.used[0]
        return self.used

    def at_hour(self, hour: int, days: float = 10) -> None:
        """Let it be this hour, local time, so many days from now."""
        then = time.localtime(time.time() + days * 24 * HOUR)
        self.now = time.mktime((then.tm_year, then.tm_mon, then.tm_mday, hour, 30, 0, 0, 0, -1))

    def clean(self) -> int:
        """One round; how many files went."""
        return self.retention.clean().file_count


def log_files(store: MessageStore) -> list[str]:
    return sorted(path.name for path in (store.path / "commitlog").iterdir())


def queue_files(store: MessageStore, topic: str = "orders") -> list[str]:
    return sorted(path.name for path in (store.path / "consumequeue" / topic / "0").iterdir())


def read_all(store: MessageStore, start: int, stop: int = 1 << 40) -> list[StoredMessage]:
    """A queue's messages from `start` on and before `stop`."""
    found: list[StoredMessage] = []
    while start < stop and (batch := store.read("orders", start=start, limit=min(100, stop - start))):
        found += batch
        start = batch[-1].queue_offset + 1
    return found
