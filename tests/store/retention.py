"""Shared by tests of retention: a store of many files, and a cleaner whose clock and disk a test sets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mqlake import MessageStore, RetentionConfig, StoredMessage
from mqlake.runtime.workers import Workers
from mqlake.store.clock import ClockJudge
from mqlake.store.retention import Retention
from tests.helpers import LOG_FILE, message, open_small, writer_of

HOUR = 3600.0
DAY_HOURS = ";".join(f"{hour:02d}" for hour in range(24))
BODY = bytes(500)
"""About a hundred messages fill a log file, and a queue file."""


def open_filled(path: Path, files: int, **settings: Any) -> MessageStore:
    """Open a store with that many log files, all messages in one queue, and no cleaner of its own."""
    settings.setdefault("retention", RetentionConfig(enabled=False, pause_ms=0, queue_pause_ms=0))
    store = open_small(path, **settings)
    if files:
        fill(store, files)
    return store


def fill(store: MessageStore, files: int, topic: str = "orders") -> None:
    """Put until the log has that many files."""
    number = 0
    while store.end_offset <= store.first_offset + (files - 1) * LOG_FILE:
        number = store.put(message(number, topic, queue_id=0, body=BODY)).queue_offset + 1
    assert store.wait_dispatched()


class Cleaner:
    """A store's retention with the test's own clock and disk."""

    def __init__(self, store: MessageStore, **config: Any) -> None:
        engine = writer_of(store)
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
            Workers(),
            engine.shield,
            clock=lambda: self.now,
            judge=ClockJudge(
                engine.layout.own / "clock-of-the-test.json", engine.layout.scratch, wall=self._time, steady=self._time
            ),
            disk_used=self._disk_used,
        )

    def _time(self) -> float:
        return self.now

    def _disk_used(self, path: Path) -> int:
        assert path == self.store.path / "commitlog"
        if isinstance(self.used, list):
            return self.used.pop(0) if len(self.used) > 1 else self.used[0]
        return self.used

    def at_hour(self, hour: int, days: float = 10) -> None:
        """Set the clock to this hour, local time, that many days from now."""
        then = time.localtime(time.time() + days * 24 * HOUR)
        self.now = time.mktime((then.tm_year, then.tm_mon, then.tm_mday, hour, 30, 0, 0, 0, -1))

    def clean(self) -> int:
        """Run one round and return how many files it deleted."""
        return self.retention.clean().file_count


def log_files(store: MessageStore) -> list[str]:
    return sorted(path.name for path in (store.path / "commitlog").iterdir())


def queue_files(store: MessageStore, topic: str = "orders") -> list[str]:
    return sorted(path.name for path in (store.path / "consumequeue" / topic / "0").iterdir())


def read_all(store: MessageStore, start: int, stop: int = 1 << 40) -> list[StoredMessage]:
    """Return a queue's messages from `start` up to, but not including, `stop`."""
    found: list[StoredMessage] = []
    while start < stop and (batch := store.read("orders", start=start, limit=min(100, stop - start))):
        found += batch
        start = batch[-1].queue_offset + 1
    return found
