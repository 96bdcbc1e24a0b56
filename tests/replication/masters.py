"""A master for tests: it sends the log of an open store by the rules of RocketMQ's DefaultHAConnection, one slave at a
time or several, and can be told to misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mqlake import MessageStore
from mqlake.files.names import file_name
from mqlake.replication.frames import ReportReader, heartbeat_frame, transfer_header


class SendingMaster:
    """Serves the replication port of a store until it is closed. Threads of the test's own, without supervision."""

    def __init__(self, store: MessageStore, *, heartbeat_s: float = 0.3, batch_bytes: int = 32 * 1024) -> None:
        self.store = store
        self.batch_bytes = batch_bytes
        self.heartbeat_s = heartbeat_s
        self.reports: list[int] = []
        """All reports, of all connections, in the order in which they came."""
        self.requests: list[int] = []
        """The first report of each connection."""
        self.cut_after: Callable[[], int | None] = lambda: None
        """How many bytes of the log the next connection sends before it is cut; None: all."""
        self.change: Callable[[int, bytes], bytes] = lambda offset, data: data
        """What is sent instead of the log's bytes."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connections: set[socket.socket] = set()
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def cut(self) -> None:
        """Cut all connections."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> SendingMaster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            reader = ReportReader()
            request = self._first_report(connection, reader)
            self.requests.append(request)
            threading.Thread(target=self._hear, args=(connection, reader), daemon=True).start()
            self._send(connection, request, self.cut_after())
            connection.shutdown(socket.SHUT_RDWR)
        self._connections.discard(connection)

    def _first_report(self, connection: socket.socket, reader: ReportReader) -> int:
        while True:
            data = connection.recv(4096)
            if not data:
                raise ConnectionResetError
            offsets = reader.feed(data)
            self.reports += offsets
            if offsets:
                return offsets[-1]

    def _hear(self, connection: socket.socket, reader: ReportReader) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(4096):
                self.reports += reader.feed(data)

    def _send(self, connection: socket.socket, request: int, left: int | None) -> None:
        port = self.store.port
        size = port.log.file_size
        position = request or port.ends.visible // size * size
        spoke_at = time.monotonic()
        while not self._closed:
            stretch = port.log.stretch(position, port.ends.visible) if position < port.ends.visible else None
            if stretch is None:
                if time.monotonic() - spoke_at > self.heartbeat_s:
                    connection.sendall(heartbeat_frame(position))
                    spoke_at = time.monotonic()
                time.sleep(0.005)
                continue
            stop = min(stretch.end, stretch.position + self.batch_bytes)
            data = self.change(position, bytes(stretch.data[stretch.position : stop]))
            frame = transfer_header(position, len(data)) + data
            if left is not None and len(data) > left:
                connection.sendall(frame[: 12 + left])
                return
            connection.sendall(frame)
            left = None if left is None else left - len(data)
            position, spoke_at = position + len(data), time.monotonic()


def log_bytes(folder: Path, first: int, end: int, file_size: int) -> bytes:
    """Return the bytes of a store's log in a range, straight from its files."""
    found, start = b"", first // file_size * file_size
    while start < end:
        data = (folder / "commitlog" / file_name(start)).read_bytes()
        assert len(data) == file_size
        found += data[max(0, first - start) : end - start]
        start += file_size
    return found


def same_log(master: MessageStore, slave: MessageStore) -> None:
    """Assert that a slave's log is its master's, byte for byte, from where the slave's begins."""
    end = master.port.ends.appended
    assert slave.port.ends.appended == end
    first, size = slave.first_offset, master.port.log.file_size
    assert log_bytes(slave.path, first, end, size) == log_bytes(master.path, first, end, size)
