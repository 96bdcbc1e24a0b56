"""How asyncio programs wait for messages: dispatch calls the loop when there are any."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from mqlake.store.engine import Engine
from mqlake.store.follower import POLL_S, Follower


def current_task() -> asyncio.Task[object] | None:
    return asyncio.current_task()


async def until_arrival(side: Engine | Follower, arrived: Callable[[], bool], timeout_s: float) -> None:
    """Return when a condition is true, or the time is over."""
    if isinstance(side, Follower):
        await _look_all_the_time(side, arrived, timeout_s)
        return
    loop = asyncio.get_running_loop()
    bell = asyncio.Event()

    def ring() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(bell.set)

    side.dispatcher.listen(ring)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not arrived():
                    await bell.wait()
                    bell.clear()
    finally:
        side.dispatcher.ignore(ring)


async def _look_all_the_time(side: Follower, arrived: Callable[[], bool], timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    side.follow()
    while not arrived() and loop.time() < deadline:
        await asyncio.sleep(POLL_S)
        side.follow()
