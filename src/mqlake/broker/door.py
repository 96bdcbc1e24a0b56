"""The door: one listening socket, and what happens to a connection before it is served.

A connection counts from the moment it is accepted until it is gone, also while it says nothing or is in its handshake,
so the limits in total and per client address hold for them too. What it must do first (show whether it speaks TLS, end
the handshake, send a whole frame) has a time limit each.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqlake.broker.connection import Connection
from mqlake.broker.tls import FIRST_BYTE, Tls
from mqlake.runtime.forks import close_in_child

if TYPE_CHECKING:
    from mqlake.broker.server import Broker
    from mqlake.broker.settings import BrokerSettings

ACCEPT_AT_ONCE: Final = 64
"""So many connections are accepted before others get a turn."""
REST_S: Final = 1.0
"""How long nothing is accepted after the process ran out of file descriptors or memory."""
SHUTDOWN_S: Final = 2.0
"""How long a client may take to answer the end of TLS."""
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)


class Guests:
    """How many connections there are, in total and per client address."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._most, self._most_each = settings.max_connections, settings.max_connections_per_address
        self.by_host: Counter[str] = Counter()
        self.count = 0

    def enter(self, host: str) -> Callable[[], None] | None:
        """Count a connection in, and return what counts it out, once; None if it is one too many."""
        if self.count >= self._most or self.by_host[host] >= self._most_each:
            return None
        self.count += 1
        self.by_host[host] += 1
        is_in = True

        def leave() -> None:
            nonlocal is_in
            if is_in:
                is_in = False
                self.count -= 1
                self.by_host[host] -= 1
                if not self.by_host[host]:
                    del self.by_host[host]

        return leave


class Door:
    """Accepts the connections of one listening socket."""

    def __init__(self, broker: Broker, listening: socket.socket, tls: Tls | None) -> None:
        self._broker, self._socket, self._tls = broker, listening, tls
        self._loop = broker.loop
        self._limit_s = broker.settings.handshake_ms / 1_000
        self._admissions: set[asyncio.Task[None]] = set()
        self._rest: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._open()

    def _open(self) -> None:
        self._rest = None
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Accept no more; what is not served yet is hung up on."""
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for each in list(self._admissions):
            each.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                client, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                _log.error("no connection can be accepted for %s s: %s", REST_S, error.strerror)
                self._loop.remove_reader(self._socket)
                self._rest = self._loop.call_later(REST_S, self._open)
                return
            self._take(client, str(peer[0]).removeprefix("::ffff:"))

    def _take(self, client: socket.socket, host: str) -> None:
        leave = self._broker.guests.enter(host)
        if leave is None:
            _log.info("%s: too many connections; one more is closed", host)
            client.close()
            return
        close_in_child(client).setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        admission = self._loop.create_task(self._admit(client, host, leave))
        self._admissions.add(admission)
        admission.add_done_callback(self._admissions.discard)

    async def _admit(self, client: socket.socket, host: str, leave: Callable[[], None]) -> None:
        """Find out what a client speaks, shake hands, and hand it over."""
        is_served = False

        def serve() -> Connection:
            nonlocal is_served
            is_served = True
            return Connection(self._broker, leave)

        try:
            context = await self._context_for(client)
            if context is None:
                await self._loop.connect_accepted_socket(serve, client)
            else:
                await self._loop.connect_accepted_socket(
                    serve,
                    client,
                    ssl=context,
                    ssl_handshake_timeout=self._limit_s,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
        except OSError as error:  # SSLError and TimeoutError among them
            _log.info("%s: not admitted: %s", host, error or type(error).__name__)
            leave()
        except asyncio.CancelledError:
            leave()
            raise
        finally:
            if not is_served:
                client.close()

    async def _context_for(self, client: socket.socket) -> ssl.SSLContext | None:
        """Return the TLS context for a client; None if it is served in plain text."""
        if self._tls is None:
            return None
        if self._tls.is_enforced:
            return self._tls.context
        async with asyncio.timeout(self._limit_s):
            await self._readable(client)
        return self._tls.context if client.recv(1, socket.MSG_PEEK) == FIRST_BYTE else None

    async def _readable(self, client: socket.socket) -> None:
        ready = asyncio.Event()
        self._loop.add_reader(client, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(client)
