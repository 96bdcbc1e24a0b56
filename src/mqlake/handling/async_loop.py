"""The worker loop for asyncio: as `loop.py`, with a task for each message that is being handled.

A handler that is an `async def` is awaited; a plain function runs in a thread, so that it does not block the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from mqlake.errors import NotPermitted, StoreError
from mqlake.handling.loop import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    POLL_S,
    PROGRESS_S,
    _log,
    attempt,
    refuse_awaitable,
    report,
)
from mqlake.handling.options import Handler, Options
from mqlake.handling.stopping import SIGNALS
from mqlake.handling.tracking import RunCounts, Taken
from mqlake.message import StoredMessage


class AsyncPollable(Protocol):
    """A consumer of a group that commits by hand, for asyncio."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_ordered(self) -> bool: ...

    async def poll(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]: ...

    async def commit(self, message: StoredMessage | None = None, *, durable: bool = False) -> None: ...

    async def fail(self, message: StoredMessage, level: int = 0) -> object: ...

    async def close(self) -> None: ...


class AsyncLoop:
    """One run of a worker over an open consumer, which it closes. `run` is awaited once."""

    def __init__(self, consumer: AsyncPollable, handler: Handler, options: Options) -> None:
        self._consumer = consumer
        self._handler = handler
        self._is_async = is_async(handler)
        self._options = options
        self._is_signalled = False
        self._taken = Taken()
        self._running: set[asyncio.Task[None]] = set()
        self._poll_s = POLL_S if options.idle_s is None else min(POLL_S, options.idle_s)

    async def run(self) -> RunCounts:
        """Handle messages until the worker is to stop, then wait for the handlers that are running.

        If the task that awaits it is cancelled, so are the handlers; their messages are delivered again.
        """
        try:
            with _stopped_by_signals(self._hear):
                await self._poll_all()
                if self._running:
                    await asyncio.wait(self._running)
                self._forget_done()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            await self._consumer.close()
        counts = self._taken.counts
        if self._options.on_progress is not None:
            self._options.on_progress(counts)
        return counts

    def _hear(self) -> None:
        self._is_signalled = True

    @property
    def _is_stopping(self) -> bool:
        stop = self._options.stop
        return self._is_signalled or (stop is not None and stop.is_set()) or self._consumer.is_closed

    async def _poll_all(self) -> None:
        told_at = busy_at = time.monotonic()
        while not self._is_stopping:
            is_busy = await self._take()
            now = time.monotonic()
            if is_busy:
                busy_at = now
            elif self._options.idle_s is not None and now - busy_at >= self._options.idle_s:
                return
            if self._options.on_progress is not None and now - told_at >= PROGRESS_S:
                told_at = now
                self._options.on_progress(self._taken.counts)

    async def _take(self) -> bool:
        """Start handlers for new messages; tell whether there was something to do."""
        self._forget_done()
        free = self._options.concurrency - len(self._running)
        if not free:
            await asyncio.wait(self._running, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            return True
        messages = await self._consumer.poll(self._poll_s, 1 if self._consumer.is_ordered else free)
        self._taken.take(messages)
        self._running |= {asyncio.create_task(self._handle(message)) for message in messages}
        return bool(messages or self._running)

    def _forget_done(self) -> None:
        """Drop the handlers that have ended; raise what ended one that is no error of its message."""
        done = {each for each in self._running if each.done()}
        self._running -= done
        for each in done:
            each.result()

    async def _handle(self, message: StoredMessage) -> None:
        failure = await self._attempt(message)
        if failure is not None:
            report(message, failure, self._options.on_error)
            if not await self._give_back(message):
                return
        for last in self._taken.finish(message, failure):
            await self._consumer.commit(last)

    async def _attempt(self, message: StoredMessage) -> BaseException | None:
        """Call the handler; return what it raised, unless that ends the worker: see `loop.attempt`.

        A CancelledError is of the message unless this task was cancelled: then something that the handler awaits was.
        """
        if not self._is_async:  # what is raised in the thread is returned: a future cannot hold a StopIteration
            return await asyncio.to_thread(attempt, self._handler, message)
        task = asyncio.current_task()
        assert task is not None, "each message has its task"
        try:
            answer = await self._handler(message)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise
            return error
        refuse_awaitable(self._handler, answer)
        return None

    async def _give_back(self, message: StoredMessage) -> bool:
        """Have a failed message delivered again later; tell whether it may be committed now."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._consumer.fail(message, self._options.retry_level)
                return True
            except NotPermitted as error:
                _log.warning("%r is left to the next delivery: %s", message, error)
                return False
            except StoreError as error:
                _log.warning("%r failed and cannot be given back yet: %s", message, error)
            if self._is_stopping:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def is_async(handler: Handler) -> bool:
    """Tell whether a handler, a function or an object that is called, is an `async def`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in the event loop at the first SIGTERM or SIGINT; a second one does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def heard() -> None:
        restore()
        stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, heard)
    try:
        yield
    finally:
        restore()
