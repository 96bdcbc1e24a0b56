"""A file that is written once, past the page cache: what goes into the lake does not push the log out of memory, and
costs the processors a quarter of what copying it there and writing it back would.

The disk takes whole blocks, from memory that begins with one. So what is written is gathered in a piece of memory that
is used again and again, and the last block is written whole and cut off. A file system that cannot do this gets the
same writes in the ordinary way.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

from mqlake.kernel import crc32

PIECE = 4 << 20
_spare: list[mmap.mmap] = []
"""Pieces of memory that no file uses now: new memory costs more than what is done with it here."""


class DirectFile:
    """What Arrow needs to write into; `sync` ends it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = _open(path)
        self._piece = _spare.pop() if _spare else mmap.mmap(-1, PIECE)
        self._used = 0
        self.size = 0
        self.crc = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """All of it; nothing once it is closed, when Arrow may still want to end a file that was given up."""
        left = memoryview(data)
        while len(left) and not self.closed:
            if self._used == PIECE:
                self._put(PIECE)
            taken = left[: PIECE - self._used]
            self._piece[self._used : self._used + len(taken)] = taken
            self._used += len(taken)
            left = left[len(taken) :]
        return len(data)

    def flush(self) -> None:
        """Nothing yet: Arrow asks for it before a file is over."""

    def sync(self) -> None:
        """The content is durable, and the file closed."""
        size = self.size + self._used
        self._put(-(-self._used // mmap.PAGESIZE) * mmap.PAGESIZE)
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Whatever has been written of it."""
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)
            _spare.append(self._piece)

    def _put(self, length: int) -> None:
        """Write what is gathered, and what follows it up to a whole block."""
        with memoryview(self._piece) as piece:
            self.crc = crc32(piece[: self._used], self.crc)
            done = 0
            while done < length:
                done += self._write_some(piece[done:length], self.size + done)
        self.size += self._used
        self._used = 0

    def _write_some(self, data: memoryview, at: int) -> int:
        try:
            return os.pwrite(self._descriptor, data, at)
        except OSError as error:
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)  # blocks of this disk are larger
            return os.pwrite(self._descriptor, data, at)


def _open(path: Path) -> int:
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o644)
