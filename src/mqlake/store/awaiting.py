"""How asyncio programs wait for a sync: futures, and a bell that the kernel rings.

Everything here runs in the event loop's own thread. The thread that syncs rings an eventfd, for which it needs no
interpreter lock: a busy loop is not made to give it up, and sees the bell when it next looks for events.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable

from mqlake.errors import StoreError
from mqlake.kernel import GroupCommit

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
        """`failed` and `late` make the errors of those whose sync failed, or did not come in time."""
        self.loop = loop
        self._group = group
        self._timeout_s = timeout_s
        self._failed = failed
        self._late = late
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._unasked = 0
        self._timer: asyncio.TimerHandle | None = None
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._bell, self._ring)
        group.watch(self._bell)

    def wait(self, end: int) -> asyncio.Future[None]:
        """A future that is done when the log is on the disk up to `end`."""
        loop = self.loop
        future: asyncio.Future[None] = loop.create_future()
        if self._group.failure:
            future.set_exception(self._failed())
            return future
        self._waiting.append((end, time.monotonic() + self._timeout_s, future))
        if self._unasked == 0:
            loop.call_soon(self._ask)  # behind the tasks that are ready now: one sync for all that they put
            if self._timer is None:
                self._timer = loop.call_later(self._timeout_s, self._expire)
        self._unasked += 1
        if self._unasked % SYNC_EVERY == 0:
            self._group.request(end)
        return future

    def _ask(self) -> None:
        self._unasked = 0
        if self._waiting:
            self._group.request(self._waiting[-1][0])

    def _ring(self) -> None:
        os.eventfd_read(self._bell)
        self._settle()

    def _settle(self) -> None:
        """Answer those of whom it is known how their sync ended."""
        if self._group.failure:
            self._fail()
            return
        durable = self._group.durable
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
            if end <= self._group.durable:
                future.set_result(None)
            else:
                future.set_exception(self._failed())

    def _expire(self) -> None:
        """Runs as long as somebody waits: fail those that have waited for too long."""
        self._timer = None
        now = time.monotonic()
        while self._waiting and self._waiting[0][1] <= now:
            future = self._waiting.popleft()[2]
            if not future.done():
                future.set_exception(self._late())
        if self._waiting:
            self._timer = self.loop.call_later(max(self._waiting[0][1] - now, 0.001), self._expire)

    def close(self) -> None:
        """The loop is closed, or the store: nobody rings any more. From any thread; the loop's own does the rest."""
        self._group.unwatch(self._bell)
        try:
            self.loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            os.close(self._bell)

    def _let_go(self) -> None:
        self.loop.remove_reader(self._bell)  # first: the next file may get the same number
        os.close(self._bell)
        self._settle()
