"""Periodic services of delivery: write progress, deliver delayed messages, check transactions. Each has one worker.

A service is a method `step(now_ms) -> next due ms`, in milliseconds since 1970. Its worker calls it when it is due. A
test calls `Housekeeping.step` with its own clock and needs no thread. Between calls the worker waits on the monotonic
clock: a service that asks for a call in five seconds gets it in five seconds, even if the wall clock is set meanwhile.
A service whose next call depends on the wall clock (`by_clock`: a message is due at a time of day) is called at least
once a second, so that it notices when the wall clock is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mqlake.runtime.locks import make_lock
from mqlake.runtime.whole import make_whole
from mqlake.runtime.workers import UNTIL_WOKEN, State, Worker, Workers

Step = Callable[[int], int]
"""Does what is due at the given time and returns when it must be called next, both in milliseconds since 1970."""
Clock = Callable[[], int]
"""Returns the time in milliseconds since 1970."""
NEVER_MS: Final = 1 << 62
LOOK_S: Final = 1.0
"""A service that depends on the wall clock is called at least this often."""


class Service:
    """One service and the time of its next call."""

    def __init__(self, step: Step, due_ms: int, now_ms: Clock, *, by_clock: bool) -> None:
        self._now_ms = now_ms
        self.step = step
        self.by_clock = by_clock
        self._lock = make_lock("housekeeping")
        self.due_ms = due_ms
        self._due_at = self._at(due_ms)
        """The same time on the monotonic clock. The worker waits for this one."""
        self.worker: Worker | None = None

    def call_by(self, due_ms: int) -> None:
        at = self._at(due_ms)
        with self._lock:
            if at >= self._due_at:
                return
            self.due_ms, self._due_at = due_ms, at
        if self.worker is not None:
            self.worker.wake()

    def work(self) -> float:
        """Call the step if it is due; return how many seconds the worker may rest."""
        if self._due_at <= time.monotonic():
            self.call(self._now_ms())
        return max(0.0, self._due_at - time.monotonic())

    def call(self, now_ms: int) -> None:
        before = self.due_ms, self._due_at
        with self._lock:
            self.due_ms, self._due_at = NEVER_MS, UNTIL_WOKEN  # before the step: a `call_by` during it must count
        try:
            next_ms = self.step(now_ms)
        except BaseException:
            self.due_ms, self._due_at = before  # the worker decides whether to retry
            raise
        wait_s = max(0.0, (next_ms - now_ms) / 1000)
        if self.by_clock:
            wait_s = min(wait_s, LOOK_S)
        with self._lock:
            self.due_ms = min(self.due_ms, next_ms)
            self._due_at = min(self._due_at, time.monotonic() + wait_s)

    def _at(self, due_ms: int) -> float:
        return time.monotonic() + max(0.0, (due_ms - self._now_ms()) / 1000)


class Housekeeping:
    """The services of one store. Any thread may call it."""

    def __init__(self, workers: Workers | None, now_ms: Clock | None = None) -> None:
        """Without `workers` (in a reader or a test) no service runs on its own. `now_ms` is the store's clock."""
        self._now_ms = now_ms or _machine_ms
        self._workers = workers
        self._services: dict[Step, Service] = {}
        self._closed = False
        self._lock = make_lock("services")

    def add(self, name: str, step: Step, due_ms: int = 0, *, by_clock: bool = False) -> None:
        """Register a service and start its worker under this name; the first call is at `due_ms`.

        An interrupt leaves it registered with its worker, or not begun. So a caller that notes that it has done this
        does so afterwards, and may come again: then the service keeps its worker.
        """
        make_whole(lambda: self._add(name, step, due_ms, by_clock))

    def _add(self, name: str, step: Step, due_ms: int, by_clock: bool) -> None:
        with self._lock:
            service = self._services.get(step)
            if service is None:
                service = self._services[step] = Service(step, due_ms, self._now_ms, by_clock=by_clock)
            if self._workers is not None and not self._closed:
                service.worker = service.worker or self._workers.add(name, service.work)
                service.worker.start()
        service.call_by(due_ms)

    def call_by(self, step: Step, due_ms: int) -> None:
        """Call a service at `due_ms` at the latest."""
        self._services[step].call_by(due_ms)

    def step(self, now_ms: int) -> int:
        """Call every service that is due at `now_ms`; return when the next one is. For tests, with their own clock."""
        for service in list(self._services.values()):
            if service.due_ms <= now_ms:
                service.call(now_ms)
        return min((service.due_ms for service in self._services.values()), default=NEVER_MS)

    def catch_up(self) -> None:
        """Do what is due by the clock, in the calling thread, until nothing is: the clock was moved.

        A worker may be in a step with the old time; the services' own locks make this one come after it.
        """
        for service in list(self._services.values()):
            next_ms = 0
            while service.by_clock and next_ms <= self._now_ms():
                next_ms = service.step(self._now_ms())
            if service.by_clock:
                service.call_by(next_ms)

    @property
    def failure(self) -> Exception | None:
        """The error that stopped a service for good; None if no service has failed."""
        workers = (service.worker for service in list(self._services.values()))
        return next((each.error for each in workers if each is not None and each.state is State.FAILED), None)

    def close(self) -> None:
        """Stop the workers. A step that is running finishes first."""
        with self._lock:
            self._closed = True
        for service in list(self._services.values()):
            if service.worker is not None:
                service.worker.stop()


def _machine_ms() -> int:
    return time.time_ns() // 1_000_000
