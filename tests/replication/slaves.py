"""A slave as a few lines over a socket: it says what the test wants, true or not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mqlake import MessageStore
from mqlake.config import FlushConfig, ReplicationConfig, RetentionConfig, Role
from mqlake.replication.frames import TransferReader, report_frame
from mqlake.replication.master import Master
from tests.helpers import open_small

PATIENCE_S = 30.0


class Slave:
    """Connects to a master, asks for its log, keeps what it gets and confirms it when told to."""

    def __init__(
        self, master: Master | tuple[str, int], wanted: int = 0, *, ask: bool = True, receive_buffer: int = 0
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(master.address if isinstance(master, Master) else master)
        self.socket.settimeout(PATIENCE_S)
        self.start: int | None = None
        self.log = bytearray()
        self.heartbeat_count = 0
        self.largest = 0
        self._reader = TransferReader(wanted)
        if ask:
            self.report(wanted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    @property
    def end(self) -> int:
        return (self.start or 0) + len(self.log)

    def report(self, offset: int) -> None:
        self.socket.sendall(report_frame(offset))

    def read(self) -> bool:
        """Take what has arrived; False if the master has closed the connection."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            return False
        for transfer in self._reader.feed(data):
            if transfer.is_heartbeat:
                self.heartbeat_count += 1
                continue
            if self.start is None:
                self.start = transfer.physical_offset
            assert transfer.physical_offset == self.end, "transfers follow one another"
            self.largest = max(self.largest, len(transfer.body))
            self.log += transfer.body
        return bool(data)

    def read_to(self, end: int, *, confirm: bool = True) -> None:
        """Take the log up to an offset."""
        while self.end < end:
            assert self.read(), "the master closed the connection"
            if confirm:
                self.report(self.end)

    def is_closed(self) -> bool:
        """Read until the master closes the connection; return whether it does."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if not self.read():
                return True
        return False


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S} s: {what}"
        time.sleep(0.002)


@contextmanager
def serving(
    path: Path, role: Role = Role.ASYNC_MASTER, *, flush: FlushConfig | None = None, **settings: Any
) -> Iterator[tuple[MessageStore, Master]]:
    """Open a store with small files and serve slaves on a free port."""
    config = ReplicationConfig(role=role, listen_port=0, **settings)
    retention = RetentionConfig(enabled=False, pause_ms=0)
    with open_small(path, replication=config, flush=flush, retention=retention) as store, Master(store.port) as master:
        yield store, master


def log_bytes(store: MessageStore, start: int, end: int) -> bytes:
    """Return the store's log, as its files hold it."""
    return b"".join(bytes(each.data[each.position : each.end]) for each in store.port.log.stretches(start, end))
