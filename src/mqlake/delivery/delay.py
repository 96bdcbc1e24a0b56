"""Delay levels: one queue of SCHEDULE_TOPIC_XXXX a level, each in the order in which its messages are due.

A queue's entries carry, in place of a tag code, when the message is due: the store time and the level's delay, fixed
when it was dispatched. Where the level was shortened since, the shorter delay counts; nothing ever comes early, also if
the clock is set back. Progress is `config/delayOffset.json`, as RocketMQ keeps it, with the offset of the log up to
which it knows all deliveries (see `delivery/deliveries.py`).
"""

from __future__ import annotations

import logging

from mqlake.codec.queue_entry import ENTRY, FILLER_SIZE
from mqlake.delivery.deliveries import Deliveries
from mqlake.delivery.housekeeping import NEVER_MS
from mqlake.delivery.offsets import DelayOffsets
from mqlake.delivery.system_topics import SCHEDULE_TOPIC
from mqlake.delivery.waiting import Waiting, of_level
from mqlake.errors import OffsetOutOfRange
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.store.engine import Engine
from mqlake.store.read import MAX_READ_BYTES

BATCH_COUNT = 256
"""Messages of a level that are delivered before the next level has its turn."""
KEEP_BYTES = 64 << 20
"""Progress is written again, though nothing was delivered, when the log grew by so much: opening walks less of it."""
_log = logging.getLogger(__name__)


class DelayLevels:
    """Delivers what is due. One thread at a time calls it."""

    def __init__(self, engine: Engine, offsets: DelayOffsets, deliveries: Deliveries) -> None:
        self._engine = engine
        self._offsets = offsets
        self._deliveries = deliveries
        self._delays_ms = engine.config.delays_ms
        self._next: dict[int, int] = {}
        """By level, the number of the next message to deliver."""
        self._to_keep: tuple[dict[int, int], int] | None = None
        """Progress of one moment, and the log's end then: it is written once the log is durable so far."""
        self._kept_at = self.needed_from() if offsets.delivered_to is None else offsets.delivered_to
        for waiting, _ in deliveries.since(self._kept_at):
            if waiting.topic == SCHEDULE_TOPIC:
                self._pass(waiting.queue_id + 1, waiting.queue_offset + 1)

    def needed_from(self) -> int:
        """Where in the log the first message lies that progress does not know to be delivered. Any thread may ask."""
        queues, places = self._engine.queues, [self._engine.log.end]
        for queue_id in queues.queue_ids(SCHEDULE_TOPIC):
            queue = queues.get(SCHEDULE_TOPIC, queue_id)
            number = max(self._progress(queue_id + 1), queue.first_offset(self._engine.log.first_offset))
            if number < queue.end and (entry := queue.entry(number)) is not None:
                places.append(entry.physical_offset)
        return min(places)

    def _pass(self, level: int, offset: int) -> None:
        self._next[level] = max(offset, self._progress(level))

    def _progress(self, level: int) -> int:
        known = self._next.get(level)
        return (self._offsets.get(DelayOffsets.LEVELS, level) or 0) if known is None else known

    def step(self, now_ms: int) -> int:
        """Deliver a batch of what is due, level by level; when the next is due, `now_ms` where there is more now."""
        next_ms = NEVER_MS
        for queue_id in self._engine.queues.queue_ids(SCHEDULE_TOPIC):
            next_ms = min(next_ms, self._step_level(queue_id + 1, now_ms))
        return next_ms

    def _step_level(self, level: int, now_ms: int) -> int:
        queue = self._engine.queues.get(SCHEDULE_TOPIC, level - 1)
        start = self._begin(level, queue)
        entries = list(ENTRY.iter_unpack(queue.entries(start, min(queue.end, start + BATCH_COUNT))))
        stop = start
        for offset, size, due_ms in entries:
            if size != FILLER_SIZE and self._due(level, offset, due_ms, now_ms) > now_ms:
                break
            stop += 1
        if stop > start:
            self._deliver(level, start, stop)
        left = entries[self._next[level] - start :]
        if left:
            return max(now_ms, self._due(level, left[0][0], left[0][2], now_ms))
        return now_ms if self._next[level] < queue.end else NEVER_MS

    def _begin(self, level: int, queue: ConsumeQueue) -> int:
        """Where to go on, inside of the queue: progress may name what is deleted, or what a power cut took back."""
        first, start = queue.first_offset(self._engine.log.first_offset), self._progress(level)
        if not first <= start <= queue.end:
            inside = min(max(start, first), queue.end)
            if start:
                _log.error("%s", OffsetOutOfRange(f"{SCHEDULE_TOPIC}, queue {level - 1}", start, first, queue.end))
            start = inside
        self._next[level] = start
        return start

    def _due(self, level: int, physical_offset: int, due_ms: int, now_ms: int) -> int:
        """When an entry is due: as dispatched, or earlier by the levels of today."""
        if level > len(self._delays_ms) or due_ms <= now_ms:
            return due_ms
        try:
            stored_ms = self._engine.reader.get(physical_offset).store_timestamp
        except Exception:  # it cannot be read: that is told when it is due
            return due_ms
        return min(due_ms, stored_ms + self._delays_ms[level - 1])

    def _deliver(self, level: int, start: int, stop: int) -> None:
        """Deliver [start, stop) of a level's queue; progress moves behind each, so a failure repeats none."""
        while start < stop:
            found = self._engine.reader.read(SCHEDULE_TOPIC, level - 1, start, stop - start, MAX_READ_BYTES)
            for message in [message for message in found if message.queue_offset < stop]:
                self._report_missing(level, start, message.queue_offset)
                self._deliveries.deliver(message, message.properties)
                start = self._next[level] = message.queue_offset + 1
            if not found or found[-1].queue_offset >= stop:
                self._report_missing(level, start, stop)
                start = self._next[level] = stop

    def _report_missing(self, level: int, start: int, stop: int) -> None:
        """Messages between two that were read are damaged."""
        queue = self._engine.queues.get(SCHEDULE_TOPIC, level - 1)
        for offset, size, _ in ENTRY.iter_unpack(queue.entries(start, stop)):
            if size != FILLER_SIZE:
                self._deliveries.report(offset, f"its record, of delay level {level}, cannot be read")

    def keep(self, *, wait: bool = False) -> bool:
        """Write progress, durably, where it moved; whether it is written.

        The log goes to the disk first: it is not waited for, unless `wait` says so. What is delivered meanwhile is
        for the next time.
        """
        if wait or self._to_keep is None:
            moved = {n: at for n, at in self._next.items() if at != self._offsets.get(DelayOffsets.LEVELS, n)}
            if not moved and self._engine.log.end - self._kept_at < KEEP_BYTES:
                return True
            self._to_keep = moved, self._engine.log.end
        moved, end = self._to_keep
        if wait:
            self._engine.flusher.wait_until_durable(end)
        elif self._engine.flusher.durable < end:
            return False
        for level, offset in moved.items():
            self._offsets.set(DelayOffsets.LEVELS, level, offset)
        self._offsets.keep(end)
        self._kept_at, self._to_keep = end, None
        return True

    def waiting(self, limit: int) -> list[Waiting]:
        """The first messages of each level that are still to be delivered."""
        found: list[Waiting] = []
        for queue_id in self._engine.queues.queue_ids(SCHEDULE_TOPIC):
            queue = self._engine.queues.get(SCHEDULE_TOPIC, queue_id)
            start = min(max(self._progress(queue_id + 1), queue.first_offset(self._engine.log.first_offset)), queue.end)
            found += of_level(self._engine.reader, queue, queue_id + 1, start, limit)
        return found
