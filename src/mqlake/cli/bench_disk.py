"""What `mqlake bench disk` measures: a mapped file against system calls, block by block.

Every run has a new file with allocated blocks and goes through it block after block, as a log does. A run ends with its
file or with its share of the time; every case is measured once before any is repeated, in turning order, so that a
disk that becomes slower becomes so for all. What fits in no share of the time is left out: a block that takes longer.

Which way wins depends on block size, disk and system: that is why the transient pool is an option, and why this is
a command. The loop is Python's, for all ways alike: below about 1 KiB it costs more than copying the block.
"""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

BLOCK_SIZES = (16, 64, 256, *(1 << bits for bits in range(10, 27, 2)))
"""From 16 bytes to 64 MiB, each four times the one before. The whole file comes last."""
WAYS = {
    "none": ("mapped", "write", "pool"),
    "end": ("mapped", "write", "pool"),
    "block": ("mapped", "write", "pool"),
    "read": ("mapped", "read"),
}
"""What is compared: writes by how often they are synced, and reads."""
PAGE = 4096
COMMIT_BYTES = 4 * PAGE
"""The pool writes to the file when it has this much: RocketMQ's four pages."""
CHECK_EVERY = 64
"""Short calls between two reads of the clock."""
SHORT = 64 << 10
"""Blocks of this size and more take long enough to look at the clock after each."""
READ_BYTES = 64 << 20
"""Reads need a filled file. One of this size is enough for smaller blocks."""
PROBE_BYTES = 8 << 20
TOO_SLOW = 10
"""A block may take this part of the whole time at most."""

Access = Callable[[int], object]
"""Reads or writes one block at an offset."""


@dataclass(frozen=True)
class Measured:
    """Bytes per second of one way of reading or writing blocks of one size, in each round."""

    block: int
    kind: str
    way: str
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median; 0 if it was left out."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def spread(self) -> float:
        """Half the distance from the slowest to the fastest round, as a part of the median."""
        return (max(self.rates) - min(self.rates)) / 2 / self.rate if self.rates else 0.0


class _Run(NamedTuple):
    """What one run works on."""

    descriptor: int
    pages: mmap.mmap
    block: int
    data: memoryview
    pool: memoryview


class DiskBench:
    """All cases on one folder. Holds one file at a time, and twice its size in memory."""

    def __init__(self, directory: Path, file_bytes: int, seconds: float, rounds: int) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._seconds = seconds
        self._rounds = rounds
        blocks = [*(block for block in BLOCK_SIZES if block < file_bytes), file_bytes]
        self.cases = [Measured(block, kind, way) for block in blocks for kind in WAYS for way in WAYS[kind]]
        self.run_count = rounds * len(self.cases)
        self._share = seconds / self.run_count

    def run(self, progress: Callable[[], None]) -> list[Measured]:
        """Measure all cases; call `progress` after each run. After the first round, stop when the time is over."""
        began = time.perf_counter()
        data = memoryview((os.urandom(1 << 20) * (self._file_bytes // (1 << 20) + 1))[: self._file_bytes])
        with mmap.mmap(-1, self._file_bytes) as buffer:
            buffer[:] = data  # the pool's memory is there before it is used
            with memoryview(buffer) as pool:
                disk_rate = self._probe(data)
                for number in range(self._rounds):
                    for case in self.cases[:: -1 if number % 2 else 1]:
                        if number and time.perf_counter() - began > self._seconds:
                            return self.cases
                        if case.kind in ("none", "read") or case.block / disk_rate <= self._seconds / TOO_SLOW:
                            case.rates.append(self._measure(case, data, pool, disk_rate))
                        progress()
        return self.cases

    def _probe(self, data: memoryview) -> float:
        """Return about how many bytes a second reach the disk: a run must not begin what it cannot finish in time."""
        with tempfile.TemporaryFile(dir=self._directory) as file:
            began = time.perf_counter()
            os.pwrite(file.fileno(), data[:PROBE_BYTES], 0)
            os.fdatasync(file.fileno())
            return min(PROBE_BYTES, len(data)) / (time.perf_counter() - began)

    def _measure(self, case: Measured, data: memoryview, pool: memoryview, disk_rate: float) -> float:
        size = self._file_bytes
        if case.kind == "read":
            size = min(size, max(READ_BYTES, case.block))
        elif case.kind == "end":
            size = min(size, max(case.block, int(disk_rate * self._share)))
        with tempfile.TemporaryFile(dir=self._directory) as file:
            descriptor = file.fileno()
            os.posix_fallocate(descriptor, 0, size)
            if case.kind == "read":
                os.pwrite(descriptor, data[:size], 0)
            with mmap.mmap(descriptor, size) as pages:
                run = _Run(descriptor, pages, case.block, data[: case.block], pool)
                access, finish = _access(run, case)
                return self._rate(access, finish, case, size)

    def _rate(self, access: Access, finish: Access, case: Measured, size: int) -> float:
        """Go through the file once, or until the time is up."""
        every = 1 if case.kind == "block" or case.block >= SHORT else CHECK_EVERY
        done = 0
        began = time.perf_counter()
        for offset in range(0, size - case.block + 1, case.block):
            access(offset)
            done += 1
            if done % every == 0 and time.perf_counter() - began > self._share:
                break
        finish(done * case.block)
        return done * case.block / (time.perf_counter() - began)


def _access(run: _Run, case: Measured) -> tuple[Access, Access]:
    """Return what is called for each block, and at the end with the end's offset."""
    descriptor, pages, block, data, pool = run
    committed = 0

    def read_mapped(offset: int) -> object:
        return pages[offset : offset + block]

    def read_calls(offset: int) -> object:
        return os.pread(descriptor, block, offset)

    def write_mapped(offset: int) -> None:
        pages[offset : offset + block] = data

    def write_calls(offset: int) -> object:
        return os.pwrite(descriptor, data, offset)

    def commit(end: int) -> None:
        nonlocal committed
        os.pwrite(descriptor, pool[committed:end], committed)
        committed = end

    def write_pool(offset: int) -> None:
        end = offset + block
        pool[offset:end] = data
        if end - committed >= COMMIT_BYTES:
            commit(end)

    def write_pool_at_once(offset: int) -> None:
        pool[offset : offset + block] = data
        commit(offset + block)

    def nothing(end: int) -> None:
        return None

    def sync(_: int) -> None:
        os.fdatasync(descriptor)

    if case.kind == "read":
        return (read_mapped if case.way == "mapped" else read_calls), nothing
    if case.kind == "block":
        each: dict[str, Access] = {"mapped": write_mapped, "write": write_calls, "pool": write_pool_at_once}
        return _both(each[case.way], sync), nothing
    ways: dict[str, Access] = {"mapped": write_mapped, "write": write_calls, "pool": write_pool}
    last = commit if case.way == "pool" else nothing
    return ways[case.way], _both(last, sync) if case.kind == "end" else last


def _both(first: Access, second: Access) -> Access:
    def both(offset: int) -> None:
        first(offset)
        second(offset)

    return both
