"""One slave, as its master sees it: what it asked for, what it was sent, what it has confirmed.

    attached -> first report: where it wants the log from -> transfers and heartbeats out, reports in -> gone

A slave is a stranger until it behaves: whatever it sends is checked, and it can cost the master one mapped file, one
transfer that is under way and the socket's own buffers, nothing else. It may confirm only what it was sent.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Final

from mqlake.config import ReplicationConfig
from mqlake.errors import BadTransfer, SlaveRefused
from mqlake.logs.commit_log import CommitLog
from mqlake.replication.frames import ReportReader, heartbeat_frame, transfer_header

READ_BYTES: Final = 4096
"""Reports that are read at once: 512. A slave that sends more waits for its turn."""
REFUSED_S: Final = 3.0
"""How long a slave that cannot follow stays connected. Heartbeats alone tell it that there is nothing for it here: a
slave that compares its log with its master's needs two, a second apart, to be sure."""
REFUSED_BEAT_S: Final = 0.6
TURN_BYTES: Final = 1 << 20
"""So much is sent to one slave before the next has its turn."""


class Attached:
    """A connection to a slave. Used by the master's thread only."""

    def __init__(self, connection: socket.socket, address: str, log: CommitLog, config: ReplicationConfig) -> None:
        self.connection = connection
        self.address = address
        self.since_ms = time.time_ns() // 1_000_000
        self.position = -1
        """Where the next transfer starts; -1 before the slave's first report."""
        self.confirmed = 0
        """How far it says to have the log: at first what it asked for."""
        self._asked = 0
        self._log = log
        self._config = config
        self._reports = ReportReader()
        self._unsent: list[memoryview] = []
        """What is left of a transfer that the socket did not take whole. It keeps the mapped file alive."""
        self._body_size = 0
        """The bytes of the log in that transfer; 0 for a heartbeat."""
        self._heard_at = self._sent_at = time.monotonic()
        self._refusal: SlaveRefused | None = None
        self._refused_at = 0.0

    @property
    def is_following(self) -> bool:
        """Return whether it has said where it wants the log from."""
        return self.position >= 0

    @property
    def has_confirmed(self) -> bool:
        """Return whether it has reported more than it asked for. Its first report is a request: a slave that compares
        its log with this one asks too, and then finds that they differ.
        """
        return self.confirmed > self._asked

    @property
    def is_blocked(self) -> bool:
        """Return whether the socket takes no more until the slave reads."""
        return bool(self._unsent)

    @property
    def sent(self) -> int:
        """How far it may confirm the log: what it said to have, and what was handed to the socket since."""
        return self.position - min(self._body_size, sum(map(len, self._unsent)))

    # ---- reports

    def hear(self, end: int) -> bool:
        """Read reports; `end` is where the log ends now. Return whether there was anything; EOFError at the end."""
        try:
            data = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            raise EOFError("it closed the connection")
        for offset in self._reports.feed(data):
            self._heard_at = time.monotonic()
            if self._refusal is not None:
                continue
            if not self.is_following:
                self._begin(offset, end)
                continue
            if not self.confirmed <= offset <= self.sent:
                raise BadTransfer(
                    f"slave {self.address}: report", str(offset), f"an offset from {self.confirmed} to {self.sent}"
                )
            self.confirmed = offset
        return True

    def _begin(self, wanted: int, end: int) -> None:
        """Follow from an offset. A slave without a log gets all that there is; RocketMQ sends its last file only.

        One that wants a log from its first byte on asks for byte 1 (see `receiving`), also while this log is empty.
        """
        first, reason = self._log.first_offset, ""
        if 0 < wanted < first:
            reason = "the master has deleted what it needs next"
        elif wanted > max(end, 1):
            reason = "it has more than this master: their logs differ"
        if reason:
            self._refusal = SlaveRefused(self.address, wanted, first, end, reason)
            self._refused_at = time.monotonic()
        else:
            self.position, self.confirmed, self._asked = wanted or first, wanted, wanted

    # ---- transfers

    def send(self, end: int) -> bool:
        """Send what the slave does not have, as much as the socket takes now; return whether there is more to send."""
        budget = TURN_BYTES
        while self.is_following and budget > 0:
            if not self._unsent:
                if self.position >= end:
                    return False
                self._unsent = self._transfer(end)
            budget -= sum(map(len, self._unsent))
            if not self._flush():
                return True
        return self.is_following and (self.is_blocked or self.position < end)

    def _transfer(self, end: int) -> list[memoryview]:
        """Return the next transfer, as views of the mapped log. It never spans two files, as in RocketMQ."""
        start = self.position
        stretch = self._log.stretch(start, min(end, start + self._config.transfer_bytes))
        if stretch is None:
            first = self._log.first_offset
            raise SlaveRefused(self.address, start, first, end, "the master has deleted what it needs next")
        body = memoryview(stretch.data)[stretch.position : stretch.end]
        self.position, self._body_size = start + len(body), len(body)
        return [memoryview(transfer_header(start, len(body))), body]

    def _flush(self) -> bool:
        """Hand what is under way to the socket; return whether it took all."""
        try:
            sent = self.connection.sendmsg(self._unsent)
        except BlockingIOError:
            return False
        self._sent_at = time.monotonic()
        self._unsent = _after(self._unsent, sent)
        return not self._unsent

    # ---- time

    def look_after(self, now: float) -> None:
        """Send a heartbeat if it is time; TimeoutError if the slave has been silent for too long, SlaveRefused once it
        must know that it cannot follow.
        """
        if self._refusal is not None:
            if now - self._refused_at >= REFUSED_S:
                raise self._refusal
            if now - self._sent_at >= REFUSED_BEAT_S and not self._unsent:
                self._beat(self._refusal.wanted)
            return
        if now - self._heard_at >= self._config.silence_limit_ms / 1000:
            raise TimeoutError(f"it said nothing for {self._config.silence_limit_ms} ms (haHousekeepingInterval)")
        if self.is_following and not self._unsent and now >= self._beat_at():
            self._beat(self.position)

    def _beat(self, offset: int) -> None:
        self._unsent, self._body_size = [memoryview(heartbeat_frame(offset))], 0
        self._flush()

    def _beat_at(self) -> float:
        return self._sent_at + self._config.heartbeat_interval_ms / 1000

    def due_at(self) -> float:
        """Return when it must be looked after next."""
        if self._refusal is not None:
            return time.monotonic() + REFUSED_BEAT_S / 2
        silent_at = self._heard_at + self._config.silence_limit_ms / 1000
        return min(silent_at, self._beat_at()) if self.is_following and not self._unsent else silent_at


def _after(views: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return what is left of views after their first `count` bytes."""
    left = []
    for view in views:
        if count < len(view):
            left.append(view[count:])
        count = max(0, count - len(view))
    return left
