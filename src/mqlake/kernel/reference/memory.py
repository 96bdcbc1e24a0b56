"""System calls without the compiled kernel: warming up and locking mapped pages, writing to many files."""

from __future__ import annotations

import ctypes
import os
import stat

from mqlake.kernel.types import Writable

MADV_POPULATE_WRITE = 23  # Linux 5.14
EINVAL = 22


def populate(pages: Writable, start: int, size: int) -> bool:
    """Fault pages in for writing, without changing a byte. Return False if the operating system cannot do so."""
    if start < 0 or size < 0 or start + size > len(pages):
        raise ValueError(f"[{start}, {start + size}) is not inside {len(pages)} bytes")
    try:
        _call("madvise", pages, start, size, MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != EINVAL:
            raise
        return False
    return True


def lock_memory(pages: Writable) -> None:
    """Pin pages in memory (mlock)."""
    _call("mlock", pages, 0, len(pages))


def unlock_memory(pages: Writable) -> None:
    """Unpin pages (munlock)."""
    _call("munlock", pages, 0, len(pages))


def sync_file_system(descriptor: int) -> bool:
    """Never: here, whoever has much to sync syncs file by file."""
    return False


def write_to_files(paths: list[bytes], positions: list[int], contents: list[bytes]) -> tuple[int, int]:
    """Write contents[i] at positions[i] of the existing regular file paths[i], each opened for that alone.

    Return how many were written, and why the next was not: an errno, EINVAL if it is no regular file; 0 if all were.
    """
    if not len(paths) == len(positions) == len(contents):
        raise ValueError(f"{len(paths)} paths, {len(positions)} positions and {len(contents)} contents")
    for done, (path, position, content) in enumerate(zip(paths, positions, contents, strict=True)):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return done, EINVAL
                left = memoryview(content)
                while left:
                    written = os.pwrite(descriptor, left, position)
                    left, position = left[written:], position + written
            finally:
                os.close(descriptor)
        except OSError as error:
            return done, error.errno or 0
    return len(paths), 0


def _call(name: str, pages: Writable, start: int, size: int, *more: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    arguments = [ctypes.c_void_p(address + start), ctypes.c_size_t(size), *map(ctypes.c_int, more)]
    if libc[name](*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
