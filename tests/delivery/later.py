"""Helpers for tests of delayed delivery: run the scheduler, copy a store as after a crash, list delivered messages."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from mqlake import Message, MessageStore, StoredMessage

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def step(store: MessageStore, at_ms: int) -> int:
    """Run the scheduler at a given time until nothing more is due; return when it must run next."""
    scheduler = store.delivery.require_scheduler()
    while (next_ms := scheduler.step(at_ms)) <= at_ms:
        pass
    return next_ms


def as_a_crash_leaves_it(store: MessageStore, to: Path) -> Path:
    """Copy the files of an open store. A killed process leaves exactly what the operating system has of them.

    The log is copied last, so that no progress file in the copy is newer than the log.
    """

    def copy(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # a temporary file that was renamed meanwhile
            shutil.copy2(source, target)

    left_out = shutil.ignore_patterns("scratch", "spare")
    parts = sorted(store.path.iterdir(), key=lambda path: ["config", "mqlake"].count(path.name), reverse=True)
    to.mkdir()
    for part in parts:
        if part.is_dir():
            shutil.copytree(part, to / part.name, ignore=left_out, copy_function=copy)
        else:
            copy(str(part), str(to / part.name))
    return to


def arrived(store: MessageStore, topic: str = "orders") -> list[StoredMessage]:
    """Return all messages of a topic, in log order."""
    store.wait_dispatched()
    if topic not in store.topics():
        return []
    found: list[StoredMessage] = []
    for queue in store.queues(topic):
        found += store.read(topic, queue_id=queue.queue_id, start=queue.first_offset, limit=10_000)
    return sorted(found, key=lambda message: message.physical_offset)


def arrived_bodies(store: MessageStore, topic: str = "orders") -> list[bytes]:
    return [message.body for message in arrived(store, topic)]


def order(body: bytes, **fields: object) -> Message:
    return Message("orders", body, queue_id=0, **fields)  # type: ignore[arg-type]
