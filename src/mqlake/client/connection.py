"""Connections of a client: requests out, responses and the server's own requests in.

A call ends with its response, with RequestTimeout, or with NotConnected if the connection breaks: never later than its
time limit. A connection that broke is replaced by the next call to its address. `on_open` runs before the first call on
a new connection, so a broker knows the client before it is asked anything.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from mqlake.client.security import Credentials
from mqlake.errors import BadFrame, BadRequest, NotConnected, RequestTimeout
from mqlake.kernel import Command, encode_command
from mqlake.remoting.codes import RequestCode, code_name
from mqlake.remoting.frames import FrameReader

HIGH_BYTES = 4 << 20
"""While more than this waits to be sent, calls wait before they send."""
RESPONSE = 1
Receiver = Callable[["Connection", Command], None]
"""Takes a request of the server."""
_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """One open connection. Everything here runs in the event loop's thread."""

    def __init__(self, address: str, credentials: Credentials | None, receive: Receiver) -> None:
        self.address = address
        self.is_open = False
        self._credentials = credentials
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is no longer open."""

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._reader.feed(data)
            while self._reader.has_more:
                commands += self._reader.feed(b"")
        except BadFrame as error:
            _log.warning("%s: %s; the connection is closed", self.address, error)
            self.close()
            return
        for command in commands:
            if not command.flag & RESPONSE:
                self._receive(self, command)
                continue
            future = self._waiting.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_result(command)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._writable.set()
        reason = f"the connection broke ({error})" if error else "the connection was closed"
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotConnected(self.address, reason))
        self._waiting.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    # ---- requests

    async def call(self, command: Command, timeout_s: float) -> Command:
        """Return the response to a request, whatever its code."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._write_request(command)
                future: asyncio.Future[Command] = self._loop.create_future()
                self._waiting[command.opaque] = future
                self._write(command)
                return await future
        except TimeoutError:
            raise RequestTimeout(self.address, code_name(RequestCode, command.code), timeout_s) from None
        except UnicodeEncodeError as error:
            raise _no_text(error) from None
        finally:
            self._waiting.pop(command.opaque, None)

    async def send(self, command: Command, timeout_s: float) -> None:
        """Send a request that gets no response; return when it is on its way, not when it arrived."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._write_request(command)
                self._write(command)
        except TimeoutError:
            raise RequestTimeout(self.address, code_name(RequestCode, command.code), timeout_s) from None
        except UnicodeEncodeError as error:
            raise _no_text(error) from None

    async def _write_request(self, command: Command) -> None:
        """Sign a request, and wait until it may be written."""
        if self._credentials is not None:
            self._credentials.sign(command)
        await self._writable.wait()

    def answer(self, response: Command) -> None:
        """Answer a request of the server; nothing happens if it is gone."""
        if self.is_open:
            self._write(response)

    def _write(self, command: Command) -> None:
        if not self.is_open or self._transport is None or self._transport.is_closing():
            raise NotConnected(self.address, "the connection was closed")
        self._out.append(encode_command(command))
        if len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write the commands of this round of the loop together: one system call for all of them."""
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()


def _no_text(error: UnicodeEncodeError) -> BadRequest:
    return BadRequest("field", repr(error.object)[:80], "text without lone surrogates")


class Connections:
    """The connections of one client, by address."""

    def __init__(
        self,
        *,
        credentials: Credentials | None,
        tls: ssl.SSLContext | None,
        connect_timeout_s: float,
        receive: Receiver,
        on_open: Callable[[Connection], Awaitable[None]],
    ) -> None:
        self._credentials = credentials
        self._tls = tls
        self._timeout_s = connect_timeout_s
        self._receive = receive
        self._on_open = on_open
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def get(self, address: str) -> Connection:
        """Return the connection to an address; open it if there is none."""
        found = self._open.get(address)
        if found is not None and found.is_open:
            return found
        if self._is_closed:
            raise NotConnected(address, "this client is closed")
        task = self._opening.get(address)
        if task is None:
            task = self._opening[address] = asyncio.create_task(self._connect(address))
            task.add_done_callback(lambda done: self._opened(address, done))
        return await asyncio.shield(task)

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        if self._opening.get(address) is task:
            del self._opening[address]
        if not task.cancelled():
            task.exception()  # whoever asked for the connection gets it

    async def _connect(self, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        connection = Connection(address, self._credentials, self._receive)
        try:
            async with asyncio.timeout(self._timeout_s):
                await loop.create_connection(lambda: connection, host.strip("[]"), int(port), ssl=self._tls)
        except TimeoutError:
            raise NotConnected(address, f"no connection within {self._timeout_s:g} s") from None
        except (OSError, ValueError, OverflowError) as error:  # a route may name a port that there is not
            raise NotConnected(address, f"no connection ({error})") from None
        self._open[address] = connection
        try:
            await self._on_open(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def open(self) -> list[Connection]:
        return [each for each in self._open.values() if each.is_open]

    def drop(self) -> None:
        """Close all connections; later calls open others."""
        for task in list(self._opening.values()):
            task.cancel()
        self._opening.clear()
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    async def close(self) -> None:
        """Close all connections; a later call raises NotConnected."""
        self._is_closed = True
        lost = [each.lost for each in self.open]
        self.drop()
        if lost:
            await asyncio.wait(lost, timeout=1.0)
