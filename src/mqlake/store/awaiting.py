"""How asyncio programs wait: for a sync, for slaves, and for messages.

Everything here runs in the event loop's own thread. The thread that moves an end writes to an eventfd, for which it
needs no interpreter lock: a busy loop keeps it, and sees the event when it next polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqlake.errors import StoreError
from mqlake.kernel import Ends, GroupCommit
from mqlake.kernel.types import DISPATCHED, DURABLE, REPLICATED

if TYPE_CHECKING:
    from mqlake.store.dispatch import Dispatcher

SYNC_EVERY = 64
"""So many puts of one round of the loop begin a sync, before the round is over."""


class EndWaiters:
    """The futures of one event loop that wait for an end of the log, in the order of the log."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ends: Ends,
        which: int,
        timeout_s: float,
        late: Callable[[], StoreError],
    ) -> None:
        """`late` makes the error of those whose end was not reached in time."""
        self.loop = loop
        self._ends = ends
        self._timeout_s = timeout_s
        self._late = late
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._event, self._notified)
        ends.watch(which, self._event)

    def _enter(self, end: int, future: asyncio.Future[None]) -> None:
        self._waiting.append((end, time.monotonic() + self._timeout_s, future))
        if self._timer is None:
            self._timer = self.loop.call_later(self._timeout_s, self._expire)

    def _notified(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        self._settle()

    def _settle(self) -> None:
        """Answer those whose end is reached."""
        raise NotImplementedError

    def _settle_up_to(self, reached: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= reached:
            future = waiting.popleft()[2]
            if not future.done():
                future.set_result(None)

    def _expire(self) -> None:
        """Fail those that have waited for too long. Runs as long as somebody waits."""
        self._timer = None
        now = time.monotonic()
        while self._waiting and self._waiting[0][1] <= now:
            future = self._waiting.popleft()[2]
            if not future.done():
                future.set_exception(self._late())
        if self._waiting:
            self._timer = self.loop.call_later(max(self._waiting[0][1] - now, 0.001), self._expire)

    def close(self) -> None:
        """Stop watching: the loop is closed, or the store. From any thread; the loop's own thread does the rest."""
        self._ends.unwatch(self._event)
        try:
            self.loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            os.close(self._event)

    def _let_go(self) -> None:
        self.loop.remove_reader(self._event)  # first: the next file may get the same descriptor
        os.close(self._event)
        self._settle()


class LoopWaiters(EndWaiters):
    """The futures of one event loop that wait for the disk."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        group: GroupCommit,
        timeout_s: float,
        failed: Callable[[], StoreError],
        late: Callable[[], StoreError],
    ) -> None:
        """`failed` makes the error of those whose sync failed."""
        super().__init__(loop, group.ends, DURABLE, timeout_s, late)
        self._group = group
        self._failed = failed
        self._unasked = 0

    def wait(self, end: int) -> asyncio.Future[None]:
        """Return a future that is done when the log is on disk up to `end`."""
        loop = self.loop
        future: asyncio.Future[None] = loop.create_future()
        if self._group.failure:
            future.set_exception(self._failed())
            return future
        self._enter(end, future)
        if self._unasked == 0:
            loop.call_soon(self._ask)  # after the tasks that are ready now: one sync for all that they put
        self._unasked += 1
        if self._unasked % SYNC_EVERY == 0:
            self._group.request(end)
        return future

    def _ask(self) -> None:
        """Ask for a sync. One that ended before this loop watched may have covered some already: look first."""
        self._unasked = 0
        self._settle()
        if self._waiting:
            self._group.request(self._waiting[-1][0])

    def _settle(self) -> None:
        """Answer those whose sync has ended."""
        if self._group.failure:
            self._fail()
        else:
            self._settle_up_to(self._ends.durable)

    def _fail(self) -> None:
        while self._waiting:
            end, _, future = self._waiting.popleft()
            if future.done():
                continue
            if end <= self._ends.durable:
                future.set_result(None)
            else:
                future.set_exception(self._failed())


class LoopReplicas(EndWaiters):
    """The futures of one event loop that wait for slaves."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ends: Ends,
        timeout_s: float,
        missing: Callable[[int], StoreError | None],
        late: Callable[[], StoreError],
    ) -> None:
        """`missing` returns the error of a wait that would be in vain."""
        super().__init__(loop, ends, REPLICATED, timeout_s, late)
        self._missing = missing

    def wait(self, end: int) -> asyncio.Future[None]:
        """Return a future that is done when enough slaves have the log up to `end`."""
        future: asyncio.Future[None] = self.loop.create_future()
        missing = self._missing(end)
        if missing is not None:
            future.set_exception(missing)
        elif self._ends.replicated >= end:
            future.set_result(None)
        else:
            self._enter(end, future)
        return future

    def _settle(self) -> None:
        self._settle_up_to(self._ends.replicated)

    def _let_go(self) -> None:
        """No slave confirms anything once the store is closed, so nobody waits for the rest of the time."""
        super()._let_go()
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(self._late())
        self._waiting.clear()


def both(on_disk: asyncio.Future[None], at_slaves: asyncio.Future[None]) -> asyncio.Future[None]:
    """Return a future that is done when both are. If both fail, the slaves' error counts, as in RocketMQ."""
    done: asyncio.Future[None] = on_disk.get_loop().create_future()

    def settle(_: asyncio.Future[None]) -> None:
        if on_disk.done() and at_slaves.done():
            error = on_disk.exception()  # asked of both: an error that nobody asks for is reported as forgotten
            error = at_slaves.exception() or error
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    on_disk.add_done_callback(settle)
    at_slaves.add_done_callback(settle)
    return done


class LoopArrivals:
    """The tasks of one event loop that wait for messages. They share one eventfd, open while any of them waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
        self._loop = loop
        self._ends = ends
        self._tasks: set[asyncio.Event] = set()
        self._event = -1

    async def until(self, arrived: Callable[[], bool], timeout_s: float) -> None:
        """Return when a condition is true or the time is over. It is looked at whenever the dispatched end moves."""
        moved = asyncio.Event()
        try:
            self._enter(moved)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not arrived():
                        await moved.wait()
                        moved.clear()
        finally:
            self._leave(moved)

    def _enter(self, moved: asyncio.Event) -> None:
        self._tasks.add(moved)
        if self._event < 0:
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._loop.add_reader(self._event, self._notified)
            self._ends.watch(DISPATCHED, self._event)

    def _notified(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        for moved in self._tasks:
            moved.set()

    def _leave(self, moved: asyncio.Event) -> None:
        self._tasks.discard(moved)
        if not self._tasks and self._event >= 0:
            self._ends.unwatch(self._event)
            self._loop.remove_reader(self._event)
            os.close(self._event)
            self._event = -1


class QueueArrivals:
    """Tells an event loop which queues got messages. It costs nothing while it is off."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher, ends: Ends) -> None:
        self._loop = loop
        self._dispatcher = dispatcher
        self._ends = ends
        self._moved: deque[tuple[str, int]] = deque()
        self._event = -1
        self.told: Callable[[set[tuple[str, int]]], None] = lambda moved: None
        """Called in the loop's thread with the topics and ids of queues that may have grown."""

    @property
    def is_on(self) -> bool:
        return self._event >= 0

    def switch_on(self) -> None:
        """Begin to tell. A queue that grew just before is not told: look at its end after this call."""
        if self._event < 0:
            self._moved.clear()
            self._dispatcher.moved = self._moved
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._loop.add_reader(self._event, self._notified)
            self._ends.watch(DISPATCHED, self._event)

    def switch_off(self) -> None:
        if self._event >= 0:
            self._dispatcher.moved = None
            self._ends.unwatch(self._event)
            self._loop.remove_reader(self._event)
            os.close(self._event)
            self._event = -1

    def _notified(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        moved, found = self._moved, set()
        with contextlib.suppress(IndexError):  # the dispatcher adds meanwhile: what it adds now has an event of its own
            while True:
                found.add(moved.popleft())
        if found:
            self.told(found)
