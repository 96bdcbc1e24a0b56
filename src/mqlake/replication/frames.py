"""RocketMQ's HA stream without sockets: bytes in, reports or transfers out, and the bytes of both.

    slave -> master   report:    the offset that the slave has, 8 bytes
    master -> slave   transfer:  physical offset, 8 bytes; size, 4 bytes; then that many bytes of the commit log
                      heartbeat: a transfer of size 0, at the offset of the next transfer

All numbers are big-endian and signed. Releases 4.9 and 5.x frame alike. The first report is a request: the master
starts there, or, if it is 0, at the first byte of its newest file. Later reports confirm what the slave has. A master
takes the last report of one read from its socket, so a slave sends no second one before the first is answered.

A body is no message: a master cuts its log at any byte. So a reader here keeps no body. It hands out what has arrived,
each piece with its own offset, and holds at most 11 bytes of an incomplete header: a size costs nothing before its
bytes are there.

Brokers in controller mode speak another protocol on the same port, with epochs. Both readers know its handshake and
refuse it by name.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from mqlake.errors import BadTransfer, ControllerMode

REPORT: Final = Struct(">q")
TRANSFER_HEADER: Final = Struct(">qi")
MAX_TRANSFER_BYTES: Final = 4 * 1024 * 1024 - TRANSFER_HEADER.size
"""The largest body of a transfer. A slave of RocketMQ has a buffer of 4 MiB for header and body, and hangs on more."""

HANDSHAKE: Final = 1
"""The state that begins a handshake of the controller protocol, in 4 bytes."""
EPOCH_ENTRY_BYTES: Final = 12
"""An entry of the list of epochs with which a master in controller mode answers a handshake."""


class Transfer(NamedTuple):
    """Bytes of the master's commit log, and where they lie in it. Without bytes it is a heartbeat."""

    physical_offset: int
    body: memoryview

    @property
    def end_offset(self) -> int:
        return self.physical_offset + len(self.body)

    @property
    def is_heartbeat(self) -> bool:
        return not self.body


def report_frame(physical_offset: int) -> bytes:
    """Return a slave's report: it has the log up to this offset."""
    return REPORT.pack(physical_offset)


def transfer_header(physical_offset: int, size: int) -> bytes:
    """Return the bytes that a master sends before `size` bytes of its log."""
    if not 0 <= size <= MAX_TRANSFER_BYTES:
        raise ValueError(f"a transfer has 0 to {MAX_TRANSFER_BYTES} bytes, not {size}")
    return TRANSFER_HEADER.pack(physical_offset, size)


def heartbeat_frame(next_offset: int) -> bytes:
    """Return what a master sends if it has had nothing to send for a while."""
    return transfer_header(next_offset, 0)


class ReportReader:
    """A master's view of one slave. An error is final: nothing after it can be understood."""

    __slots__ = ("_kept", "_last")

    def __init__(self) -> None:
        self._kept = b""
        self._last = 0

    def feed(self, data: bytes) -> list[int]:
        """Return the offsets that are complete with these bytes, in the order in which they came."""
        data = self._kept + data
        whole = len(data) - len(data) % REPORT.size
        offsets = [offset for (offset,) in REPORT.iter_unpack(memoryview(data)[:whole])]
        self._kept = data[whole:]
        for offset in offsets:
            self._check(offset)
        return offsets

    def _check(self, offset: int) -> None:
        if _is_handshake(self._last, offset):
            raise ControllerMode("the slave")
        if offset < 0:
            raise BadTransfer("report", str(offset), "an offset that is not negative")
        self._last = offset


class TransferReader:
    """A slave's view of its master. An error is final: nothing after it can be understood."""

    __slots__ = ("_kept", "_missing", "_next", "_requested")

    def __init__(self, requested_offset: int) -> None:
        """`requested_offset`: the first report of this connection."""
        self._kept = b""
        self._next = 0
        """Where the next byte of the body lies."""
        self._missing = 0
        """How many bytes of the body have not arrived."""
        self._requested: int | None = requested_offset
        """The request, until the first header has answered it."""

    @property
    def kept_bytes(self) -> int:
        """How many bytes of an incomplete header are kept."""
        return len(self._kept)

    @property
    def missing_bytes(self) -> int:
        """How many bytes of the current body have not arrived."""
        return self._missing

    def feed(self, data: bytes | memoryview) -> list[Transfer]:
        """Return what these bytes hold: heartbeats, and bodies as far as they have arrived.

        The views are into `data`, without a copy. If a header is refused, what came before it in `data` is lost too:
        a slave asks for it again.
        """
        if self._kept:
            data = self._kept + bytes(data)
            self._kept = b""
        view, position, found = memoryview(data), 0, []
        while position < len(view):
            if not self._missing:
                if len(view) - position < TRANSFER_HEADER.size:
                    self._kept = bytes(view[position:])
                    break
                self._begin(*TRANSFER_HEADER.unpack_from(view, position))
                position += TRANSFER_HEADER.size
                if not self._missing:
                    found.append(Transfer(self._next, view[position:position]))
                    continue
            body = view[position : position + self._missing]
            if body:
                found.append(Transfer(self._next, body))
            position += len(body)
            self._next += len(body)
            self._missing -= len(body)
        return found

    def _begin(self, physical_offset: int, size: int) -> None:
        if self._requested is not None:
            if _answers_handshake(self._requested, physical_offset):
                raise ControllerMode("the master")
            self._requested = None
        if physical_offset < 0:
            raise BadTransfer("transfer", f"the offset {physical_offset}", "an offset that is not negative")
        if not 0 <= size <= MAX_TRANSFER_BYTES:
            raise BadTransfer(
                f"transfer at {physical_offset}", f"a size of {size} bytes", f"0 to {MAX_TRANSFER_BYTES} bytes"
            )
        self._next, self._missing = physical_offset, size


def _is_handshake(first: int, second: int) -> bool:
    """Return whether two reports are really the handshake of a slave in controller mode.

    It begins with its state and two flags of 0 or 1. A plain slave at 4 GiB sends the same 8 bytes, but its next report
    is not smaller, as a broker's id is (since 5.1), nor does it spell an address after its length (5.0).
    """
    if first >> 32 != HANDSHAKE or (first >> 16) & 0xFFFF > 1 or first & 0xFFFF > 1:
        return False
    length, start = (second >> 32) & 0xFFFFFFFF, (second & 0xFFFFFFFF).to_bytes(4, "big")
    return second < first or (7 <= length <= 50 and all(byte in b"0123456789." for byte in start))


def _answers_handshake(requested: int, physical_offset: int) -> bool:
    """Return whether a master took our report for a handshake and answered with its epochs.

    It can only do so if the report begins with the state of a handshake. Its answer begins with that state and the
    length of its list.
    """
    if requested >> 32 != HANDSHAKE or physical_offset == requested:
        return False
    return physical_offset >> 32 == HANDSHAKE and (physical_offset & 0xFFFFFFFF) % EPOCH_ENTRY_BYTES == 0
