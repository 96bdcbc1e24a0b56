"""What waits for its time: to the writer, who knows what it delivered, and to readers, who know the time.

Nothing is delivered before it is due. So a reader's answer is right without knowing more than the clock; what is due
and not yet delivered is missing in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mqlake.delivery.deliveries import GONE
from mqlake.delivery.pending import Pending
from mqlake.delivery.properties import CANCELS
from mqlake.delivery.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from mqlake.delivery.timer_topic import TimerTopic, names_of
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.message import StoredMessage
from mqlake.store.engine import Engine
from mqlake.store.follower import Follower
from mqlake.store.read import MAX_READ_BYTES, Reader


class Waiting(NamedTuple):
    """A message that is to be delivered later."""

    due_ms: int
    message: StoredMessage
    """As it waits: its real topic and queue are in its properties."""
    level: int | None = None
    """Its delay level; None for one with a moment of its own."""


def in_order(found: Iterable[Waiting], limit: int) -> list[Waiting]:
    """Those that are delivered first."""
    return sorted(found, key=lambda waiting: (waiting.due_ms, waiting.message.physical_offset))[:limit]


def by_the_clock(side: Engine | Follower, now_ms: int, limit: int) -> list[Waiting]:
    """What is due behind a time."""
    side.settle()
    found: list[Waiting] = []
    for queue_id in side.queues.queue_ids(SCHEDULE_TOPIC):
        queue = side.queues.get(SCHEDULE_TOPIC, queue_id)
        found += of_level(side.reader, queue, queue_id + 1, _first_due_behind(side, queue, now_ms), limit)
    if side.queues.queue_ids(TIMER_TOPIC):
        pending = Pending()
        topic = TimerTopic(side, lambda offset, reason: None)
        number, end = topic.range()
        while number < end:
            pairs, number = topic.read(number, end)
            pending.add(pairs)
        pending.take(now_ms)
        found += of_timer(side.reader, pending, limit)
    return in_order(found, limit)


def _first_due_behind(side: Engine | Follower, queue: ConsumeQueue, now_ms: int) -> int:
    low, high = queue.first_offset(side.log.first_offset), queue.end
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        if entry is None or entry.tags_code <= now_ms:
            low = middle + 1
        else:
            high = middle
    return low


def of_level(reader: Reader, queue: ConsumeQueue, level: int, start: int, limit: int) -> list[Waiting]:
    """The first messages of a delay level from a number on."""
    found = []
    for message in reader.read(SCHEDULE_TOPIC, level - 1, start, limit, MAX_READ_BYTES):
        entry = queue.entry(message.queue_offset)
        if entry is not None:
            found.append(Waiting(entry.tags_code, message, level))
    return found


def of_timer(reader: Reader, pairs: Iterable[tuple[int, int]], limit: int) -> list[Waiting]:
    """The messages of the timer topic that are due first, without those that are cancelled."""
    cancelled: set[str] = set()
    found: list[Waiting] = []
    for due_ms, place in sorted(pairs):
        if len(found) >= limit:
            break
        try:
            message = reader.get(place if place >= 0 else ~place)
        except GONE:
            continue
        if place < 0:
            cancelled.add(message.properties[CANCELS])
        elif not cancelled.intersection(names_of(message.properties)):
            found.append(Waiting(due_ms, message))
    return found
