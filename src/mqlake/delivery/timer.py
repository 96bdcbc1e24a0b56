"""Messages for a moment: in RocketMQ's timer topic until then, in their own queue from then on.

The topic `rmq_sys_wheel_timer` is the truth. What is pending of it (when, and where in the log) is kept in memory,
written to `mqlake/timer` from time to time, and made again from the topic where that is not to be believed.

Nothing comes before its millisecond. What cancels a message is a message too, in the same unit of time and looked at
before all others of it, as in RocketMQ: so a cancellation survives what the cancelled one survives.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator

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
from mqlake.delivery.system_topics import TIMER_TOPIC
from mqlake.delivery.timer_files import Check
from mqlake.delivery.timer_keeping import TimerKeeper
from mqlake.delivery.timer_topic import TimerTopic, names_of
from mqlake.delivery.waiting import Waiting, of_timer
from mqlake.errors import NotPending
from mqlake.kernel import lowest_place
from mqlake.message import Message, PutReceipt, StoredMessage
from mqlake.store.engine import Engine

BATCH_COUNT = 1_000
"""Messages that one step delivers: the others have a turn in between."""
KEEP_BYTES = 64 << 20
"""The checkpoint is written again, though nothing was delivered, when the log grew by so much."""


class Timer:
    """Follows the timer topic and delivers what is due. Several threads may call it."""

    def __init__(self, engine: Engine, deliveries: Deliveries) -> None:
        self._engine = engine
        self._deliveries = deliveries
        self._config = engine.config.timer
        self._topic = TimerTopic(engine, deliveries.report)
        self._keeper = TimerKeeper(engine, self._topic)
        self._lock = threading.Lock()
        self._keeping = threading.Lock()
        self._is_closed = False
        self._pending = Pending()
        self._next_number = 0
        self._ready = memoryview(b"").cast("q")
        """Pairs that were taken out of `pending` and are not yet delivered."""
        self._cancelled: dict[str, tuple[int, int]] = {}
        """Names of messages that are not to be delivered, with the pair of what cancels each."""
        self._moved = False
        self._kept_at = 0
        self._open()
        engine.keepers.append(self.keep)

    # ---- opening

    def _open(self) -> None:
        """Take up what is pending: from the checkpoint, if nobody else delivered since, else from the topic."""
        check, saved = Check.read(self._engine.layout), timer_files.load(self._engine.layout)
        if (
            saved is not None
            and check.crc in saved.rocketmq
            and saved.next_number <= self._topic.range()[1]
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
        first, end = self._topic.range()
        self._next_number = max(first, min(check.queue_offset, end))
        places = [self._topic.place_of(self._next_number)[0]] if self._next_number < end else [self._engine.log.end]
        for offset in timer_files.waiting_units(self._engine.layout, check):
            try:
                message = self._engine.reader.get(offset)
            except GONE as error:
                self._deliveries.report(offset, str(error))
                continue
            if message.topic == TIMER_TOPIC and message.queue_offset < self._next_number:
                self._pending.add(self._topic.read(message.queue_offset, message.queue_offset + 1)[0])
                places.append(offset)
        self._moved, self._kept_at = True, min(places)

    def _follow(self) -> None:
        """Look at what came to the topic since the last time."""
        first, end = self._topic.range()
        self._next_number = max(self._next_number, first)
        while self._next_number < end:
            pairs, self._next_number = self._topic.read(self._next_number, end)
            self._pending.add(pairs)
            self._moved = True

    # ---- delivering

    def step(self, now_ms: int) -> int:
        """Deliver a batch of what is due; when the next is, `now_ms` where there is more now."""
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
            # A cancellation is over with its unit of time: all that was due in it is through.
            over_ms = now_ms - self._config.precision_ms
            self._cancelled = {name: pair for name, pair in self._cancelled.items() if pair[0] > over_ms}
            return min(self._pending.next_ms, NEVER_MS)

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

    def __len__(self) -> int:
        """How many are pending, cancellations included."""
        with self._lock:
            self._follow()
            return len(self._pending) + len(self._ready) // 2

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
        if (self._topic.due_ms(waiting) or 0) <= now_ms:
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

    def waiting(self, limit: int) -> list[Waiting]:
        """The messages that are due first, without those that are cancelled."""
        with self._lock:
            self._follow()
            pairs = [*self._pending, *self._rest()]
        return of_timer(self._engine.reader, pairs, limit)

    def _rest(self) -> Iterator[tuple[int, int]]:
        """Pairs beside `pending`: not yet delivered, and cancellations that still count."""
        yield from zip(self._ready[::2], self._ready[1::2], strict=True)
        yield from self._cancelled.values()

    # ---- keeping

    def needed_from(self) -> int:
        """Where in the log the first message lies that is still to be delivered."""
        with self._lock:
            self._follow()
            return lowest_place(self._all_pairs())

    def keep(self) -> None:
        """Write the checkpoint, durably, if something changed. Messages are delivered meanwhile."""
        with self._keeping:
            with self._lock:
                end = self._engine.log.end
                if self._is_closed or (not self._moved and end - self._kept_at < KEEP_BYTES):
                    return
                pairs, number, self._moved, self._kept_at = self._all_pairs(), self._next_number, False, end
            self._keeper.keep(pairs, number, end)

    def close(self) -> None:
        """Write the checkpoint, and for RocketMQ a timer log of what is pending."""
        with self._keeping:
            with self._lock:
                self._follow()
                self._is_closed = True
                pairs, number, end = self._all_pairs(), self._next_number, self._engine.log.end
            self._keeper.close(pairs, number, end)

    def _all_pairs(self) -> bytes:
        return self._pending.dump() + array("q", [number for pair in self._rest() for number in pair]).tobytes()
