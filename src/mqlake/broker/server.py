"""The broker: its store, its tables, its table of requests, and its life.

    requests  -> Connection -> handlers (one module for each kind) -> store
    sends     answered when their level of durability is reached
    pulls     answered from the mapped log, or parked until dispatch moves their queue

All state of the server is touched by the event loop's thread alone, so it needs no locks. A handler that may block is
run by a small pool of threads, and its answer comes back through the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from mqlake.broker.connection import Connection
from mqlake.broker.door import Guests
from mqlake.broker.files import WATCH_S, Watched
from mqlake.broker.refusals import Refusal, refuse
from mqlake.broker.settings import BrokerSettings
from mqlake.kernel import Command
from mqlake.message_store import MessageStore
from mqlake.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from mqlake.broker.access import Access
    from mqlake.broker.membership import Members

Handler = Callable[[Connection, Command], Command | None]
"""Answers a request; None if the answer comes later, or none is wanted."""

POOL_THREADS: Final = 4
MAX_BLOCKED: Final = 1_000
"""So many requests wait for the pool; more are answered SYSTEM_BUSY."""
_log = logging.getLogger(__name__)


class Broker:
    """A running broker. Made in a running event loop; every method is called in its thread."""

    def __init__(
        self, store: MessageStore, settings: BrokerSettings, address: str, access: Access | None = None
    ) -> None:
        """`address` is where clients reach the broker: routes and message ids say it."""
        from mqlake.broker.table import Parts

        self.loop = asyncio.get_running_loop()
        self.store = store
        self.port = store.port
        self.delivery = store.delivery
        self.settings = settings
        self.address = address
        self.started_ms = time.time_ns() // 1_000_000
        self.access = access
        self.replication_address: str | None = None
        """Where slaves find this master; None if it takes none."""
        self.guests = Guests(settings)
        self.connections: set[Connection] = set()
        self._watched: list[Watched] = []
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="mqlake-broker")
        self.blocked_count = 0
        self.is_closing = False
        self.parts = Parts(self)
        self.handlers: dict[int, Handler] = self.parts.handlers()
        self._idle_check = self.loop.call_later(settings.idle_s / 4, self._close_idle)
        self._file_check = self.loop.call_later(WATCH_S, self._look_at_files)
        if access is not None:
            self.watch(access)

    @property
    def members(self) -> Members:
        return self.parts.members

    # ---- connections

    def connected(self, connection: Connection) -> bool:
        """Take a connection; False if it must be refused."""
        if self.is_closing:
            return False
        self.connections.add(connection)
        return True

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.parts.disconnected(connection)

    def _close_idle(self) -> None:
        now, idle_s = self.loop.time(), self.settings.idle_s
        for connection in list(self.connections):
            if now - connection.last_heard > idle_s:
                connection.close()
        self._idle_check = self.loop.call_later(idle_s / 4, self._close_idle)

    # ---- files

    def watch(self, watched: Watched) -> None:
        """Have something read its files again when they change."""
        self._watched.append(watched)

    def _look_at_files(self) -> None:
        for each in self._watched:
            each.refresh()
        self._file_check = self.loop.call_later(WATCH_S, self._look_at_files)

    # ---- blocking work

    def blocking(self, handler: Callable[[Connection, Command], Command]) -> Handler:
        """Return a handler that runs another one in the pool."""

        def start(connection: Connection, command: Command) -> None:
            self.run(connection, command, lambda: handler(connection, command))

        return start

    def run(self, connection: Connection, command: Command, work: Callable[[], Command]) -> None:
        """Run work in the pool and send the command that it returns, or the refusal for what it raises.

        A connection has as many requests in the pool as that has threads. Its others wait, so that one connection
        neither keeps the pool from the rest nor collects answers that its client does not read.
        """
        if self.blocked_count >= MAX_BLOCKED:
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]{MAX_BLOCKED} requests wait already; try again")
        connection.postponed.append((command, work))
        self.resume(connection)

    def resume(self, connection: Connection) -> None:
        """Start what a connection postponed, as far as it may."""
        while connection.postponed and connection.pooled < POOL_THREADS and not connection.is_full:
            self._start(connection, *connection.postponed.popleft())

    def _start(self, connection: Connection, command: Command, work: Callable[[], Command]) -> None:
        self.blocked_count += 1
        connection.pooled += 1

        def done(future: asyncio.Future[Command]) -> None:
            self.blocked_count -= 1
            connection.pooled -= 1
            if future.cancelled():
                return
            error = future.exception()
            connection.answer(command, future.result() if error is None else refuse(command, error))
            self.resume(connection)

        self.loop.run_in_executor(self._pool, work).add_done_callback(done)

    def in_pool(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Run the broker's own work in the pool."""
        return self.loop.run_in_executor(self._pool, work)

    # ---- closing

    async def close(self, patience_s: float = 10.0) -> None:
        """Answer what is parked, let running requests finish, close the connections and the store."""
        self.is_closing = True
        self._idle_check.cancel()
        self._file_check.cancel()
        self.parts.close()
        deadline = self.loop.time() + patience_s
        while self.blocked_count and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.close()
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        self._pool.shutdown(wait=True)
        await asyncio.to_thread(self.store.close)
