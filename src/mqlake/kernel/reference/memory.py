"""Warming up and locking mapped pages through ctypes, for installations without the compiled kernel."""

from __future__ import annotations

import ctypes
import os

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


def _call(name: str, pages: Writable, start: int, size: int, *more: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    arguments = [ctypes.c_void_p(address + start), ctypes.c_size_t(size), *map(ctypes.c_int, more)]
    if libc[name](*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
