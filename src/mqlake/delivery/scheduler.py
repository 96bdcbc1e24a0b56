"""Messages for later: delay levels and timed messages, on the store's own clock.

A service of `delivery/housekeeping.py`. It begins to work when the first message for later is put, or at opening where
the store holds some; it is called when the next is due, and a moment after one is put, to learn of it.
"""

from __future__ import annotations

import threading
import time

from mqlake.delivery.config_file import ConfigFile
from mqlake.delivery.delay import DelayLevels
from mqlake.delivery.deliveries import Deliveries
from mqlake.delivery.housekeeping import NEVER_MS, Housekeeping
from mqlake.delivery.offsets import DelayOffsets
from mqlake.delivery.pending import NEVER
from mqlake.delivery.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from mqlake.delivery.timer import Timer
from mqlake.delivery.timer_keeping import GATE as TIMER_GATE
from mqlake.delivery.waiting import Waiting, in_order
from mqlake.store.engine import Engine

LOOK_MS = 500
"""A message for later is looked at so soon after it is put, or when it is due."""
POLL_MS = 20
"""Pause between looks for one that is due and not yet to be seen: its sync goes on."""
KEEP_MS = 5_000
"""Pause between two writings of delay levels' progress."""


class Scheduler:
    """Owns what delivers later. Several threads may call it."""

    def __init__(self, engine: Engine, housekeeping: Housekeeping) -> None:
        self._engine = engine
        self._housekeeping = housekeeping
        self._lock = threading.RLock()
        self.deliveries = Deliveries(engine)
        self._levels: DelayLevels | None = None
        self._timer: Timer | None = None
        self._awaited = 0
        """Where the log ended behind the last message for later that was put."""
        self._wake_ms = NEVER_MS
        """`step` is called by then; `NEVER_MS` while it works, and when nothing is to be done."""
        self._keep_ms = 0
        self._is_running = False
        engine.retention.needs |= {"delay": self._levels_need, TIMER_GATE: self._timer_needs}

    def start(self) -> None:
        """Go on with what the store holds already."""
        with self._lock:
            self._open_what_waits()
            if self._levels is not None or self._timer is not None:
                self._run(0)

    def stored(self, due_ms: int) -> None:
        """A message for later is in the log. Called under the log's lock."""
        self._awaited = self._engine.log.end
        wake_ms = min(_now_ms() + LOOK_MS, due_ms)
        if wake_ms < self._wake_ms:
            self._run(wake_ms)

    def _run(self, due_ms: int) -> None:
        self._wake_ms = min(self._wake_ms, due_ms)
        if not self._is_running:
            self._is_running = True
            self._housekeeping.add(self.step, due_ms)
        else:
            self._housekeeping.call_by(self.step, due_ms)

    def _open_what_waits(self) -> None:
        self._engine.settle()
        if self._levels is None and self._engine.queues.queue_ids(SCHEDULE_TOPIC):
            layout = self._engine.layout
            offsets = DelayOffsets(ConfigFile(layout.config / "delayOffset.json", layout.scratch))
            self._levels = DelayLevels(self._engine, offsets, self.deliveries)
        if self._timer is None and self._engine.queues.queue_ids(TIMER_TOPIC):
            self._timer = Timer(self._engine, self.deliveries)

    def step(self, now_ms: int) -> int:
        """Deliver what is due, a batch at a time; when there is more to do."""
        with self._lock:
            self._wake_ms = NEVER_MS
            awaited, count = self._awaited, self.deliveries.count
            self._open_what_waits()
            try:
                next_ms = min(
                    self._levels.step(now_ms) if self._levels is not None else NEVER_MS,
                    self._timer.step(now_ms) if self._timer is not None else NEVER_MS,
                )
            finally:
                if self.deliveries.count > count:
                    self._engine.publish()
            next_ms = min(next_ms, self._keep_if_due(now_ms))
            if self._engine.dispatcher.dispatched < awaited:
                next_ms = min(next_ms, now_ms + POLL_MS)
            self._wake_ms = min(self._wake_ms, next_ms)
            return next_ms

    def _keep_if_due(self, now_ms: int) -> int:
        """Write the levels' progress from time to time; when the next time is. The timer's goes with checkpoints."""
        if self._levels is None:
            return NEVER_MS
        if now_ms >= self._keep_ms:
            self._keep_ms = now_ms + (KEEP_MS if self._levels.keep() else LOOK_MS)
        return self._keep_ms

    def timer(self) -> Timer:
        """The timed messages."""
        with self._lock:
            if self._timer is None:
                self._timer = Timer(self._engine, self.deliveries)
            return self._timer

    def waiting(self, limit: int) -> list[Waiting]:
        """The messages that are delivered next, the first one first."""
        with self._lock:
            self._open_what_waits()
            found = self._levels.waiting(limit) if self._levels is not None else []
            return in_order(found + (self._timer.waiting(limit) if self._timer is not None else []), limit)

    # ---- the log is kept for what waits; retention asks, holding its lock, so ours is not taken

    def _levels_need(self) -> int:
        levels = self._levels
        return levels.needed_from() if levels is not None else self._first_of(SCHEDULE_TOPIC)

    def _timer_needs(self) -> int:
        timer = self._timer
        return timer.needed_from() if timer is not None else self._first_of(TIMER_TOPIC)

    def _first_of(self, topic: str) -> int:
        """All that is in a topic that nobody looked at yet waits: it was put since the store was opened."""
        first = self._engine.log.first_offset
        queues = [self._engine.queues.get(topic, i) for i in self._engine.queues.queue_ids(topic)]
        entries = [queue.entry(queue.first_offset(first)) for queue in queues if queue.first_offset(first) < queue.end]
        return min((entry.physical_offset for entry in entries if entry is not None), default=NEVER)

    def close(self) -> None:
        """Write progress; nothing is delivered from here on."""
        with self._lock:
            if self._is_running:
                self._open_what_waits()
            if self._levels is not None:
                self._levels.keep(wait=True)
            if self._timer is not None:
                self._timer.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
