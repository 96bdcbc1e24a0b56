"""One file of fixed size, mapped into memory.

Bytes are written through the mapping (the log) or through the descriptor (the queues); both meet in the page cache.
A file is synced through its descriptor: `mmap.flush` would keep the interpreter lock for the whole sync.

A file is never unmapped under a reader. Deleting it removes its name; its pages live until the last view of them is
released, which the reference counts of Python see to. There is no other bookkeeping.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import threading
import time
import weakref
from pathlib import Path

from mqlake.errors import BadFile, DiskFull

PAGE_SIZE = 4096


class _Counters:
    """Process-wide: how many files are mapped, and how much address space they take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.files = 0
        self.bytes = 0

    def add(self, files: int, size: int) -> None:
        with self._lock:
            self.files += files
            self.bytes += size


mapped = _Counters()
_numbers = itertools.count()


class MappedFile:
    """A mapped file: `pages` is the mapping, `start` the offset of its first byte in its queue."""

    __slots__ = ("__weakref__", "_finalizer", "descriptor", "pages", "path", "size", "start")

    def __init__(self, path: Path, start: int, size: int, descriptor: int, *, writable: bool) -> None:
        """Takes the descriptor over; the file has `size` bytes already."""
        self.path = path
        self.start = start
        self.size = size
        self.descriptor = descriptor
        self.pages = map_pages(descriptor, size, writable=writable)
        # Runs when the last reference is gone: views of `pages` keep the mapping, and only the mapping, alive.
        self._finalizer = weakref.finalize(self, os.close, descriptor)
        self._finalizer.atexit = False

    @classmethod
    def open(cls, path: Path, start: int, size: int, *, writable: bool) -> MappedFile:
        """Map an existing file, which must have exactly this size: pages past a file's end are a bus error."""
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor).st_size
            if found != size:
                raise BadFile(path, f"{found} bytes", f"{size} bytes, as its neighbours have")
            return cls(path, start, size, descriptor, writable=writable)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def create(cls, path: Path, start: int, size: int, *, reserve: bool, scratch: Path | None = None) -> MappedFile:
        """Make a new file of zeroes; with `reserve` its blocks are real, so that a full disk refuses here and now.

        With `scratch`, a folder on the same file system, it is made there and gets its name when it is whole: neither
        a crash nor a reader ever finds it half made.
        """
        made = path if scratch is None else scratch / str(next(_numbers))
        made.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, size)
            if reserve:
                os.posix_fallocate(descriptor, 0, size)
            if made != path:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.rename(path)
            return cls(path, start, size, descriptor, writable=True)
        except OSError as error:
            os.close(descriptor)
            made.unlink(missing_ok=True)  # a failed allocation keeps the blocks that it got
            raise DiskFull(path, size, error.strerror or str(error)) from error

    @property
    def end(self) -> int:
        return self.start + self.size

    def view(self, position: int, stop: int) -> memoryview:
        """The bytes [position, stop), without a copy; they stay valid while the view lives, deleted or not."""
        return memoryview(self.pages)[position:stop]

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write through the descriptor: a full disk is an error here, not a bus error in a mapped page."""
        left = memoryview(data)
        while left:
            written = os.pwrite(self.descriptor, left, position)
            left = left[written:]
            position += written

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """The ranges behind `position` that may hold something: holes, and blocks never written, are passed over.

        All are found before any is read: reading ahead makes pages of blocks never written, which count as data then.
        """
        found = []
        while position < self.size:
            try:
                position = os.lseek(self.descriptor, position, os.SEEK_DATA)
                stop = min(os.lseek(self.descriptor, position, os.SEEK_HOLE), self.size)
            except OSError:  # nothing but a hole is left
                break
            found.append((position, stop))
            position = stop
        return found

    def zero_from(self, position: int) -> int:
        """Make everything behind `position` zero, writing only where it is not; where the last of it ended, or 0."""
        zeroes = bytes(1 << 20)
        behind = 0
        for start, end in self.data_ranges(position):
            for at in range(start, end, len(zeroes)):
                held = self.pages[at : min(end, at + len(zeroes))]
                if held != zeroes[: len(held)]:
                    size = len(held.rstrip(b"\0"))
                    self.write_at(at, zeroes[:size])
                    behind = at + size
        return behind

    def sync(self) -> None:
        """Bring all that was written to the disk."""
        os.fdatasync(self.descriptor)

    def rename(self, path: Path) -> None:
        self.path.rename(path)
        self.path = path

    def delete(self) -> None:
        """Remove the name; who holds a view keeps reading valid bytes."""
        self.path.unlink(missing_ok=True)


def map_pages(descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
    """Map a descriptor (-1: anonymous memory). Where mapping fails, free what can be freed and try once more."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    try:
        pages = mmap.mmap(descriptor, size, access=access)
    except OSError:
        gc.collect()
        time.sleep(0.1)
        pages = mmap.mmap(descriptor, size, access=access)
    mapped.add(1, size)
    weakref.finalize(pages, mapped.add, -1, -size).atexit = False
    return pages


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    sync_file(directory)


def sync_file(path: Path) -> None:
    """Bring a file that is not open, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
