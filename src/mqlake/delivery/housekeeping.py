"""What is to be done from time to time, on one thread: progress to the disk, delayed messages, checks.

A service is a method `step(now_ms) -> next due ms`. The thread only calls those that are due; a test calls `step` with
a clock of its own and needs no thread. A service that fails says so in the log and is tried again a second later: the
others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

Service = Callable[[int], int]
"""Does what is due at a time (milliseconds since 1970), and says when there is more to do."""
NEVER_MS = 1 << 62
RETRY_MS = 1_000
_log = logging.getLogger(__name__)


class Housekeeping:
    """The services of one store. Several threads may call it; one at a time steps."""

    def __init__(self) -> None:
        self._due: dict[Service, int] = {}
        self._stepping = threading.Lock()
        self._bell = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, service: Service, due_ms: int = 0) -> None:
        """Have a service called from `due_ms` on; the thread is started with the first."""
        with self._bell:
            self._due[service] = due_ms
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="mqlake-housekeeping", daemon=True)
                self._thread.start()
            self._bell.notify()

    def call_by(self, service: Service, due_ms: int) -> None:
        """Have a service called at `due_ms`, or earlier where it is due earlier."""
        with self._bell:
            if due_ms < self._due[service]:
                self._due[service] = due_ms
                self._bell.notify()

    def step(self, now_ms: int) -> int:
        """Call every service that is due; when the next one is."""
        with self._stepping:
            for service, due_ms in list(self._due.items()):
                if due_ms <= now_ms:
                    self._call(service, now_ms)
        return min(self._due.values(), default=NEVER_MS)

    def _call(self, service: Service, now_ms: int) -> None:
        self._due[service] = NEVER_MS  # first: who asks for an earlier time while it works is heard
        try:
            next_ms = service(now_ms)
        except Exception:
            _log.exception("%s failed; it is tried again in %d ms", service, RETRY_MS)
            next_ms = now_ms + RETRY_MS
        with self._bell:
            self._due[service] = min(self._due[service], next_ms)

    def _run(self) -> None:
        while not self._stopping:
            next_ms = self.step(_now_ms())
            with self._bell:
                next_ms = min(next_ms, *self._due.values())
                wait_s = (next_ms - _now_ms()) / 1000
                if wait_s > 0 and not self._stopping:
                    self._bell.wait(min(wait_s, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Stop the thread; a service that is at work ends first."""
        with self._bell:
            self._stopping = True
            self._bell.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
