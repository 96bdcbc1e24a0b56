"""Delivers messages with a delay level. Each level has one queue of SCHEDULE_TOPIC_XXXX, in the order of due times.

Instead of a tag code, an entry of these queues holds when its message is due: the store time plus the level's delay,
fixed at dispatch. If the level was shortened since, the shorter delay counts. No message is early, even if the clock is
set back. A store time is wrong if the wall clock was: so a message never waits longer than its level's delay from when
it was first seen, by the monotonic clock (`Seen`). Progress is in `config/delayOffset.json`, in RocketMQ's format,
together with the physical offset up to which it includes all deliveries (see `delivery/later/deliveries.py`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from mqlake.codec.queue_entry import ENTRY, FILLER_SIZE
from mqlake.delivery.housekeeping import NEVER_MS
from mqlake.delivery.later.deliveries import Deliveries
from mqlake.delivery.later.waiting import Waiting, of_level
from mqlake.delivery.registry.offsets import DelayOffsets
from mqlake.delivery.registry.system_topics import SCHEDULE_TOPIC
from mqlake.errors import OffsetOutOfRange
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.store.ports import Writing
from mqlake.store.read import MAX_READ_BYTES

BATCH_COUNT = 256
"""At most this many messages of a level are delivered before the next level has its turn."""
KEEP_BYTES = 64 << 20
"""After this much log, progress is written even if nothing was delivered, so that opening walks less of the log."""
SEEN_S = 0.5
"""Messages of one level first seen within this time count as seen together: this bounds what is remembered."""
_log = logging.getLogger(__name__)


class Seen:
    """When the messages of one level were first seen, by the monotonic clock; never earlier than they were."""

    def __init__(self) -> None:
        self._groups: deque[tuple[int, float, float]] = deque()
        """Messages before a queue offset that are in no group before; when the first and the last of them was seen."""

    def note(self, next_offset: int, end: int, now: float) -> None:
        """Look at a level's queue: `end` is where it ends, and messages before `next_offset` are delivered."""
        while self._groups and self._groups[0][0] <= next_offset:
            self._groups.popleft()
        if end <= (self._groups[-1][0] if self._groups else next_offset):
            return
        if self._groups and now - self._groups[-1][1] < SEEN_S:
            self._groups[-1] = (end, self._groups[-1][1], now)
        else:
            self._groups.append((end, now, now))

    def at(self, offset: int) -> float:
        """Return when the message with this queue offset was first seen. It was noted, and is not delivered."""
        return next(last for end, _, last in self._groups if offset < end)


class DelayLevels:
    """Delivers due messages of all levels. The caller ensures that one thread at a time calls it."""

    def __init__(
        self,
        writing: Writing,
        offsets: DelayOffsets,
        deliveries: Deliveries,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writing = writing
        self._monotonic = monotonic
        self._seen: dict[int, Seen] = {}
        self._offsets = offsets
        self._deliveries = deliveries
        self._delays_ms = writing.config.delays_ms
        self._next: dict[int, int] = {}
        """By level, the queue offset of the next message to deliver."""
        self._to_keep: tuple[dict[int, int], int] | None = None
        """Progress at one moment, and the appended end then. It is written once the log is durable up to that end."""
        self._kept_at = self.needed_from() if offsets.delivered_to is None else offsets.delivered_to
        for waiting, _ in deliveries.since(self._kept_at):
            if waiting.topic == SCHEDULE_TOPIC:
                self._advance(waiting.queue_id + 1, waiting.queue_offset + 1)

    def needed_from(self) -> int:
        """Return the physical offset of the first message that progress has not passed. Any thread may call it."""
        queues, needed = self._writing.queues, [self._writing.ends.appended]
        for queue_id in queues.queue_ids(SCHEDULE_TOPIC):
            queue = queues.get(SCHEDULE_TOPIC, queue_id)
            queue_offset = max(self._progress(queue_id + 1), queue.first_offset(self._writing.log.first_offset))
            if queue_offset < queue.end and (entry := queue.entry(queue_offset)) is not None:
                needed.append(entry.physical_offset)
        return min(needed)

    def _advance(self, level: int, offset: int) -> None:
        self._next[level] = max(offset, self._progress(level))

    def _progress(self, level: int) -> int:
        known = self._next.get(level)
        return (self._offsets.get(DelayOffsets.LEVELS, level) or 0) if known is None else known

    def step(self, now_ms: int) -> int:
        """Deliver a batch of due messages of each level; return when the next is due, `now_ms` if more are due now."""
        next_ms = NEVER_MS
        for queue_id in self._writing.queues.queue_ids(SCHEDULE_TOPIC):
            next_ms = min(next_ms, self._step_level(queue_id + 1, now_ms))
        return next_ms

    def _step_level(self, level: int, now_ms: int) -> int:
        queue = self._writing.queues.get(SCHEDULE_TOPIC, level - 1)
        start, end = self._resume_at(level, queue), queue.end
        self._seen.setdefault(level, Seen()).note(start, end, self._monotonic())
        entries = list(ENTRY.iter_unpack(queue.entries(start, min(end, start + BATCH_COUNT))))
        stop = start
        for offset, size, due_ms in entries:
            if size != FILLER_SIZE and self._due(level, stop, offset, due_ms, now_ms) > now_ms:
                break
            stop += 1
        if stop > start:
            self._deliver(level, start, stop)
        left = entries[self._next[level] - start :]
        if left:
            return max(now_ms, self._due(level, self._next[level], left[0][0], left[0][2], now_ms))
        return now_ms if self._next[level] < queue.end else NEVER_MS

    def _resume_at(self, level: int, queue: ConsumeQueue) -> int:
        """Return the queue offset to resume at, moved into the queue: retention may have deleted the message that
        progress names, or a power cut may have taken it back."""
        first, start = queue.first_offset(self._writing.log.first_offset), self._progress(level)
        if not first <= start <= queue.end:
            inside = min(max(start, first), queue.end)
            if start:
                _log.error("%s", OffsetOutOfRange(f"{SCHEDULE_TOPIC}, queue {level - 1}", start, first, queue.end))
            start = inside
        self._next[level] = start
        return start

    def _due(self, level: int, queue_offset: int, physical_offset: int, due_ms: int, now_ms: int) -> int:
        """Return when an entry is due: as fixed at dispatch, or earlier by today's levels or the monotonic clock."""
        if level > len(self._delays_ms) or due_ms <= now_ms:
            return due_ms
        waited_s = self._monotonic() - self._seen[level].at(queue_offset)
        due_ms = min(due_ms, now_ms + max(0, self._delays_ms[level - 1] - int(waited_s * 1000)))
        try:
            stored_ms = self._writing.reader.get(physical_offset).store_timestamp
        except Exception:  # an unreadable record is reported when it is due
            return due_ms
        return min(due_ms, stored_ms + self._delays_ms[level - 1])

    def _deliver(self, level: int, start: int, stop: int) -> None:
        """Deliver [start, stop) of a level's queue. Progress moves after each message, so a failure repeats none."""
        while start < stop:
            found = self._writing.reader.read(SCHEDULE_TOPIC, level - 1, start, stop - start, MAX_READ_BYTES)
            for message in [message for message in found if message.queue_offset < stop]:
                self._report_missing(level, start, message.queue_offset)
                self._deliveries.deliver(message, message.properties)
                start = self._next[level] = message.queue_offset + 1
            if not found or found[-1].queue_offset >= stop:
                self._report_missing(level, start, stop)
                start = self._next[level] = stop

    def _report_missing(self, level: int, start: int, stop: int) -> None:
        """Report the messages in [start, stop): the reader skipped them, so their records are damaged."""
        queue = self._writing.queues.get(SCHEDULE_TOPIC, level - 1)
        for offset, size, _ in ENTRY.iter_unpack(queue.entries(start, stop)):
            if size != FILLER_SIZE:
                self._deliveries.report(offset, f"the record, of delay level {level}, cannot be read")

    def keep(self, *, wait: bool = False) -> bool:
        """Write progress, durably, if it moved; tell whether the file is up to date.

        The log must be durable first. Without `wait`, the call returns False if it is not. Deliveries made meanwhile
        are written by a later call.
        """
        if wait or self._to_keep is None:
            moved = {n: at for n, at in self._next.items() if at != self._offsets.get(DelayOffsets.LEVELS, n)}
            if not moved and self._writing.ends.appended - self._kept_at < KEEP_BYTES:
                return True
            self._to_keep = moved, self._writing.ends.appended
        moved, end = self._to_keep
        if wait:
            self._writing.flusher.wait_until_durable(end)
        elif self._writing.ends.durable < end:
            return False
        for level, offset in moved.items():
            self._offsets.set(DelayOffsets.LEVELS, level, offset)
        self._offsets.keep(end)
        self._kept_at, self._to_keep = end, None
        return True

    def waiting(self, limit: int) -> list[Waiting]:
        """Return the next `limit` messages of each level."""
        found: list[Waiting] = []
        for queue_id in self._writing.queues.queue_ids(SCHEDULE_TOPIC):
            queue = self._writing.queues.get(SCHEDULE_TOPIC, queue_id)
            first = queue.first_offset(self._writing.log.first_offset)
            start = min(max(self._progress(queue_id + 1), first), queue.end)
            found += of_level(self._writing.reader, queue, queue_id + 1, start, limit)
        return found
