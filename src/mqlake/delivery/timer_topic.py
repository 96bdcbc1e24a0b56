"""The timer topic: which message is due when.

A pair is a time and a place: when a message is due, and where it lies in the log. What cancels a message has its place
inverted, and is due at the beginning of its unit of time, before all others of it.
"""

from __future__ import annotations

from collections.abc import Callable

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE
from mqlake.delivery.properties import REAL_TOPIC, UNIQUE_KEY
from mqlake.delivery.system_topics import TIMER_TOPIC
from mqlake.kernel import read_timers
from mqlake.kernel.types import REASONS
from mqlake.message import StoredMessage
from mqlake.store.engine import Engine
from mqlake.store.follower import Follower

READ_COUNT = 65_536


class TimerTopic:
    """The topic's one queue, read only. `report(physical_offset, reason)` hears of what cannot be entered."""

    def __init__(self, side: Engine | Follower, report: Callable[[int, str], None]) -> None:
        self._side = side
        self._report = report
        self._precision_ms = side.config.timer.precision_ms

    def range(self) -> tuple[int, int]:
        """The numbers of its messages, half open."""
        if not self._side.queues.queue_ids(TIMER_TOPIC):
            return 0, 0
        queue = self._side.queues.get(TIMER_TOPIC, 0)
        return queue.first_offset(self._side.log.first_offset), queue.end

    def place_of(self, number: int) -> tuple[int, int]:
        """Physical offset and size of a message inside of the range."""
        entry = self._side.queues.get(TIMER_TOPIC, 0).entry(number)
        assert entry is not None, "inside of the range there is an entry"
        return entry.physical_offset, entry.size

    def read(self, start: int, stop: int) -> tuple[bytes, int]:
        """The pairs of the messages [start, stop), or of the first of them, and the number behind these."""
        log = self._side.log
        entries = self._side.queues.get(TIMER_TOPIC, 0).entries(start, min(stop, start + READ_COUNT))
        found, number, count = [], 0, len(entries) // ENTRY_SIZE
        while number < count:
            offset, size, _ = ENTRY.unpack_from(entries, number * ENTRY_SIZE)
            file = log.files.file_at(offset) if size != FILLER_SIZE else None
            behind, why = number, 0
            if file is not None:
                readable = min(log.committed, file.end) - file.start
                pairs, behind, why = read_timers(file.pages, file.start, readable, entries, number, self._precision_ms)
                found.append(pairs)
            if why or behind == number:  # this one cannot be entered
                offset, size, _ = ENTRY.unpack_from(entries, behind * ENTRY_SIZE)
                if size != FILLER_SIZE:
                    self._report(offset, REASONS.get(why, "its record is gone"))
                behind += 1
            number = behind
        return b"".join(found), start + count if count else stop

    def due_ms(self, waiting: StoredMessage) -> int | None:
        """When a message of the topic is due; None where it does not say so."""
        entry = ENTRY.pack(waiting.physical_offset, waiting.size, 0)
        place = waiting.physical_offset, waiting.size
        pairs = read_timers(waiting.record, *place, entry, 0, self._precision_ms)[0]
        return memoryview(pairs).cast("q")[0] if pairs else None


def names_of(properties: dict[str, str]) -> tuple[str, str]:
    """How a cancellation may name a message: by its key, or by topic and key."""
    key = properties.get(UNIQUE_KEY, "")
    return key, f"{properties.get(REAL_TOPIC)}+{key}"
