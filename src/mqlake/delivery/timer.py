"""Messages for a moment: in RocketMQ's timer topic until then, in their own queue from then on.

The topic `rmq_sys_wheel_timer` is the truth. What is pending of it (when, and where in the log) is kept in memory,
written to `mqlake/timer` from time to time, and made again from the topic where that is not to be believed.

Nothing comes before its millisecond. What cancels a message is a message too, in the same unit of time and looked at
before all others of it, as in RocketMQ: so a cancellation survives what the cancelled one survives.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE
from mqlake.delivery import timer_files
from mqlake.delivery.deliveries import GONE, Deliveries
from mqlake.delivery.housekeeping import NEVER_MS
from mqlake.delivery.pending import Pending
from mqlake.delivery.properties import (
    CANCELS,
    DELIVER_MS,
    DEQUEUED_MS,
    ENQUEUED_MS,
    OUT_MS,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    UNIQUE_KEY,
)
from mqlake.delivery.readdress import round_down
from mqlake.delivery.system_topics import TIMER_TOPIC
from mqlake.delivery.timer_files import Check, LogSettings, Saved, Unit
from mqlake.errors import NotPending
from mqlake.kernel import read_timers
from mqlake.kernel.types import REASONS
from mqlake.message import Message, PutReceipt, StoredMessage
from mqlake.store.engine import Engine

BATCH_COUNT = 1_000
"""Messages that one step delivers: the others have a turn in between."""
FOLLOW_COUNT = 65_536
KEEP_BYTES = 64 << 20
"""The checkpoint is written again, though nothing was delivered, when the log grew by so much."""
GATE = "timer"
WINDOW_SLOTS = 172_800
"""RocketMQ's timerRollWindowSlot."""
_log = logging.getLogger(__name__)


class Timed(NamedTuple):
    """A message that waits for its moment."""

    due_ms: int
    message: StoredMessage


class Timer:
    """Follows the timer topic and delivers what is due. Several threads may call it."""

    def __init__(self, engine: Engine, deliveries: Deliveries) -> None:
        self._engine = engine
        self._deliveries = deliveries
        self._config = engine.config.timer
        self._lock = threading.Lock()
        self._pending = Pending()
        self._next_number = 0
        self._ready: list[tuple[int, int]] = []
        """Taken out of `pending` and not yet delivered, the first one last."""
        self._cancelled: dict[str, tuple[int, int]] = {}
        """Keys of messages that are not to be delivered, with the pair of what cancels each."""
        self._moved = False
        self._kept_at = 0
        self._open()

    # ---- opening

    def _open(self) -> None:
        """Take up what is pending: from the checkpoint, if nobody else delivered since, else from the topic."""
        check, saved = Check.read(self._engine.layout), timer_files.load(self._engine.layout)
        end = self._engine.queues.end_of(TIMER_TOPIC, 0)
        if (
            saved is not None
            and check.crc in saved.rocketmq
            and saved.next_number <= end
            and saved.delivered_to <= self._engine.log.end
        ):
            self._pending.add(saved.pairs)
            self._next_number, self._kept_at = saved.next_number, saved.delivered_to
        else:
            self._take_over(check)
        self._follow()
        delivered = {waiting.physical_offset for waiting, _ in self._deliveries.since(self._kept_at)}
        if delivered:
            self._pending.drop(delivered)
            self._moved = True

    def _take_over(self, check: Check) -> None:
        """What RocketMQ left pending, or a checkpoint of ours that is lost: its timer log, and the topic behind it."""
        self._moved, self._kept_at = True, self._engine.log.end
        if not self._has_queue():
            return
        queue = self._engine.queues.get(TIMER_TOPIC, 0)
        self._next_number = max(min(check.queue_offset, queue.end), queue.first_offset(self._engine.log.first_offset))
        places = []
        if self._next_number < queue.end and (first := queue.entry(self._next_number)) is not None:
            places.append(first.physical_offset)
        for offset in timer_files.waiting_units(self._engine.layout, check):
            try:
                message = self._engine.reader.get(offset)
            except GONE as error:
                self._deliveries.report(offset, str(error))
                continue
            if message.topic == TIMER_TOPIC and message.queue_offset < self._next_number:
                self._read(message.queue_offset, message.queue_offset + 1)
                places.append(offset)
        self._kept_at = min(places, default=self._kept_at)

    def _has_queue(self) -> bool:
        return bool(self._engine.queues.queue_ids(TIMER_TOPIC))

    # ---- following the topic

    def _follow(self) -> None:
        """Look at what came to the topic since the last time."""
        if not self._has_queue():
            return
        queue = self._engine.queues.get(TIMER_TOPIC, 0)
        self._next_number = max(self._next_number, queue.first_offset(self._engine.log.first_offset))
        end = queue.end
        while self._next_number < end:
            self._moved = True
            self._next_number = self._read(self._next_number, min(end, self._next_number + FOLLOW_COUNT))

    def _read(self, start: int, stop: int) -> int:
        """Enter the messages [start, stop) of the topic; where it came to."""
        queue, log = self._engine.queues.get(TIMER_TOPIC, 0), self._engine.log
        entries = queue.entries(start, stop)
        count, number = len(entries) // ENTRY_SIZE, 0
        while number < count:
            offset, size, _ = ENTRY.unpack_from(entries, number * ENTRY_SIZE)
            file = log.files.file_at(offset) if size != FILLER_SIZE else None
            behind, why = number, 0
            if file is not None:
                readable = min(log.committed, file.end) - file.start
                pairs, behind, why = read_timers(
                    file.pages, file.start, readable, entries, number, self._config.precision_ms
                )
                self._pending.add(pairs)
            if why or behind == number:  # this one cannot be entered
                offset, size, _ = ENTRY.unpack_from(entries, behind * ENTRY_SIZE)
                if size != FILLER_SIZE:
                    self._deliveries.report(offset, REASONS.get(why, "its record is gone"))
                behind += 1
            number = behind
        return start + count

    # ---- delivering

    def step(self, now_ms: int) -> int:
        """Deliver a batch of what is due; when the next is, `now_ms` where there is more now."""
        with self._lock:
            self._follow()
            if not self._ready:
                numbers = memoryview(self._pending.take(now_ms)).cast("q")
                self._ready = list(zip(numbers[::2], numbers[1::2], strict=True))[::-1]
            for _ in range(min(BATCH_COUNT, len(self._ready))):
                self._deliver(*self._ready[-1], now_ms)
                self._ready.pop()
                self._moved = True
            if self._cancelled:
                self._forget_cancelled(now_ms)
            return now_ms if self._ready else min(self._pending.next_ms, NEVER_MS)

    def _deliver(self, due_ms: int, place: int, now_ms: int) -> None:
        try:
            waiting = self._engine.reader.get(place if place >= 0 else ~place)
        except GONE as error:
            self._deliveries.report(place if place >= 0 else ~place, str(error))
            return
        properties = waiting.properties
        if place < 0:
            self._cancelled[properties[CANCELS]] = (due_ms, place)
        elif not self._cancelled or not any(name in self._cancelled for name in names_of(properties)):
            stamps = {ENQUEUED_MS: str(waiting.store_timestamp), DEQUEUED_MS: str(now_ms)}
            self._deliveries.deliver(waiting, properties | stamps)

    def _forget_cancelled(self, now_ms: int) -> None:
        """A cancellation is over with its unit of time, once all that was due in it is through."""
        if not self._ready:
            over_ms = now_ms - self._config.precision_ms
            self._cancelled = {key: pair for key, pair in self._cancelled.items() if pair[0] > over_ms}

    # ---- taking back

    def cancel(self, waiting: StoredMessage, put: Callable[[Message], PutReceipt]) -> PutReceipt:
        """Take a waiting message back, by putting another; NotPending where it is too late for that."""
        with self._lock:  # nothing is delivered meanwhile
            return put(self._cancellation(waiting, time.time_ns() // 1_000_000))

    def _cancellation(self, waiting: StoredMessage, now_ms: int) -> Message:
        properties = waiting.properties
        if waiting.topic != TIMER_TOPIC or CANCELS in properties or OUT_MS not in properties:
            expected = "a message with a time (deliver_at, delay_s); delay levels cannot be cancelled"
            raise NotPending(waiting.physical_offset, f"a message of topic {waiting.topic}", expected)
        if UNIQUE_KEY not in properties:
            raise NotPending(waiting.physical_offset, f"a message without {UNIQUE_KEY}", "one that can be named")
        pairs = memoryview(self._pair_of(waiting)).cast("q")
        if not pairs or pairs[0] <= now_ms:
            raise NotPending(waiting.physical_offset, "a message whose time has come", "one that is pending")
        return Message(
            properties[REAL_TOPIC],
            b"0",
            queue_id=int(properties[REAL_QUEUE_ID]),
            properties={
                DELIVER_MS: str(int(properties[OUT_MS]) + self._config.precision_ms),
                CANCELS: names_of(properties)[self._config.cancel_names_topic],
                UNIQUE_KEY: properties[UNIQUE_KEY],
            },
        )

    def _pair_of(self, waiting: StoredMessage) -> bytes:
        entry = ENTRY.pack(waiting.physical_offset, waiting.size, 0)
        place = waiting.physical_offset, waiting.size
        return read_timers(waiting.record, *place, entry, 0, self._config.precision_ms)[0]

    def pending(self, limit: int) -> list[Timed]:
        """The messages that are due first, without those that are cancelled."""
        with self._lock:
            self._follow()
            pairs = sorted([*self._pending, *self._ready, *self._cancelled.values()])
        cancelled: set[str] = set()
        found: list[Timed] = []
        for due_ms, place in pairs:
            if len(found) >= limit:
                break
            try:
                message = self._engine.reader.get(place if place >= 0 else ~place)
            except GONE:
                continue
            if place < 0:
                cancelled.add(message.properties[CANCELS])
            elif not cancelled.intersection(names_of(message.properties)):
                found.append(Timed(due_ms, message))
        return found

    # ---- keeping

    def keep(self) -> None:
        """Write the checkpoint, durably, if something changed; the log goes to the disk first."""
        with self._lock:
            end = self._engine.log.end
            if not self._moved and end - self._kept_at < KEEP_BYTES:
                return
            pairs, number, self._moved = self._all_pairs(), self._next_number, False
        running = self._running_check(pairs, number)
        self._save(pairs, number, end, running, running)
        running.write(self._engine.layout)
        timer_files.remove_timer_log(self._engine.layout)

    def _all_pairs(self) -> bytes:
        """All that is pending, with the cancellations that still count."""
        extra = [number for pair in (*self._ready, *self._cancelled.values()) for number in pair]
        return self._pending.dump() + array("q", extra).tobytes()

    def _save(self, pairs: bytes, number: int, end: int, running: Check, closed: Check) -> None:
        """Every `timercheck` that a crash can leave from here on, the present one included, belongs to it."""
        layout = self._engine.layout
        self._engine.flusher.wait_until_durable(end)
        timer_files.save(layout, Saved(number, end, (Check.read(layout).crc, running.crc, closed.crc), pairs))
        self._kept_at = end
        if pairs:
            self._engine.retention.hold(GATE, min(_places(pairs)))
        else:
            self._engine.retention.release(GATE)

    def _running_check(self, pairs: bytes, number: int) -> Check:
        """For RocketMQ, if this store ends without being closed: begin with the first that is pending."""
        if pairs:
            try:
                number = self._engine.reader.get(min(_places(pairs))).queue_offset
            except GONE:
                number = 0
        return self._check(number)

    def _check(self, number: int) -> Check:
        before, now_ms = Check.read(self._engine.layout), time.time_ns() // 1_000_000
        read_ms = now_ms // self._config.precision_ms * self._config.precision_ms
        return Check(read_ms, 0, number, number, before.state_version, now_ms, before.counter + 1)

    def close(self) -> None:
        """Write the checkpoint, and for RocketMQ a timer log of what is pending.

        `timercheck` points at the first pending message while there is no timer log, so at no moment one is missing.
        """
        layout, precision_ms = self._engine.layout, self._config.precision_ms
        with self._lock:
            self._follow()
            pairs, number, end = self._all_pairs(), self._next_number, self._engine.log.end
        units = self._units(pairs, number)
        settings = LogSettings(self._config.log_file_size_bytes, precision_ms, WINDOW_SLOTS)
        running, closed = self._running_check(pairs, number), self._check(number)
        if units:
            first_ms = min(closed.read_ms, *(unit.out_ms for unit in units[:-1]))
            # Behind all others, in the past: RocketMQ goes on in the topic behind the message of the last unit.
            units[-1] = units[-1]._replace(out_ms=first_ms - precision_ms)
            closed = closed._replace(read_ms=first_ms, log_end=timer_files.end_of(len(units), settings))
        self._save(pairs, number, end, running, closed)
        running.write(layout)
        timer_files.remove_timer_log(layout)
        if units:
            timer_files.write_timer_log(layout, units, closed.read_ms, settings)
        closed.write(layout)

    def _units(self, pairs: bytes, number: int) -> list[Unit]:
        """What is pending, in the order of the topic, and the last message of the topic."""
        numbers, log = memoryview(pairs).cast("q"), self._engine.log
        precision_ms = self._config.precision_ms
        found = []
        for due_ms, place in sorted(zip(numbers[::2], numbers[1::2], strict=True), key=_place_of):
            offset = place if place >= 0 else ~place
            file = log.files.file_at(offset)
            if file is not None:
                size = int.from_bytes(file.pages[offset - file.start : offset - file.start + 4], "big")
                out_ms = round_down(due_ms, precision_ms) if place >= 0 else due_ms
                found.append(Unit(out_ms, offset, size, place < 0))
        if found:
            last = self._engine.queues.get(TIMER_TOPIC, 0).entry(number - 1)
            assert last is not None, "what is pending was followed"
            found.append(Unit(0, last.physical_offset, last.size, is_cancel=False))
        return found


def _places(pairs: bytes) -> list[int]:
    return [place if place >= 0 else ~place for place in memoryview(pairs).cast("q")[1::2]]


def _place_of(pair: tuple[int, int]) -> int:
    return pair[1] if pair[1] >= 0 else ~pair[1]


def names_of(properties: dict[str, str]) -> tuple[str, str]:
    """How a cancellation may name a message: by its key, or by topic and key."""
    key = properties.get(UNIQUE_KEY, "")
    return key, f"{properties.get(REAL_TOPIC)}+{key}"
