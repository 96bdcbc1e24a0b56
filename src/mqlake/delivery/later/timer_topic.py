"""Reads the timer topic: when each of its messages is due.

A pair is a time and a place: when a message is due, and its physical offset. The pair of a cancellation has its place
inverted (`~`) and is due at the start of its time unit, before all messages of that unit.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE
from mqlake.delivery.properties import CANCELS, REAL_TOPIC, UNIQUE_KEY
from mqlake.delivery.registry.system_topics import TIMER_TOPIC
from mqlake.kernel import read_timers
from mqlake.kernel.types import REASONS
from mqlake.message import StoredMessage
from mqlake.store.ports import Reading

READ_COUNT = 65_536


class TimerTopic:
    """The topic's only queue, for reading. It calls `report(physical_offset, reason)` for each unusable message."""

    def __init__(self, reading: Reading, report: Callable[[int, str], None]) -> None:
        self._reading = reading
        self._report = report
        self._precision_ms = reading.config.timer.precision_ms

    def range(self) -> tuple[int, int]:
        """Return the first queue offset and the end of the topic's queue."""
        if not self._reading.queues.queue_ids(TIMER_TOPIC):
            return 0, 0
        queue = self._reading.queues.get(TIMER_TOPIC, 0)
        return queue.first_offset(self._reading.log.first_offset), queue.end

    def place_of(self, queue_offset: int) -> tuple[int, int]:
        """Return the physical offset and size of a message, whose queue offset must be inside the range."""
        entry = self._reading.queues.get(TIMER_TOPIC, 0).entry(queue_offset)
        assert entry is not None, "every queue offset in the range has an entry"
        return entry.physical_offset, entry.size

    def read(self, start: int, stop: int) -> tuple[bytes, int]:
        """Return the pairs of messages from [start, stop), at most `READ_COUNT`, and the queue offset to read next."""
        log = self._reading.log
        entries = self._reading.queues.get(TIMER_TOPIC, 0).entries(start, min(stop, start + READ_COUNT))
        found, index, count = [], 0, len(entries) // ENTRY_SIZE
        while index < count:
            offset, size, _ = ENTRY.unpack_from(entries, index * ENTRY_SIZE)
            file = log.files.file_at(offset) if size != FILLER_SIZE else None
            after, why = index, 0
            if file is not None:
                readable = min(self._reading.ends.visible, file.end) - file.start
                pairs, after, why = read_timers(file.pages, file.start, readable, entries, index, self._precision_ms)
                found.append(pairs)
            if why or after == index:  # a filler, or a message that is not readable: skip it
                offset, size, _ = ENTRY.unpack_from(entries, after * ENTRY_SIZE)
                if size != FILLER_SIZE:
                    self._report(offset, REASONS.get(why, "its record was deleted"))
                after += 1
            index = after
        return b"".join(found), start + count if count else stop

    def due_ms(self, waiting: StoredMessage) -> int | None:
        """Return when a message of the topic is due; None if it has no valid due time."""
        entry = ENTRY.pack(waiting.physical_offset, waiting.size, 0)
        place = waiting.physical_offset, waiting.size
        pairs = read_timers(waiting.record, *place, entry, 0, self._precision_ms)[0]
        return memoryview(pairs).cast("q")[0] if pairs else None


def target_of(cancellation: dict[str, str]) -> tuple[str, str]:
    """Return what a cancellation cancels: its own real topic, and a message's name.

    Whoever may send to a topic may cancel what waits for it, and nothing that waits for another.
    """
    return cancellation.get(REAL_TOPIC, ""), cancellation[CANCELS]


def is_cancelled(properties: dict[str, str], targets: Container[tuple[str, str]]) -> bool:
    """Return whether a message is among the targets of cancellations."""
    topic = properties.get(REAL_TOPIC, "")
    return any((topic, name) in targets for name in names_of(properties))


def names_of(properties: dict[str, str]) -> tuple[str, str]:
    """Return the names by which a cancellation may refer to a message: its key, or topic and key."""
    key = properties.get(UNIQUE_KEY, "")
    return key, f"{properties.get(REAL_TOPIC)}+{key}"
