"""How asyncio programs wait: for a sync, and for messages.

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

from mqlake.errors import StoreError
from mqlake.kernel import Ends, GroupCommit
from mqlake.kernel.types import DISPATCHED, DURABLE

SYNC_EVERY = 64
"""So many puts of one round of the loop begin a sync, before the round is over."""


class LoopWaiters:
    """The futures of one event loop that wait for the disk, in the order of the log."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        group: GroupCommit,
        timeout_s: float,
        failed: Callable[[], StoreError],
        late: Callable[[], StoreError],
    ) -> None:
        """`failed` and `late` make the errors of those whose sync failed, or did not end in time."""
        self.loop = loop
        self._group = group
        self._ends = group.ends
        self._timeout_s = timeout_s
        self._failed = failed
        self._late = late
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._unasked = 0
        self._timer: asyncio.TimerHandle | None = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._event, self._notified)
        self._ends.watch(DURABLE, self._event)

    def wait(self, end: int) -> asyncio.Future[None]:
        """Return a future that is done when the log is on disk up to `end`."""
        loop = self.loop
        future: asyncio.Future[None] = loop.create_future()
        if self._group.failure:
            future.set_exception(self._failed())
            return future
        self._waiting.append((end, time.monotonic() + self._timeout_s, future))
        if self._unasked == 0:
            loop.call_soon(self._ask)  # after the tasks that are ready now: one sync for all that they put
            if self._timer is None:
                self._timer = loop.call_later(self._timeout_s, self._expire)
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

    def _notified(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        self._settle()

    def _settle(self) -> None:
        """Answer those whose sync has ended."""
        if self._group.failure:
            self._fail()
            return
        durable = self._ends.durable
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable:
            future = waiting.popleft()[2]
            if not future.done():
                future.set_result(None)

    def _fail(self) -> None:
        while self._waiting:
            end, _, future = self._waiting.popleft()
            if future.done():
                continue
            if end <= self._ends.durable:
                future.set_result(None)
            else:
                future.set_exception(self._failed())

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
        self._enter(moved)
        try:
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
