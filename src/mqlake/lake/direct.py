"""A file that is written once, past the page cache: what goes into the lake does not push the log out of memory, and
costs the processors a part of what copying it there and writing it back would.

The disk takes whole blocks, from memory that begins with one. So what is written is gathered in a piece of memory that
is used again and again, and the last block is written whole and cut off. While the disk takes one piece, the next is
gathered. A file system that cannot do this gets the same writes in the ordinary way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from mqlake.kernel import crc32

PIECE = 4 << 20
_spare: list[mmap.mmap] = []
"""Pieces of memory that no file uses now: new memory costs more than what is done with it here."""


class DirectFile:
    """What Arrow needs to write into; `sync` ends it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = _open(path)
        self._piece = _take()
        self._used = 0
        self._thread: ThreadPoolExecutor | None = None
        """For files of more than one piece."""
        self._writing: Future[None] | None = None
        self.size = 0
        self.crc = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """All of it; nothing once it is closed, when Arrow may still want to end a file that was given up."""
        left = memoryview(data)
        while len(left) and not self.closed:
            if self._used == PIECE:
                self._put_behind()
            taken = left[: PIECE - self._used]
            self._piece[self._used : self._used + len(taken)] = taken
            self._used += len(taken)
            left = left[len(taken) :]
        return len(data)

    def flush(self) -> None:
        """Nothing yet: Arrow asks for it before a file is over."""

    def sync(self) -> None:
        """The content is durable, and the file closed."""
        self._wait()
        at = self._end_piece()
        self._put(self._piece, at, -(-(self.size - at) // mmap.PAGESIZE) * mmap.PAGESIZE)
        os.ftruncate(self._descriptor, self.size)
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Whatever has been written of it."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(OSError):  # given up, so it does not matter
            self._wait()
        if self._thread is not None:
            self._thread.shutdown()
        os.close(self._descriptor)
        _spare.append(self._piece)

    def _put_behind(self) -> None:
        """Have a full piece written while the next is gathered."""
        self._wait()
        self._thread = self._thread or ThreadPoolExecutor(1)
        self._writing = self._thread.submit(self._put_and_spare, self._piece, self._end_piece())
        self._piece = _take()

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _end_piece(self) -> int:
        """Count what is gathered; where in the file it begins."""
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
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)  # blocks of this disk are larger
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
