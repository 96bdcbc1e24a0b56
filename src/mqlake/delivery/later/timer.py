"""Delivers timed messages: they wait in RocketMQ's timer topic and move to their real queue when they are due.

The topic `rmq_sys_wheel_timer` is the source of truth. The due time and physical offset of each pending message are
kept in memory and written to `mqlake/timer` from time to time. If that file cannot be trusted, they are read from the
topic again.

No message is delivered before its millisecond. A cancellation is itself a message, due in the same time unit and
processed before all others of that unit, as in RocketMQ. So it survives every crash that its target survives. It
cancels only a message of its own real topic.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator

from mqlake.delivery.housekeeping import NEVER_MS
from mqlake.delivery.later import timer_files
from mqlake.delivery.later.deliveries import GONE, Deliveries
from mqlake.delivery.later.pending import Pending
from mqlake.delivery.later.routing import round_down
from mqlake.delivery.later.timer_files import DAMAGED, Check
from mqlake.delivery.later.timer_keeping import TimerCheckpoints
from mqlake.delivery.later.timer_topic import TimerTopic, is_cancelled, names_of, target_of
from mqlake.delivery.later.waiting import Waiting, of_timer
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
from mqlake.delivery.registry.system_topics import TIMER_TOPIC
from mqlake.errors import BadFile, NotPending
from mqlake.kernel import lowest_place
from mqlake.message import Message, PutReceipt, StoredMessage
from mqlake.runtime.locks import make_lock
from mqlake.store.ports import Writing

BATCH_COUNT = 1_000
"""One step delivers at most this many messages, so that delay levels have their turn."""
KEEP_BYTES = 64 << 20
"""After this much log, the checkpoint is written even if nothing was delivered."""
_log = logging.getLogger(__name__)


class Timer:
    """Reads the timer topic and delivers due messages. Any thread may call it."""

    def __init__(self, writing: Writing, deliveries: Deliveries) -> None:
        self._writing = writing
        self._deliveries = deliveries
        self._config = writing.config.timer
        self._topic = TimerTopic(writing, deliveries.report)
        self._checkpoints = TimerCheckpoints(writing, self._topic)
        self._lock = make_lock("timer")
        self._keeping = make_lock("timer.files")
        self._is_closed = False
        self._pending = Pending()
        self._next_offset = 0
        self._ready = memoryview(b"").cast("q")
        """Pairs that were taken from `pending` and are not yet delivered."""
        self._cancelled: dict[tuple[str, str], tuple[int, int]] = {}
        """Real topics and names of cancelled messages, each with the pair of its cancellation."""
        self._moved = False
        self._kept_at = 0
        self._open()
        writing.with_checkpoints(self.keep)

    # ---- opening

    def _open(self) -> None:
        """Load what is pending: from the checkpoint if RocketMQ did not deliver since, otherwise from the topic."""
        check, saved = Check.read(self._writing.layout), timer_files.load(self._writing.layout)
        if (
            saved is not None
            and (check.crc in saved.rocketmq or check == DAMAGED)
            and saved.next_offset <= self._topic.range()[1]
            and saved.delivered_to <= self._writing.ends.appended
        ):
            self._pending.add(saved.pairs)
            self._next_offset, self._kept_at = saved.next_offset, saved.delivered_to
        else:
            self._take_over(check)
        self._follow()
        delivered = {waiting.physical_offset for waiting, _ in self._deliveries.since(self._kept_at)}
        if delivered:
            self._pending.drop(delivered)
            self._moved = True

    def _take_over(self, check: Check) -> None:
        """Load what is pending from RocketMQ's timer log, and from the topic after the position it reached.

        Needed after RocketMQ wrote the store, or if our own checkpoint is lost.
        """
        first, end = self._topic.range()
        self._next_offset = max(first, min(check.queue_offset, end))
        self._moved = True
        try:  # a message may have several units: that of the topic's last message also marks where to resume
            units = dict.fromkeys(timer_files.waiting_units(self._writing.layout, check))
        except BadFile as error:
            _log.warning("%s; reading the pending messages from the timer topic", error)
            self._read_again(first, check)
            return
        is_over = self._next_offset >= end
        places = [self._writing.ends.appended if is_over else self._topic.place_of(self._next_offset)[0]]
        for offset in units:
            try:
                message = self._writing.reader.get(offset)
            except GONE as error:
                self._deliveries.report(offset, str(error))
                continue
            if message.topic == TIMER_TOPIC and message.queue_offset < self._next_offset:
                self._pending.add(self._topic.read(message.queue_offset, message.queue_offset + 1)[0])
                places.append(offset)
        self._kept_at = min(places)

    def _read_again(self, first: int, check: Check) -> None:
        """Load what the lost timer log held from the topic itself: messages not due before RocketMQ's read time.

        A time unit more, and all of them if that time is not plausible: the log shows what was delivered here, and a
        message that RocketMQ delivered may come twice, which is better than never. A cancellation and its message are
        of one unit, so both are read or neither.
        """
        unit_ms = self._config.precision_ms
        known_ms = check.read_ms - unit_ms if check.read_ms <= self._writing.log.now_ms else 0
        reached, self._next_offset = self._next_offset, first
        self._kept_at = self._topic.place_of(first)[0] if first < self._topic.range()[1] else 0
        while self._next_offset < reached:
            pairs, self._next_offset = self._topic.read(self._next_offset, reached)
            values = memoryview(pairs).cast("q")
            for due_ms, place in zip(values[::2], values[1::2], strict=True):
                if (due_ms if place < 0 else round_down(due_ms, unit_ms)) >= known_ms:
                    self._pending.add(array("q", [due_ms, place]).tobytes())

    def _follow(self) -> None:
        """Read the messages that were added to the topic since the last call."""
        first, end = self._topic.range()
        self._next_offset = max(self._next_offset, first)
        while self._next_offset < end:
            pairs, self._next_offset = self._topic.read(self._next_offset, end)
            self._pending.add(pairs)
            self._moved = True

    # ---- delivering

    def step(self, now_ms: int) -> int:
        """Deliver a batch of due messages; return when the next is due, `now_ms` if more are due now."""
        with self._lock:
            self._follow()
            if not self._ready:
                self._ready = memoryview(self._pending.take(now_ms)).cast("q")
            for _ in range(min(BATCH_COUNT, len(self._ready) // 2)):
                self._deliver(self._ready[0], self._ready[1], now_ms)
                self._ready = self._ready[2:]
                self._moved = True
            if self._ready:
                return now_ms
            # A cancellation expires with its time unit: every message that was due in it has been processed.
            over_ms = now_ms - self._config.precision_ms
            self._cancelled = {target: pair for target, pair in self._cancelled.items() if pair[0] > over_ms}
            return min(self._pending.next_ms, NEVER_MS)

    def _deliver(self, due_ms: int, place: int, now_ms: int) -> None:
        try:
            waiting = self._writing.reader.get(place if place >= 0 else ~place)
        except GONE as error:
            self._deliveries.report(place if place >= 0 else ~place, str(error))
            return
        properties = waiting.properties
        if place < 0:
            self._cancelled[target_of(properties)] = (due_ms, place)
        elif not self._cancelled or not is_cancelled(properties, self._cancelled):
            stamps = {ENQUEUED_MS: str(waiting.store_timestamp), DEQUEUED_MS: str(now_ms)}
            self._deliveries.deliver(waiting, properties | stamps)

    def __len__(self) -> int:
        """Return how many messages are pending, cancellations included."""
        with self._lock:
            self._follow()
            return len(self._pending) + len(self._ready) // 2

    # ---- cancelling

    def cancel(self, waiting: StoredMessage, put: Callable[[Message], PutReceipt]) -> PutReceipt:
        """Cancel a pending message by putting a cancellation; NotPending if it is too late."""
        with self._lock:  # so that the message is not delivered meanwhile
            return put(self._cancellation(waiting, self._writing.log.now_ms))

    def _cancellation(self, waiting: StoredMessage, now_ms: int) -> Message:
        properties = waiting.properties
        if waiting.topic != TIMER_TOPIC or CANCELS in properties or OUT_MS not in properties:
            expected = "a timed message (deliver_at, delay_s); messages with a delay level cannot be cancelled"
            raise NotPending(waiting.physical_offset, f"a message of topic {waiting.topic}", expected)
        if UNIQUE_KEY not in properties:
            raise NotPending(waiting.physical_offset, f"a message without {UNIQUE_KEY}", "a message with that property")
        if (self._topic.due_ms(waiting) or 0) <= now_ms:
            raise NotPending(waiting.physical_offset, "a message that is already due", "a pending message")
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

    def waiting(self, limit: int) -> list[Waiting]:
        """Return the messages that are due first, without cancelled ones."""
        with self._lock:
            self._follow()
            pairs = [*self._pending, *self._rest()]
        return of_timer(self._writing.reader, pairs, limit)

    def _rest(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs outside `pending`: those not yet delivered, and cancellations that are still in force."""
        yield from zip(self._ready[::2], self._ready[1::2], strict=True)
        yield from self._cancelled.values()

    # ---- saving

    def needed_from(self) -> int:
        """Return the lowest physical offset of a pending message."""
        with self._lock:
            self._follow()
            return lowest_place(self._all_pairs())

    def keep(self) -> None:
        """Write the checkpoint, durably, if anything changed. Delivery continues meanwhile."""
        with self._keeping:
            with self._lock:
                end = self._writing.ends.appended
                if self._is_closed or (not self._moved and end - self._kept_at < KEEP_BYTES):
                    return
                pairs, next_offset, self._moved, self._kept_at = self._all_pairs(), self._next_offset, False, end
            self._checkpoints.keep(pairs, next_offset, end)

    def close(self) -> None:
        """Write the checkpoint, and a timer log of all pending messages for RocketMQ."""
        with self._keeping:
            with self._lock:
                self._follow()
                self._is_closed = True
                pairs, next_offset, end = self._all_pairs(), self._next_offset, self._writing.ends.appended
            self._checkpoints.close(pairs, next_offset, end)

    def _all_pairs(self) -> bytes:
        return self._pending.dump() + array("q", [value for pair in self._rest() for value in pair]).tobytes()
