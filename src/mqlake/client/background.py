"""The thread in which the clients of programs without asyncio run: one event loop for all of them.

The thread lives while a client is open. Calls pass a coroutine to it and wait. A forked child has no such thread: its
copies of the parent's clients refuse every call, and new ones get a new thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from mqlake.errors import NotPermitted
from mqlake.runtime import forks
from mqlake.runtime.locks import make_global_lock
from mqlake.runtime.workers import UNTIL_WOKEN, Worker

Value = TypeVar("Value")
LOOK_S: Final = 1.0
"""A call that waits looks this often whether the thread still runs."""
CLOSE_S: Final = 5.0
"""How long the thread waits at its end for clients that are being closed."""
_lock = make_global_lock("client.loop")


class LoopThread:
    """An event loop in a worker's thread."""

    _shared: LoopThread | None = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._users = 0
        self._is_forked = False
        self._closing: set[asyncio.Task[None]] = set()
        """Clients that are being closed, those among them that nobody got: their maker was interrupted."""
        self._worker = Worker("client", self._run, interrupt=self._interrupt)
        forks.guard(self)

    @classmethod
    def join(cls) -> LoopThread:
        """Return the running thread; start it for its first user."""
        with _lock:
            thread = cls._shared = cls._shared or cls()
            thread._worker.start()  # for its first user, and again for the next if a signal interrupted that one
            thread._users += 1
            return thread

    def leave(self) -> None:
        """One user less; the last one stops the thread."""
        if self._is_forked:
            return
        with _lock:
            self._users -= 1
            if self._users:
                return
            LoopThread._shared = None
        self._worker.stop()

    def _run(self) -> float:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self._end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
        return UNTIL_WOKEN

    async def _end_tasks(self) -> None:
        """Let clients that are being closed finish, and cancel whatever else is left."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_S)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _interrupt(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _give_up(self) -> None:
        self._is_forked = True
        LoopThread._shared = None

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, Value]],
        close: Callable[[Value], Coroutine[Any, Any, None]] | None = None,
    ) -> Value:
        """Run a coroutine in the loop and wait for its result. An interrupt of the caller cancels it.

        `close` ends what it made, if the caller was interrupted before it got it.
        """
        self._require_own_process()
        call = _Call(self.loop, work, lambda made: self._drop(made, close))
        try:
            call.begin()
            return call.wait(lambda: self._worker.is_alive)
        except BaseException:
            call.cancel()
            raise

    def _drop(self, made: Value, close: Callable[[Value], Coroutine[Any, Any, None]] | None) -> None:
        if close is not None:
            self._keep(close(made))

    def _keep(self, closing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start closing a client; the thread does not end before."""
        task = self.loop.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def end(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close a client, and wait for it. It is closed all the same if the caller is interrupted."""
        self._require_own_process()

        async def kept() -> None:
            await asyncio.shield(self._keep(closing()))

        call = _Call(self.loop, kept, lambda _: None)
        call.begin()
        call.wait(lambda: self._worker.is_alive)

    def _require_own_process(self) -> None:
        if self._is_forked:
            found = "this process was forked from the one that made the client"
            raise NotPermitted("a call in a forked child", found, "make a client of its own in the child")


class _Call(Generic[Value]):
    """A coroutine that the loop's thread runs for another thread.

    The caller may be the main thread, where a signal handler may raise at any moment. `concurrent.futures` would then
    leave a lock taken that the loop's thread waits for; here both meet in a compiled queue.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Coroutine[Any, Any, Value]],
        drop: Callable[[Value], None],
    ) -> None:
        """`drop` is called with a result that the caller did not wait for."""
        self._loop = loop
        self._work = work
        self._drop = drop
        self._task: asyncio.Task[Value] | None = None
        self._is_cancelled = False
        self._done: SimpleQueue[asyncio.Task[Value]] = SimpleQueue()

    def begin(self) -> None:
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if not self._is_cancelled:
            self._task = self._loop.create_task(self._work())
            self._task.add_done_callback(self._done.put)

    def wait(self, is_running: Callable[[], bool]) -> Value:
        while True:
            try:
                return self._done.get(timeout=LOOK_S).result()
            except Empty:
                if not is_running():
                    found = "the client's thread has ended"
                    raise NotPermitted("a call", found, "make a client before the program ends") from None

    def cancel(self) -> None:
        self._is_cancelled = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        task = self._task
        if task is None or task.cancel() or task.cancelled():
            return
        if task.exception() is None:  # it had ended before the interrupt
            self._drop(task.result())
