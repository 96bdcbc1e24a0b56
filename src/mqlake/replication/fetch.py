"""Ranges of another store's log over RocketMQ's replication, for healing: connect like a slave, read, and hang up.

A master sends its log from the offset of the first report on, and needs no further ones for as long as a range takes.
It takes a first report of 0 for "from your newest file on", so the very first byte of a log cannot be asked for: it is
the highest byte of a record's size, which is 0 in every record below 16 MiB. Whoever asks proves what comes.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

from mqlake.config import parse_address
from mqlake.errors import NotAStore, SourceFailed
from mqlake.inspect.heal_source import FolderSource, Source
from mqlake.replication.frames import TransferReader, report_frame

TIMEOUT_S: Final = 10.0
"""A master that has nothing to send shows a sign of life every five seconds."""
MAX_HEARTBEATS: Final = 2
"""So many signs of life without a byte of the log: it does not have this range."""
RECEIVED_BYTES: Final = 256 << 10
ADDRESS: Final = re.compile(r"[^/]+:[0-9]{1,5}")


def source_of(source: str | os.PathLike[str] | Source) -> Source:
    """Return the copy that is named: a folder, or HOST:PORT."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    text = os.fspath(source)
    if Path(text).is_dir():
        return FolderSource(Path(text))
    if not ADDRESS.fullmatch(text):
        raise NotAStore(Path(text), "it is no folder and no HOST:PORT", "name a copy of this log to heal from")
    return MasterSource(*parse_address("source", text))


class MasterSource:
    """The log of a master, or of a slave that has slaves of its own, through its replication port.

    One that was silent for the whole time limit once is asked no more: each further range would take as long.
    """

    def __init__(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self.name = f"{host}:{port}"
        self._address = host, port
        self._timeout_s = timeout_s
        self._silent_at: int | None = None
        """The range at which it was silent, and so given up."""

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of its log, fewer if it ends before. Each call is a connection of its own."""
        if self._silent_at is not None:
            raise SourceFailed(self.name, f"not asked again: it was silent about the log at {self._silent_at}")
        first = max(start, 1)
        try:
            with socket.create_connection(self._address, self._timeout_s) as connection:
                connection.settimeout(self._timeout_s)
                connection.sendall(report_frame(first))
                received = self._receive(connection, first, end)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._silent_at = start
            raise SourceFailed(self.name, f"no answer about the log at {start}: {error}") from error
        return bytes(first - start) + received

    def _receive(self, connection: socket.socket, first: int, end: int) -> bytes:
        reader = TransferReader(first)
        received = bytearray()
        heartbeats = 0
        while first + len(received) < end:
            data = connection.recv(RECEIVED_BYTES)
            if not data:
                raise SourceFailed(self.name, f"it closed the connection at {first + len(received)}")
            for transfer in reader.feed(data):
                if transfer.is_heartbeat:
                    heartbeats += 1
                    if heartbeats > MAX_HEARTBEATS and received:
                        return bytes(received)
                    if heartbeats > MAX_HEARTBEATS:
                        raise SourceFailed(self.name, f"it has no log at {first + len(received)}")
                    continue
                heartbeats = 0
                if transfer.physical_offset != first + len(received):
                    where = f"the log at {transfer.physical_offset}, not at {first + len(received)}"
                    raise SourceFailed(self.name, f"it sends {where}")
                received += transfer.body
        return bytes(received[: end - first])
