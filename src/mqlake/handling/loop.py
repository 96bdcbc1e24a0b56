"""The worker loop for plain functions: poll, call the handler, commit, and have failed messages delivered again.

The consumer may be the store's own or a client of a broker: the loop knows both by the calls that they share. With a
concurrency of 1 the handler runs in the calling thread, else in a pool of threads. At most as many messages are taken
as handlers can run, so that a worker that stops leaves none half done.

Whatever the handler raises concerns its message only, SystemExit too: a message that ends the worker would end it at
every start again. Only KeyboardInterrupt, and an exit that a second signal asks for, end the worker. If the message
cannot be given back either (a broker is away, the disk is full), that is tried again until it works or the worker
stops; then it stays uncommitted and is delivered again.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Protocol

from mqlake.errors import NotPermitted, StoreError
from mqlake.handling.options import Handler, OnError, Options
from mqlake.handling.stopping import stopped_by_signals
from mqlake.handling.tracking import RunCounts, Taken
from mqlake.message import StoredMessage
from mqlake.runtime.flag import Flag

POLL_S: Final = 0.2
"""A worker without messages looks this often whether it should stop."""
PROGRESS_S: Final = 5.0
"""Pause between two calls of `on_progress`."""
BATCH: Final = 32
"""So many messages of a queue a worker with one thread takes at a time."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
_log = logging.getLogger(__name__)


class Pollable(Protocol):
    """A consumer of a group that commits by hand."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_ordered(self) -> bool: ...

    def poll(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]: ...

    def commit(self, message: StoredMessage | None = None, *, durable: bool = False) -> None: ...

    def fail(self, message: StoredMessage, level: int = 0) -> object: ...

    def close(self) -> None: ...


class Loop:
    """One run of a worker over an open consumer, which it closes. `run` is called once."""

    def __init__(self, consumer: Pollable, handler: Handler, options: Options) -> None:
        self._consumer = consumer
        self._handler = handler
        self._options = options
        self._signalled = Flag()
        self._taken = Taken()
        self._running: set[Future[None]] = set()
        self._poll_s = POLL_S if options.idle_s is None else min(POLL_S, options.idle_s)

    def run(self) -> RunCounts:
        """Handle messages until the worker is to stop, then wait for the handlers that are running."""
        try:
            with stopped_by_signals(self._signalled.set):
                if self._options.concurrency == 1:
                    self._poll_all(self._take_and_handle)
                else:
                    with ThreadPoolExecutor(self._options.concurrency, "mqlake-handler") as pool:
                        self._poll_all(lambda: self._take_and_spread(pool))
                    self._forget_done()
        finally:
            self._consumer.close()
        counts = self._taken.counts
        if self._options.on_progress is not None:
            self._options.on_progress(counts)
        return counts

    @property
    def _is_stopping(self) -> bool:
        stop = self._options.stop
        return self._signalled.is_set() or (stop is not None and stop.is_set()) or self._consumer.is_closed

    def _poll_all(self, step: Callable[[], bool]) -> None:
        """Call `step`, which returns whether there was something to do, until the worker is to stop."""
        told_at = busy_at = time.monotonic()
        while not self._is_stopping:
            is_busy = step()
            now = time.monotonic()
            if is_busy:
                busy_at = now
            elif self._options.idle_s is not None and now - busy_at >= self._options.idle_s:
                return
            if self._options.on_progress is not None and now - told_at >= PROGRESS_S:
                told_at = now
                self._options.on_progress(self._taken.counts)

    # ---- in this thread

    def _take_and_handle(self) -> bool:
        messages = self._consumer.poll(self._poll_s, BATCH)
        for message in messages:
            if self._is_stopping:
                break
            self._taken.take([message])
            self._handle(message)
        return bool(messages)

    # ---- in a pool of threads

    def _take_and_spread(self, pool: ThreadPoolExecutor) -> bool:
        self._forget_done()
        free = self._options.concurrency - len(self._running)
        if not free:
            wait(self._running, POLL_S, FIRST_COMPLETED)
            return True
        messages = self._consumer.poll(self._poll_s, 1 if self._consumer.is_ordered else free)
        self._taken.take(messages)
        self._running |= {pool.submit(self._handle, message) for message in messages}
        return bool(messages or self._running)

    def _forget_done(self) -> None:
        """Drop the handlers that have ended; raise what ended one that is no error of its message."""
        done = {each for each in self._running if each.done()}
        self._running -= done
        for each in done:
            each.result()

    # ---- one message

    def _handle(self, message: StoredMessage) -> None:
        failure = attempt(self._handler, message)
        if failure is not None:
            if isinstance(failure, SystemExit) and self._signalled.is_set():
                raise failure  # of the program's own signal handler, at the second signal
            report(message, failure, self._options.on_error)
            if not self._give_back(message):
                return
        for last in self._taken.finish(message, failure):
            self._consumer.commit(last)

    def _give_back(self, message: StoredMessage) -> bool:
        """Have a failed message delivered again later; tell whether it may be committed now."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                self._consumer.fail(message, self._options.retry_level)
                return True
            except NotPermitted as error:
                _log.warning("%r is left to the next delivery: %s", message, error)
                return False
            except StoreError as error:
                _log.warning("%r failed and cannot be given back yet: %s", message, error)
            if self._stops_within(pause_s):
                return False
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _stops_within(self, seconds: float) -> bool:
        """Rest; return at once, and True, if the worker is to stop."""
        until = time.monotonic() + seconds
        while not self._is_stopping:
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._signalled.wait(min(left, POLL_S))
        return True


def attempt(handler: Handler, message: StoredMessage) -> BaseException | None:
    """Call a plain function; return what it raised. KeyboardInterrupt is not of the message, and is raised."""
    try:
        answer = handler(message)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    refuse_awaitable(handler, answer)
    return None


def report(message: StoredMessage, error: BaseException, on_error: OnError | None) -> None:
    """Tell the program of a handler's exception; without `on_error`, log it."""
    if on_error is None:
        _log.warning("the handler failed for %r: it is delivered again later", message, exc_info=error)
        return
    try:
        on_error(message, error)
    except Exception:
        _log.exception("on_error failed for %r", message)


def refuse_awaitable(handler: Handler, answer: object) -> None:
    """Raise TypeError if a plain function returned something to await: it would never run."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"the handler {handler!r} returned an awaitable; make it an `async def`")
