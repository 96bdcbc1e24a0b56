"""Write a file once with direct I/O, past the page cache.

Writing to the lake therefore does not push the log out of memory. It also costs less CPU time than copying into the
page cache and writing back.

Direct I/O needs whole blocks and page-aligned memory. So data is gathered in reused 4 MiB buffers. The last block is
written whole and then truncated. While some buffers wait to be written, the next is filled: data comes in bursts, a row
group at a time. On a file system without direct I/O the same writes go through the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from mqlake.kernel import crc32

PIECE = 4 << 20
MAX_WAITING = 4
"""The most full buffers of a file that wait to be written: they are memory of the worker."""
_spare: list[mmap.mmap] = []
"""Free buffers: allocating new memory costs more than filling it."""


class DirectFile:
    """A file object that Arrow can write to. End it with `sync`."""

    def __init__(self, path: Path) -> None:
        self._descriptor = _open(path)
        self._piece = _take()
        self._used = 0
        self._thread: ThreadPoolExecutor | None = None
        """Made only for files larger than one buffer."""
        self._writing: deque[Future[None]] = deque()
        self.size = 0
        self.crc = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Write all of `data`. A no-op after `close`: Arrow may still try to finish an abandoned file."""
        left = memoryview(data)
        while len(left) and not self.closed:
            if self._used == PIECE:
                self._write_in_background()
            taken = left[: PIECE - self._used]
            self._piece[self._used : self._used + len(taken)] = taken
            self._used += len(taken)
            left = left[len(taken) :]
        return len(data)

    def flush(self) -> None:
        """Do nothing: Arrow calls this before the file is complete. `sync` writes the rest."""

    def sync(self) -> None:
        """Make the content durable and close the file."""
        self._wait()
        at = self._end_piece()
        self._put(self._piece, at, -(-(self.size - at) // mmap.PAGESIZE) * mmap.PAGESIZE)
        os.ftruncate(self._descriptor, self.size)
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Close the file. Without `sync` before, its content is abandoned."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(OSError):  # the file is abandoned, so a failed write does not matter
            self._wait()
        if self._thread is not None:
            self._thread.shutdown()
        os.close(self._descriptor)
        _spare.append(self._piece)

    def _write_in_background(self) -> None:
        """Write the full buffer in a thread while the next ones are filled."""
        self._wait(MAX_WAITING - 1)
        self._thread = self._thread or ThreadPoolExecutor(1)
        self._writing.append(self._thread.submit(self._put_and_spare, self._piece, self._end_piece()))
        self._piece = _take()

    def _wait(self, left: int = 0) -> None:
        """Wait until at most `left` buffers are not written yet. Raises what a write raised."""
        while len(self._writing) > left:
            self._writing.popleft().result()

    def _end_piece(self) -> int:
        """Add the gathered bytes to size and CRC. Return the file offset where they begin."""
        at = self.size
        with memoryview(self._piece) as content:
            self.crc = crc32(content[: self._used], self.crc)
        self.size += self._used
        self._used = 0
        return at

    def _put_and_spare(self, piece: mmap.mmap, at: int) -> None:
        try:
            self._put(piece, at, PIECE)
        finally:
            _spare.append(piece)

    def _put(self, piece: mmap.mmap, at: int, length: int) -> None:
        with memoryview(piece) as content:
            done = 0
            while done < length:
                done += self._put_some(content[done:length], at + done)

    def _put_some(self, data: memoryview, at: int) -> int:
        try:
            return os.pwrite(self._descriptor, data, at)
        except OSError as error:
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            # This disk needs larger blocks than a page: continue without direct I/O.
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            return os.pwrite(self._descriptor, data, at)


def _take() -> mmap.mmap:
    return _spare.pop() if _spare else mmap.mmap(-1, PIECE)


def _open(path: Path) -> int:
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o644)
