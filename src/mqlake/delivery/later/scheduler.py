"""Schedules delayed delivery: calls the delay levels and the timer when their next message is due.

A service of `delivery/housekeeping.py`. It starts with the first delayed message that is put, or at opening if the
store holds any. It is called when the next message is due, and shortly after each put of a delayed message, to read it.
"""

from __future__ import annotations

from mqlake.delivery.housekeeping import NEVER_MS, Housekeeping
from mqlake.delivery.later.delay import DelayLevels
from mqlake.delivery.later.deliveries import Deliveries
from mqlake.delivery.later.pending import NEVER
from mqlake.delivery.later.timer import Timer
from mqlake.delivery.later.timer_keeping import GATE as TIMER_GATE
from mqlake.delivery.later.waiting import Waiting, in_order
from mqlake.delivery.registry.config_file import ConfigFile
from mqlake.delivery.registry.offsets import DelayOffsets
from mqlake.delivery.registry.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from mqlake.runtime.locks import make_lock, make_rlock
from mqlake.store.ports import Writing

LOOK_MS = 500
"""A delayed message is read from its holding topic this long after its put, or when it is due if that is earlier."""
POLL_MS = 20
"""Pause between looks for a message that is appended but not yet dispatched, because its sync is not finished."""
KEEP_MS = 5_000
"""Pause between two writes of the delay levels' progress."""


class Scheduler:
    """Owns the delay levels and the timer. Any thread may call it."""

    def __init__(self, writing: Writing, housekeeping: Housekeeping) -> None:
        self._writing = writing
        self._housekeeping = housekeeping
        self._lock = make_rlock("scheduler")
        self._waking = make_lock("scheduler.wake")
        self.deliveries = Deliveries(writing)
        self._levels: DelayLevels | None = None
        self._timer: Timer | None = None
        self._awaited = 0
        """The appended end after the last put of a delayed message."""
        self._wake_ms = NEVER_MS
        """`step` is called at this time at the latest; `NEVER_MS` while it runs, and if nothing is pending."""
        self._kept_ms = self._keep_ms = 0
        self._is_running = False

    def start(self) -> None:
        """Keep the log for pending messages, and start delivering if there are any."""
        self._writing.retention.needs |= {"delay": self._levels_need, TIMER_GATE: self._timer_needs}
        with self._lock:
            self._open_pending()
            if self._levels is not None or self._timer is not None:
                self._run(0)

    def begin(self) -> None:
        """Run from now on. Called before a delayed message is put: if that is interrupted, it may be in the log, and
        nobody else would start the worker that delivers it. Once started, the worker looks every second.
        """
        if not self._is_running:
            self._run(self._writing.log.now_ms + LOOK_MS)

    def stored(self, due_ms: int) -> None:
        """Wake the scheduler in time for a delayed message that is now in the log. Called by the thread that put it."""
        self._awaited = self._writing.ends.appended
        wake_ms = min(self._writing.log.now_ms + LOOK_MS, due_ms)
        if wake_ms < self._wake_ms:
            self._run(wake_ms)

    def _run(self, due_ms: int) -> None:
        with self._waking:  # any thread that puts a delayed message comes here: one of them starts the worker
            if not self._is_running:
                self._housekeeping.add("scheduler", self.step, due_ms, by_clock=True)
                self._is_running = True
            else:
                self._housekeeping.call_by(self.step, due_ms)
            self._wake_ms = min(self._wake_ms, due_ms)  # last: a put after an interrupted one wakes again

    def _open_pending(self) -> None:
        self._writing.settle()
        if self._levels is None and self._writing.queues.queue_ids(SCHEDULE_TOPIC):
            layout = self._writing.layout
            offsets = DelayOffsets(ConfigFile(layout.config / "delayOffset.json", layout.scratch))
            self._levels = DelayLevels(self._writing, offsets, self.deliveries)
        if self._timer is None and self._writing.queues.queue_ids(TIMER_TOPIC):
            self._timer = Timer(self._writing, self.deliveries)

    def step(self, now_ms: int) -> int:
        """Deliver a batch of due messages; return when to call again."""
        with self._lock:
            self._wake_ms = NEVER_MS
            awaited, count = self._awaited, self.deliveries.count
            self._open_pending()
            try:
                next_ms = min(
                    self._levels.step(now_ms) if self._levels is not None else NEVER_MS,
                    self._timer.step(now_ms) if self._timer is not None else NEVER_MS,
                )
            finally:
                if self.deliveries.count > count:
                    self._writing.publish()
            next_ms = min(next_ms, self._keep_if_due(now_ms))
            if self._writing.ends.dispatched < awaited:
                next_ms = min(next_ms, now_ms + POLL_MS)
            self._wake_ms = min(self._wake_ms, next_ms)
            return next_ms

    def _keep_if_due(self, now_ms: int) -> int:
        """Write the levels' progress if it is time; return when to write next. Checkpoints write the timer's."""
        if self._levels is None:
            return NEVER_MS
        if not self._kept_ms <= now_ms < self._keep_ms:  # also if the clock was set back
            self._kept_ms, self._keep_ms = now_ms, now_ms + (KEEP_MS if self._levels.keep() else LOOK_MS)
        return self._keep_ms

    def timer(self) -> Timer:
        """Return the timer, opening it on first use."""
        with self._lock:
            if self._timer is None:
                self._timer = Timer(self._writing, self.deliveries)
            return self._timer

    def waiting(self, limit: int) -> list[Waiting]:
        """Return the messages that are delivered next, in that order."""
        with self._lock:
            self._open_pending()
            found = self._levels.waiting(limit) if self._levels is not None else []
            return in_order(found + (self._timer.waiting(limit) if self._timer is not None else []), limit)

    # ---- gates: retention keeps the log from here on. It calls these under its own lock, so they do not take ours

    def _levels_need(self) -> int:
        levels = self._levels
        return levels.needed_from() if levels is not None else self._first_of(SCHEDULE_TOPIC)

    def _timer_needs(self) -> int:
        timer = self._timer
        return timer.needed_from() if timer is not None else self._first_of(TIMER_TOPIC)

    def _first_of(self, topic: str) -> int:
        """Return the physical offset of a topic's first message, for a topic that is not opened yet.

        All its messages are pending then: they were put since the store was opened.
        """
        first = self._writing.log.first_offset
        queues = [self._writing.queues.get(topic, i) for i in self._writing.queues.queue_ids(topic)]
        entries = [queue.entry(queue.first_offset(first)) for queue in queues if queue.first_offset(first) < queue.end]
        return min((entry.physical_offset for entry in entries if entry is not None), default=NEVER)

    def close(self) -> None:
        """Write progress. Nothing is delivered afterwards."""
        with self._lock:
            if self._is_running:
                self._open_pending()
            if self._levels is not None:
                self._levels.keep(wait=True)
            if self._timer is not None:
                self._timer.close()
