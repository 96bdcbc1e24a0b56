"""What `mqlake bench disk` measures: a mapped file against system calls, block by block.

Every cell has a new file with allocated blocks, and writes block after block, as a log does. A synced write is one sync
a block. Which side wins depends on the block size, the disk and the system: that is why the transient pool is an
option, and why this is a command.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BLOCK_SIZES = (64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
COLUMNS = {
    "writeMapped": "mmap",
    "writeCalls": "pwrite",
    "writeMappedSynced": "mmap+sync",
    "writeCallsSynced": "pwrite+sync",
    "readMapped": "mmap read",
    "readCalls": "pread",
}
"""Names in JSON and in tables. Two neighbours are a pair."""
CHECK_EVERY = 64
"""Short calls between two reads of the clock."""

Access = Callable[[int], object]
"""Reads or writes one block at an offset."""


def measure(
    directory: Path, block: int, file_bytes: int, seconds: float, progress: Callable[[], None]
) -> dict[str, float]:
    """Bytes per second of each column, for one block size."""
    rates = {}
    for name in COLUMNS:
        reads, mapped, synced = name.startswith("read"), "Mapped" in name, name.endswith("Synced")
        with tempfile.TemporaryFile(dir=directory) as file:
            descriptor = file.fileno()
            os.posix_fallocate(descriptor, 0, max(file_bytes, block))
            if reads:
                _fill(descriptor, file_bytes)
            with mmap.mmap(descriptor, max(file_bytes, block)) as pages:
                access = _access(descriptor, pages, block, reads=reads, mapped=mapped, synced=synced)
                rates[name] = _rate(
                    access, block, max(file_bytes, block), seconds, check_every=1 if synced else CHECK_EVERY
                )
        progress()
    return rates


def _access(descriptor: int, pages: mmap.mmap, block: int, *, reads: bool, mapped: bool, synced: bool) -> Access:
    data = os.urandom(block)

    def read_mapped(offset: int) -> object:
        return pages[offset : offset + block]

    def read_calls(offset: int) -> object:
        return os.pread(descriptor, block, offset)

    def write_mapped(offset: int) -> None:
        pages[offset : offset + block] = data

    def write_calls(offset: int) -> object:
        return os.pwrite(descriptor, data, offset)

    if reads:
        return read_mapped if mapped else read_calls
    write: Access = write_mapped if mapped else write_calls
    if not synced:
        return write

    def write_and_sync(offset: int) -> None:
        write(offset)
        os.fdatasync(descriptor)

    return write_and_sync


def _fill(descriptor: int, file_bytes: int) -> None:
    """Write real bytes into the page cache: reading unwritten blocks would touch no data."""
    chunk = os.urandom(1 << 20)
    for offset in range(0, file_bytes, len(chunk)):
        os.pwrite(descriptor, chunk[: file_bytes - offset], offset)


def _rate(access: Access, block: int, file_bytes: int, seconds: float, *, check_every: int) -> float:
    """Process the file once, or until the time is up."""
    done = 0
    began = time.perf_counter()
    for offset in range(0, file_bytes - block + 1, block):
        access(offset)
        done += 1
        if done % check_every == 0 and time.perf_counter() - began > seconds:
            break
    return done * block / (time.perf_counter() - began)
