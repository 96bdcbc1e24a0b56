"""One file of fixed size, mapped into memory.

Bytes are written through the mapping (the log) or through the descriptor (the queues); both go to the page cache. A
file is synced through its descriptor: `mmap.flush` would hold the interpreter lock during the whole sync.

A file has its full size from the start, but blocks only up to `reserved`. On a full disk, a store into a mapped page
without a block raises SIGBUS, so code that writes through the mapping must call `reserve` first. An existing file may
have holes anywhere (a sparse copy of a store does), so nothing of it counts as reserved.

A file is never unmapped while it is read. Deleting it removes its name; its pages live until the last view of them is
released. Python's reference counts do this; there is no other bookkeeping.
"""

from __future__ import annotations

import errno
import gc
import itertools
import mmap
import os
import stat
import time
import weakref
from pathlib import Path

from mqlake.errors import BadFile, StoreError, file_error
from mqlake.files.open_files import open_files
from mqlake.runtime.locks import make_global_lock

PAGE_SIZE = 4096
COPIED_AT_ONCE = 1 << 20


class _Counters:
    """Process-wide: how many files are mapped, and how much address space they take."""

    def __init__(self) -> None:
        self._lock = make_global_lock("counters")
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

    __slots__ = ("__weakref__", "_finalizer", "descriptor", "pages", "path", "reserved", "size", "start", "was_used")

    def __init__(self, path: Path, start: int, size: int, descriptor: int, *, writable: bool) -> None:
        """Take ownership of the descriptor, also if this fails. The file must have `size` bytes already."""
        self.path = path
        self.start = start
        self.size = size
        self.descriptor = descriptor
        self.reserved = 0
        """The bytes before this position are known to have blocks."""
        self.was_used = False
        """Set on use: `open_files` closes files that were not used since it last checked."""
        # Runs when the last reference is dropped. Views of `pages` keep only the mapping alive, not the descriptor.
        # First: from here on nobody else may close the descriptor, whatever interrupts what follows.
        self._finalizer = weakref.finalize(self, os.close, descriptor)
        self._finalizer.atexit = False
        self.pages = map_pages(descriptor, size, writable=writable)

    @classmethod
    def open(cls, path: Path, start: int, size: int, *, writable: bool) -> MappedFile:
        """Map an existing file. It must have exactly this size: access to pages past a file's end raises SIGBUS."""
        descriptor = open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            found = os.fstat(descriptor).st_size
        except BaseException:
            os.close(descriptor)
            raise
        if found != size:
            os.close(descriptor)
            raise BadFile(path, f"{found} bytes", f"{size} bytes, as its neighbours have")
        try:
            return cls(path, start, size, descriptor, writable=writable)
        except OSError as error:
            raise file_error(path, "mapped", size, error) from error

    @classmethod
    def create(cls, path: Path, start: int, size: int, *, reserve: int, scratch: Path | None = None) -> MappedFile:
        """Create a file of zeros. Its first `reserve` bytes get blocks, so that a full disk is an error here.

        With `scratch`, a folder on the same file system, the file is created there and renamed when it is complete:
        neither a crash nor a reader ever finds it incomplete.
        """
        made = path if scratch is None else scratch / str(next(_numbers))
        descriptor = -1
        try:
            made.parent.mkdir(parents=True, exist_ok=True)
            descriptor = open_descriptor(made, os.O_RDWR | os.O_CREAT)
            _give_size(descriptor, size, reserve)
            if made != path:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.rename(path)
            given, descriptor = descriptor, -1
            file = cls(path, start, size, given, writable=True)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            made.unlink(missing_ok=True)  # a failed allocation keeps the blocks it already got
            raise file_error(path, "made", size, error) from error
        file.reserved = min(reserve, size)
        return file

    @classmethod
    def create_sparse(cls, path: Path, start: int, size: int, scratch: Path | None) -> MappedFile:
        """Create a file without blocks, in its own folder, without a name until it is complete.

        Cheaper than `create` for very many files: file systems place the files of one folder near each other, and
        would search for such a place for each file that is created in a shared scratch folder.
        """
        try:
            descriptor = _open_unnamed(path.parent)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise file_error(path, "made", size, error) from error
            return cls.create(path, start, size, reserve=0, scratch=scratch)
        has_name = False
        try:
            os.ftruncate(descriptor, size)
            # With `src_dir_fd`, Python calls linkat, which can follow the link to the unnamed file itself.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
            has_name = True
            given, descriptor = descriptor, -1
            return cls(path, start, size, given, writable=True)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            if has_name:
                path.unlink(missing_ok=True)
            raise file_error(path, "made", size, error) from error

    def reserve(self, upto: int) -> None:
        """Reserve blocks for the bytes before `upto`. Raises DiskFull, and changes nothing, if that fails.

        Costs one system call, or none if they are reserved already. Any thread may call it: in a race `reserved` may
        end up less than what has blocks, never more.
        """
        upto = min(upto, self.size)
        known = self.reserved
        if upto > known:
            try:
                os.posix_fallocate(self.descriptor, known, upto - known)
            except OSError as error:
                raise file_error(self.path, "given blocks", upto - known, error) from error
            self.reserved = upto

    @property
    def end(self) -> int:
        return self.start + self.size

    def view(self, position: int, stop: int) -> memoryview:
        """Return the bytes [position, stop) without a copy. They stay valid while the view lives, deleted or not."""
        return memoryview(self.pages)[position:stop]

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write through the descriptor: a full disk raises DiskFull here, not SIGBUS in a mapped page."""
        left = memoryview(data)
        try:
            while left:
                written = os.pwrite(self.descriptor, left, position)
                left = left[written:]
                position += written
        except OSError as error:
            raise file_error(self.path, "written", len(left), error) from error

    def data_end(self, position: int) -> int:
        """Return where the data ends that begins at a position: at the next hole, or at the file's end.

        Who searches zeros for the end of what was written asks this first: on a full tmpfs, a mapped page in a hole
        cannot even be read, and the attempt is SIGBUS.
        """
        try:
            return min(os.lseek(self.descriptor, position, os.SEEK_HOLE), self.size)
        except OSError:
            return self.size

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return the ranges from `position` on that may hold data, without holes and blocks that were never written.

        All are listed before any is read: read-ahead would cache unwritten blocks, which would then count as data.
        """
        found = []
        while position < self.size:
            try:
                position = os.lseek(self.descriptor, position, os.SEEK_DATA)
                stop = min(os.lseek(self.descriptor, position, os.SEEK_HOLE), self.size)
            except OSError:  # only a hole is left
                break
            found.append((position, stop))
            position = stop
        return found

    def read_in(self) -> None:
        """Replace the mapping by a copy of the data in memory: its holes can be read whatever the disk does."""
        pages = mmap.mmap(
            -1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )  # a page only read takes no memory
        for start, stop in self.data_ranges(0):
            for at in range(start, stop, COPIED_AT_ONCE):
                part = os.pread(self.descriptor, min(stop - at, COPIED_AT_ONCE), at)
                pages[at : at + len(part)] = part
        self.pages = pages

    def zero_from(self, position: int) -> int:
        """Zero everything from `position` on, writing only where it is not zero. Return the end of what was, or 0."""
        zeroes = bytes(1 << 20)
        last_end = 0
        for start, end in self.data_ranges(position):
            for at in range(start, end, len(zeroes)):
                held = self.pages[at : min(end, at + len(zeroes))]
                if held != zeroes[: len(held)]:
                    size = len(held.rstrip(b"\0"))
                    self.write_at(at, zeroes[:size])
                    last_end = at + size
        return last_end

    def sync(self) -> None:
        """Make everything that was written durable."""
        os.fdatasync(self.descriptor)

    def rename(self, path: Path) -> None:
        self.path.rename(path)
        self.path = path

    def delete(self) -> None:
        """Remove the name. Existing views keep valid bytes."""
        self.path.unlink(missing_ok=True)


def _give_size(descriptor: int, size: int, reserve: int) -> None:
    os.ftruncate(descriptor, size)
    if reserve:
        os.posix_fallocate(descriptor, 0, min(reserve, size))


def _open_unnamed(folder: Path) -> int:
    """Create a file without a name in a folder, which is created if it is missing."""
    try:
        return open_descriptor(folder, os.O_RDWR | os.O_TMPFILE)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
    return open_descriptor(folder, os.O_RDWR | os.O_TMPFILE)


def open_regular(path: Path | str, flags: int) -> int:
    """Open a regular file. Raises BadFile for anything else: a FIFO could block forever, a device could act.

    Raises FileNotFoundError or NotADirectoryError if there is nothing, and for any other system error what `file_error`
    makes of it.
    """
    try:
        descriptor = open_descriptor(path, flags | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise _not_opened(Path(path), error) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise BadFile(Path(path), "no regular file", "one; move it away")


def _not_opened(path: Path, error: OSError) -> StoreError:
    # a folder, a socket, a FIFO nobody reads, a device, a link to itself
    if error.errno in (errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.ELOOP):
        return BadFile(path, f"no regular file ({error.strerror})", "one; move it away")
    return file_error(path, "opened", 0, error)


def open_descriptor(path: Path | str, flags: int) -> int:
    """Open a file. If the process has no descriptors left, close the cached queue files and try once more."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno != errno.EMFILE or not open_files:
            raise
    open_files.close_all()
    return os.open(path, flags | os.O_CLOEXEC, 0o644)


def map_pages(descriptor: int, size: int, *, writable: bool) -> mmap.mmap:
    """Map a descriptor (-1: anonymous memory). If that fails, free what can be freed and try once more."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    try:
        pages = mmap.mmap(descriptor, size, access=access)
    except OSError:
        open_files.close_all()  # frees descriptors, mappings and memory, whichever ran out
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
    """Make a file that is not open, or the names in a directory, durable."""
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
