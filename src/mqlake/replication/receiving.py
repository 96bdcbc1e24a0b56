"""What a slave does with what its master sends: compare, then append. No sockets here.

A slave asks for more than it lacks: from up to 64 KiB before its own end on. What it has already is compared byte by
byte, and only then the first new byte is taken. So a log that is not the beginning of the master's is found before it
is mixed with it.

RocketMQ's masters take a request for offset 0 as "from your newest file on". The whole log from 0 on can be asked for
all the same, from byte 1: byte 0 is the highest byte of the first record's size, which is 0 for every record below
16 MiB, and a record with a wrong size is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from mqlake.errors import BadTransfer
from mqlake.logs.replica_log import ReplicaLog
from mqlake.replication.frames import Transfer

COMPARED_BYTES: Final = 64 * 1024
"""How much of its own end a slave compares with its master's log before it continues."""
SILENCES: Final = 2
"""A master that sends nothing but this many heartbeats has nothing at the offset that was asked for."""
SILENCE_S: Final = 1.0
FIRST_BYTE: Final = memoryview(b"\0")


class Mismatch(Exception):
    """Own and master's bytes differ at an offset; or the master has nothing there, although this log has."""

    def __init__(self, offset: int, *, master_ends: bool) -> None:
        super().__init__(offset, master_ends)
        self.offset, self.master_ends = offset, master_ends


class Receiver:
    """One connection's worth of receiving. `request` is what to ask the master for."""

    def __init__(self, log: ReplicaLog, begin_offset: int | None = None) -> None:
        """`begin_offset`: where an empty log begins, the first byte of one of the master's files; None: its newest."""
        self._log = log
        self._end = log.ends.appended
        """Up to here bytes are compared; from here on they are appended."""
        self.request = self._request(begin_offset)
        self._next: int | None = self.request or None
        """The offset of the master's next byte; None if the master decides."""
        self._silences = 0
        self._heard_at = time.monotonic()
        self.is_caught_up = False
        """Whether the last thing heard was that there is nothing more."""
        self.caught_up_at: float | None = None
        """When the last word was heard that there is nothing more, on the monotonic clock."""
        self.is_missing = False
        """Whether an empty log asked for an offset at which the master has nothing: it is empty, or begins later."""

    def _request(self, begin_offset: int | None) -> int:
        log, end = self._log, self._end
        if not log.is_empty:
            # Not before the file of the last byte: a master that deleted older files still has what is missing here.
            file_start = max(0, end - 1) // log.file_size * log.file_size
            return max(log.first_offset, end - COMPARED_BYTES, file_start, 1)
        if begin_offset is None:
            return 0
        log.begin_at(begin_offset)
        return max(begin_offset, 1)

    @property
    def is_comparing(self) -> bool:
        """Whether the master has not yet shown that it has what this log has."""
        return self._next is not None and self._next < self._end

    def take(self, transfers: Iterable[Transfer]) -> None:
        """Compare or append what the master sent. Mismatch if the logs differ."""
        fresh: list[memoryview] = []
        for transfer in transfers:
            self._take(transfer, fresh)
        if fresh:
            self._log.take(fresh[0] if len(fresh) == 1 else memoryview(b"".join(fresh)))  # one write for all

    def _take(self, transfer: Transfer, fresh: list[memoryview]) -> None:
        """Compare what is known of a transfer, and add the rest to the `fresh` bytes."""
        if transfer.is_heartbeat:
            self._hear_nothing(transfer.physical_offset)
            return
        self.is_caught_up = self.is_missing = False
        self._silences, self._heard_at = 0, time.monotonic()
        if self._next is None:
            self._log.begin_at(transfer.physical_offset)
            self._next = self._end = transfer.physical_offset
        elif transfer.physical_offset != self._next:
            found = f"bytes of offset {transfer.physical_offset}"
            raise BadTransfer("the master's log", found, f"those of {self._next}, which are next")
        if self._next == 1 and self._end == 0:
            fresh.append(FIRST_BYTE)
        known = max(0, min(len(transfer.body), self._end - self._next))
        if known:
            self._compare(self._next, transfer.body[:known])
        if known < len(transfer.body):
            fresh.append(transfer.body[known:])
        self._next = transfer.end_offset

    def _compare(self, offset: int, theirs: memoryview) -> None:
        for stretch in self._log.stretches(offset, offset + len(theirs)):
            ours = memoryview(stretch.data)[stretch.position : stretch.end]
            piece, theirs = theirs[: len(ours)], theirs[len(ours) :]
            if ours != piece:
                raise Mismatch(stretch.log_start + stretch.position + first_difference(ours, piece), master_ends=False)

    def _hear_nothing(self, offset: int) -> None:
        """A heartbeat: the master has sent all it has. While bytes are compared, that is an answer too."""
        self._silences += 1
        is_proof = self._silences >= SILENCES and time.monotonic() - self._heard_at >= SILENCE_S
        if self._next is not None and self._next < self._end and is_proof:
            raise Mismatch(self._next, master_ends=True)
        awaits_first = self._log.is_empty and self._next is not None
        self.is_missing = awaits_first and is_proof
        self.is_caught_up = self._next in (None, offset) and not self.is_comparing and not awaits_first
        if self.is_caught_up:
            self.caught_up_at = time.monotonic()


def first_difference(ours: memoryview | bytes, theirs: memoryview | bytes) -> int:
    """Return the position of the first byte in which two different pieces differ."""
    return next(at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
