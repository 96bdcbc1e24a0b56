"""An event that signal handlers may set.

`threading.Event` takes its lock in Python code, and Python runs signal handlers between any two instructions of the
main thread. A handler that sets such an event while the main thread waits on it can find the lock taken, for ever; one
that raises there can leave it taken. `Flag` has no state that can be left half changed.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from mqlake.runtime.locks import LOOK_S


class Flag(threading.Event):
    """Unset, then set for good. Any thread may wait on it, and any thread or signal handler may set it."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._gate = threading.Lock()  # compiled; taken until the flag is set
        self._gate.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with suppress(RuntimeError):  # it was set before
            self._gate.release()

    def clear(self) -> None:
        raise NotImplementedError("a flag stays set")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or the time is over; return whether it is set."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = LOOK_S if until is None else min(LOOK_S, until - time.monotonic())
            if left <= 0:
                return False
            if self._gate.acquire(timeout=left):  # a handler that raises here keeps it: the others look again soon
                self._gate.release()
        return True
