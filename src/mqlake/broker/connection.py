"""One client's connection: frames in, answers out.

Everything here runs in the event loop's thread. Answers of one round are written together. A client that sends without
reading is stopped in two steps: while more than `HIGH_BYTES` of its answers wait, nothing of it is read or processed;
what the broker sends on its own accord (notices) is dropped meanwhile. So a connection costs at most the frame that
arrives, the answer that was made last, and `HIGH_BYTES`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from mqlake.broker.refusals import not_supported, refuse, too_many
from mqlake.errors import BadFrame
from mqlake.kernel import Command, encode_command, encode_head
from mqlake.remoting.command import oneway
from mqlake.remoting.frames import FrameReader

if TYPE_CHECKING:
    from mqlake.broker.server import Broker

HIGH_BYTES = 1 << 20
FLUSH_BYTES = 1 << 18
JOIN_BYTES = 1 << 12
"""An answer's body up to this size is copied behind its head; a larger one is written on its own."""
RESPONSE, ONEWAY = 1, 2
_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """The protocol object of one accepted socket."""

    def __init__(self, broker: Broker, leave: Callable[[], None]) -> None:
        """`leave` is called when the connection is gone."""
        self.broker = broker
        self._leave = leave
        self._access = broker.access
        self._handlers = broker.handlers
        self.transport: asyncio.Transport | None = None
        self.address = ""
        """The client's, as records and statistics show it."""
        self.host = ""
        """The address without its port."""
        self.in_flight = 0
        """Requests that wait for their answers."""
        self._max_requests = broker.settings.max_requests
        self._first_frame: asyncio.TimerHandle | None = None
        """Hangs up on a client that sends no whole frame."""
        self.language, self.version = "OTHER", 0
        self.last_heard = broker.loop.time()
        self.is_open = False
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_is_due = False
        self._is_paused = False
        self._unread: deque[Command] = deque()
        """Commands that are not processed before the client has read its answers."""
        self.pooled = 0
        """Requests that run in the broker's pool."""
        self.postponed: deque[tuple[Command, Callable[[], Command]]] = deque()
        """Requests that wait for their turn in the pool, or for the client to read its answers."""
        self._asked: dict[int, asyncio.Future[Command]] = {}
        """Requests of the broker that wait for the client's response."""

    @property
    def is_full(self) -> bool:
        """Whether more answers wait for the client than it may leave unread."""
        return self._is_paused or self._out_bytes > HIGH_BYTES

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_BYTES, low=HIGH_BYTES // 4)
        self.host, self.address = _address_of(transport)
        self.is_open = self.broker.connected(self)
        if not self.is_open:
            transport.abort()
            return
        self._first_frame = self.broker.loop.call_later(self.broker.settings.handshake_ms / 1_000, self.close)

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._reader.feed(data)
            while self._reader.has_more:
                commands += self._reader.feed(b"")
        except BadFrame as error:
            self._give_up(error)
            return
        if not commands:
            return
        self.last_heard = self.broker.loop.time()
        if self._first_frame is not None:
            self._first_frame.cancel()
            self._first_frame = None
        if self._unread:
            self._unread.extend(commands)
        else:
            self._run(commands)

    def pause_writing(self) -> None:
        self._is_paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self.broker.resume(self)
        waiting, self._unread = list(self._unread), deque()
        self._run(waiting)
        if not self._is_paused and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._first_frame is not None:
            self._first_frame.cancel()
        self._leave()
        for future in self._asked.values():
            if not future.done():
                future.cancel()
        self._asked.clear()
        self._unread.clear()
        self.postponed.clear()
        self._out.clear()
        self.broker.disconnected(self)

    # ---- requests

    def _run(self, commands: list[Command]) -> None:
        """Process commands until they are done, or until too many answers wait for the client to read."""
        self._flush_is_due = True  # answers of this round are flushed below
        for place, command in enumerate(commands):
            self._process(command)
            if self._out_bytes > FLUSH_BYTES:
                self._write()
                if self._is_paused:
                    self._unread.extend(commands[place + 1 :])
                    break
        self._flush()

    def _process(self, command: Command) -> None:
        if command.flag & RESPONSE:
            future = self._asked.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_result(command)
            return
        handler = self._handlers.get(command.code)
        self.in_flight += not command.flag & ONEWAY
        try:
            if self.in_flight > self._max_requests:
                raise too_many(self._max_requests)
            if self._access is not None:
                self._access.check(self, command)
            answer = not_supported(command) if handler is None else handler(self, command)
        except Exception as error:
            answer = refuse(command, error)
        if answer is not None:
            self.answer(command, answer)

    def answer(self, request: Command, answer: Command) -> None:
        """Send a response, unless none is wanted. Later than the request too."""
        if request.flag & ONEWAY:
            return
        self.in_flight -= 1
        if not self.is_open:
            return
        body = answer.body
        size = len(body)
        if size <= JOIN_BYTES:
            frame = encode_command(answer)
            self._out.append(frame)
            self._out_bytes += len(frame)
        else:
            self._out += (encode_head(answer, size), bytes(body))
            self._out_bytes += size
        if not self._flush_is_due:
            self._flush_is_due = True
            self.broker.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._write()
        if self.postponed:
            self.broker.resume(self)

    def _write(self) -> None:
        if self._out and self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(self._out)
        self._out = []
        self._out_bytes = 0

    # ---- requests of the broker

    def notify(self, code: int, fields: dict[str, str], body: bytes = b"") -> bool:
        """Send a one-way request to the client; False if it does not read."""
        if not self.is_open or self._is_paused or self.transport is None:
            return False
        self.transport.write(encode_command(oneway(code, fields, body)))
        return True

    def ask(self, request: Command, timeout_s: float) -> asyncio.Future[Command]:
        """Send a request to the client; the future has its response, or is cancelled if none comes."""
        loop = self.broker.loop
        future: asyncio.Future[Command] = loop.create_future()
        if not self.is_open or self._is_paused or self.transport is None:
            future.cancel()
            return future
        self._asked[request.opaque] = future
        self.transport.write(encode_command(request))
        loop.call_later(timeout_s, self._expire, request.opaque)
        return future

    def _expire(self, opaque: int) -> None:
        future = self._asked.pop(opaque, None)
        if future is not None and not future.done():
            future.cancel()

    # ---- closing

    def _give_up(self, error: BadFrame) -> None:
        _log.warning("%s: %s; the connection is closed", self.address, error)
        self.close()

    def close(self) -> None:
        """Write what is waiting, and close."""
        if self.transport is not None and not self.transport.is_closing():
            self._write()
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _address_of(transport: asyncio.Transport) -> tuple[str, str]:
    """Return the client's host, and host and port."""
    peer = transport.get_extra_info("peername")
    if not peer:  # it is gone already
        return "", "127.0.0.1:0"
    host, port = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
    return host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
