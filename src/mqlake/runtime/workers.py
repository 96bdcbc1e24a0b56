"""Supervised background threads.

Every thread of a store is a `Worker`. It calls one function again and again; the function returns how many seconds the
worker may rest before the next call. `wake` ends a rest early. All waits use the monotonic clock.

When the function raises, the worker looks at the error:

- an error that can pass (no space, no descriptor, no memory, an interrupted call) makes it retry with growing pauses.
  Meanwhile its state is `retrying`, and the health report shows the error and since when;
- any other error ends it. Its state is `failed`, and `on_failure` notifies the store, which passes the error on to
  everyone who waits for this worker. Nothing is swallowed.

A worker that nobody waits for (`keeps_trying`: the checkpoint, retention) retries after every error: it may work again
once somebody mended the cause, and until then the health report shows it.
"""

from __future__ import annotations

import enum
import errno
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from mqlake.errors import FileFailed, NotConfirmed, StoreError, is_passing
from mqlake.runtime.whole import make_whole

FIRST_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 2.0
UNTIL_WOKEN: Final = math.inf
_log = logging.getLogger(__name__)


class State(enum.StrEnum):
    """What a worker is doing."""

    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """One line of the health report."""

    name: str
    state: State
    since_ms: int
    """When it entered this state; milliseconds since 1970."""
    error: str | None = None
    """The last error; it stays while the worker retries or has failed."""
    error_count: int = 0
    """Errors since the store was opened."""
    behind_bytes: int | None = None
    """How much of the log it has still to process; None if the worker does not follow the log."""


def can_pass(error: BaseException) -> bool:
    """Return whether an error may go away by itself: full disk, used-up descriptors or memory, a late sync or slave."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError | NotConfirmed) or (isinstance(seen, Exception) and is_passing(seen)):
            return True
        seen = seen.__cause__
    return False


class Worker:
    """One background thread. Made by `Workers.add`; any thread may call it."""

    def __init__(
        self,
        name: str,
        work: Callable[[], float],
        *,
        interrupt: Callable[[], None] | None = None,
        on_trouble: Callable[[], None] | None = None,
        on_failure: Callable[[Exception], None] | None = None,
        behind: Callable[[], int] | None = None,
        keeps_trying: bool = False,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`interrupt` ends a wait inside `work`. `on_trouble` is called after every error, `on_failure` with the error
        that ends the worker. `behind` returns how many bytes of the log are left to process.
        """
        self.name = name
        self._work = work
        self._interrupt = interrupt
        self._on_trouble = on_trouble
        self._on_failure = on_failure
        self._behind = behind
        self._keeps_trying = keeps_trying
        self._on_change = on_change
        # Compiled, unlike a condition: a signal handler that raises in `wake` cannot leave it half done.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self.stopping = False
        self.state = State.STOPPED
        self.error: Exception | None = None
        """Why it retries or has failed; None while it runs."""
        self.error_count = 0
        """Errors since it was started."""
        self._since_ms = _now_ms()
        self.is_alive = False
        """Our own note: `Thread.is_alive` takes a running thread for a stopped one after a signal interrupted it."""
        self._begun = threading.Event()
        self._order = deque([None])
        """The order to start; whoever takes it does."""
        self._thread = threading.Thread(target=self._live, name=f"mqlake-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it was started. After an interrupt, call again: that starts it if it never began."""
        make_whole(self._start)

    def _start(self) -> None:
        try:
            self._order.pop()
        except IndexError:
            return
        if self.stopping:  # an interrupted start comes late
            return
        self._enter(State.RUNNING, None)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._enter(State.STOPPED, None)
            self._order.append(None)
            raise FileFailed(Path(f"thread {self._thread.name}"), "started", errno.EAGAIN, str(error)) from error
        self._begun.wait()  # who asks right after this returns must not take the worker's part

    @property
    def is_troubled(self) -> bool:
        """Return whether the last call failed: then nothing can be expected from this worker now."""
        return self.error is not None

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs on this worker's thread."""
        return self._thread is threading.current_thread()

    def wake(self) -> None:
        """Call the function now, or again if it is running."""
        if self._calls.empty():  # else it has still to take the call before this one, and then sees all of it
            self._calls.put(None)

    def _live(self) -> None:
        self.is_alive = True
        self._begun.set()
        try:
            self._run()
        finally:
            self.is_alive = False

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while not self.stopping:
            try:
                rest = self._work()
            except Exception as error:
                passes = self._keeps_trying or can_pass(error)
                if self.stopping and passes:
                    break
                if not passes:
                    self._fail(error)
                    return
                self._note(error)
                self._rest(pause)
                pause = min(pause * 2, MAX_PAUSE_S)
                continue
            if self.error is not None:
                _log.info("%s continues", self.name)
                self._enter(State.RUNNING, None)
            pause = FIRST_PAUSE_S
            self._rest(rest)
        self._enter(State.STOPPED, self.error)

    def _rest(self, seconds: float) -> None:
        if seconds <= 0 or self.stopping:
            return
        try:
            self._calls.get(timeout=None if seconds == UNTIL_WOKEN else min(seconds, threading.TIMEOUT_MAX))
        except Empty:
            pass

    def _note(self, error: Exception) -> None:
        if self.error is None:
            _log.error("%s: %s; retrying until it works", self.name, error)
        self.error_count += 1
        self._enter(State.RETRYING, error)
        if self._on_trouble is not None:
            self._on_trouble()

    def _fail(self, error: Exception) -> None:
        # What the system or a file did needs no traceback: only a mistake of our own is looked for in the code.
        is_expected = isinstance(error, StoreError | OSError)
        _log.error("%s stopped for good: %s", self.name, error, exc_info=None if is_expected else error)
        self.error_count += 1
        self._enter(State.FAILED, error)
        if self._on_failure is not None:
            self._on_failure(error)
        if self._on_trouble is not None:
            self._on_trouble()

    def _enter(self, state: State, error: Exception | None) -> None:
        changed = state != self.state
        self.error = error
        if changed:
            self.state = state
            self._since_ms = _now_ms()
            if self._on_change is not None:
                self._on_change()

    def health(self) -> WorkerHealth:
        return WorkerHealth(
            self.name,
            self.state,
            self._since_ms,
            None if self.error is None else str(self.error) or type(self.error).__name__,
            self.error_count,
            None if self._behind is None else max(0, self._behind()),
        )

    def stop(self) -> None:
        """Let the current call finish, then end the thread. Its own thread may call this too."""
        self.stopping = True
        self._calls.put(None)
        if self._interrupt is not None:
            self._interrupt()
        if self.is_alive and not self.is_current:
            self._thread.join()


class Workers:
    """The workers of one store."""

    def __init__(self, on_change: Callable[[], None] | None = None) -> None:
        """`on_change` is called, from any of the threads, when a worker changes its state."""
        self._on_change = on_change
        self._workers: list[Worker] = []

    def add(
        self,
        name: str,
        work: Callable[[], float],
        *,
        interrupt: Callable[[], None] | None = None,
        on_trouble: Callable[[], None] | None = None,
        on_failure: Callable[[Exception], None] | None = None,
        behind: Callable[[], int] | None = None,
        keeps_trying: bool = False,
    ) -> Worker:
        """Create a worker and supervise it; `start` starts it."""
        worker = Worker(
            name,
            work,
            interrupt=interrupt,
            on_trouble=on_trouble,
            on_failure=on_failure,
            behind=behind,
            keeps_trying=keeps_trying,
            on_change=self._on_change,
        )
        self._workers.append(worker)
        return worker

    def __iter__(self) -> Iterator[Worker]:
        return iter(tuple(self._workers))

    def health(self) -> tuple[WorkerHealth, ...]:
        return tuple(worker.health() for worker in self)

    def include_current(self) -> bool:
        """Tell whether the caller runs on the thread of one of these workers."""
        return any(worker.is_current for worker in self)

    def stop(self) -> None:
        for worker in self:
            worker.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
