"""One connection of a slave to its master: a socket around the frames. One thread uses it; any thread may cut it."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Final

from mqlake.config import parse_address
from mqlake.errors import NotConnected
from mqlake.replication.frames import Transfer, TransferReader, report_frame
from mqlake.runtime.forks import close_in_child

RECEIVE_BYTES: Final = 1 << 20
"""Read from the socket at once."""
CONNECT_S: Final = 5.0
TICK_S: Final = 0.2
"""How long a read waits: how soon a due report is sent."""


class Link:
    """An open connection whose first report, the request, has been sent."""

    def __init__(self, address: str, requested: int) -> None:
        """Raises NotConnected if nobody listens there."""
        self.address = address
        self.requested = requested
        self._reader = TransferReader(requested)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        try:
            at = parse_address("haMasterAddress", address)
            self._socket = close_in_child(socket.create_connection(at, timeout=CONNECT_S))
        except OSError as error:
            raise NotConnected(address, f"no replication: {error.strerror or error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(TICK_S)
        self.heard_at = self.reported_at = time.monotonic()
        self.report_count = 0
        self.is_answered = False
        """Whether the master has sent anything. Until then only the request may be repeated: see `frames`."""
        self.report(requested)

    def receive(self) -> list[Transfer]:
        """Return what the master sent; nothing if it sent nothing for a moment. Valid until the next call.

        NotConnected once the connection is cut.
        """
        try:
            size = self._socket.recv_into(self._buffer)
        except TimeoutError:
            return []
        except OSError as error:
            raise NotConnected(self.address, f"the connection broke: {error.strerror or error}") from None
        if not size:
            raise NotConnected(self.address, "the master closed the connection")
        self.heard_at = time.monotonic()
        self.is_answered = True
        return self._reader.feed(self._buffer[:size])

    def report(self, offset: int) -> None:
        """Tell the master how far this slave is."""
        try:
            self._socket.sendall(report_frame(offset))
        except OSError as error:
            raise NotConnected(self.address, f"a report was not sent: {error.strerror or error}") from None
        self.reported_at = time.monotonic()
        self.report_count += 1

    def cut(self) -> None:
        """End a read of another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
