"""Lists delayed messages. The writer knows which it has delivered; a reader knows only the clock.

No message is delivered before it is due. So the clock tells a reader which messages are certainly still waiting; its
list lacks those that are due and not yet delivered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mqlake.delivery.later.deliveries import GONE
from mqlake.delivery.later.pending import Pending
from mqlake.delivery.later.timer_topic import TimerTopic, is_cancelled, target_of
from mqlake.delivery.registry.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.message import StoredMessage
from mqlake.store.ports import Reading
from mqlake.store.read import MAX_READ_BYTES, Reader


class Waiting(NamedTuple):
    """A message that is not yet delivered."""

    due_ms: int
    message: StoredMessage
    """The copy in the holding topic. Its properties name its real topic and queue."""
    level: int | None = None
    """Its delay level; None for a timed message."""


def in_order(found: Iterable[Waiting], limit: int) -> list[Waiting]:
    """Return the `limit` messages that are delivered first, in that order."""
    return sorted(found, key=lambda waiting: (waiting.due_ms, waiting.message.physical_offset))[:limit]


def by_the_clock(reading: Reading, now_ms: int, limit: int) -> list[Waiting]:
    """Return the first messages that are due after `now_ms`. For readers; it reads the whole timer topic."""
    reading.settle()
    found: list[Waiting] = []
    for queue_id in reading.queues.queue_ids(SCHEDULE_TOPIC):
        queue = reading.queues.get(SCHEDULE_TOPIC, queue_id)
        found += of_level(reading.reader, queue, queue_id + 1, _first_due_after(reading, queue, now_ms), limit)
    if reading.queues.queue_ids(TIMER_TOPIC):
        pending = Pending()
        topic = TimerTopic(reading, lambda offset, reason: None)
        offset, end = topic.range()
        while offset < end:
            pairs, offset = topic.read(offset, end)
            pending.add(pairs)
        pending.take(now_ms)
        found += of_timer(reading.reader, pending, limit)
    return in_order(found, limit)


def _first_due_after(reading: Reading, queue: ConsumeQueue, now_ms: int) -> int:
    low, high = queue.first_offset(reading.log.first_offset), queue.end
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        if entry is None or entry.tags_code <= now_ms:
            low = middle + 1
        else:
            high = middle
    return low


def of_level(reader: Reader, queue: ConsumeQueue, level: int, start: int, limit: int) -> list[Waiting]:
    """Return the first messages of a delay level from queue offset `start` on."""
    found = []
    for message in reader.read(SCHEDULE_TOPIC, level - 1, start, limit, MAX_READ_BYTES):
        entry = queue.entry(message.queue_offset)
        if entry is not None:
            found.append(Waiting(entry.tags_code, message, level))
    return found


def of_timer(reader: Reader, pairs: Iterable[tuple[int, int]], limit: int) -> list[Waiting]:
    """Return the messages of the timer topic that are due first, without cancelled ones."""
    cancelled: set[tuple[str, str]] = set()
    found: list[Waiting] = []
    for due_ms, place in sorted(pairs):
        if len(found) >= limit:
            break
        try:
            message = reader.get(place if place >= 0 else ~place)
        except GONE:
            continue
        if place < 0:
            cancelled.add(target_of(message.properties))
        elif not is_cancelled(message.properties, cancelled):
            found.append(Waiting(due_ms, message))
    return found
