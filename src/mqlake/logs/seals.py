"""`mqlake/seals/`: checksums of blocks of the log, in one file for each log file, under its name.

RocketMQ's format has a CRC of bodies only. A seal covers every byte of a block, so it shows a changed bit in a header,
a host or a property too, and it proves the bytes that a copy of the log offers instead.

Invariant: the seal of a block is the checksum of bytes that were durable and dispatched. Code that changes such bytes
with good reason drops their seals first, on disk: recovery before it cuts the log (`cut`), repair before it writes
(`forget`). The seals of log files that retention deleted are deleted after them (`drop_deleted`).

RocketMQ does not know of seals: it may have cut the log and continued it otherwise. A log that is cut differs from
there on to its end, so the newest seal that fits proves all before it, and those after it are of another past
(`fitting_end`). Losing seals costs a second look at the log, never a message.

One thread at a time writes here: the writer's worker, or whoever holds the `seals` lock. Any process reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from mqlake.codec.seal_file import (
    BLOCK_BYTES,
    MAX_SIZE,
    SUMS,
    SealTable,
    block_count,
    decode_seals,
    empty_table,
)
from mqlake.errors import StoreError
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.names import file_name, list_files
from mqlake.files.small_files import read_small_file
from mqlake.kernel import check_record, checksum_blocks
from mqlake.kernel.types import Readable

CHUNK_BYTES: Final = 16 << 20
"""Bytes that one call of the kernel covers: a worker that is stopped ends after one."""
SYS_FLAG_AT, STORE_TIME_AT, BORN_IPV6, IPV6_BYTES = 39, 56, 0x10, 12
"""Where a record has the last byte of its system flag, and its store time if it was born at an IPv4 address."""
FileAt = Callable[[int], MappedFile | None]
"""Returns the log file that covers a physical offset."""
Range = tuple[int, int]


class Seals:
    """The seal files of one store. `scratch` is where a new one is written; without it they are only read."""

    def __init__(self, layout: Layout, file_size: int, *, writable: bool) -> None:
        self.folder = layout.seals
        self.file_size = file_size
        self._scratch = layout.scratch if writable else None

    # ---- reading

    def starts(self) -> list[int]:
        """Return the starts of the log files that have a seal file, damaged ones included."""
        try:
            listed = list_files(self.folder, strict=False)
        except StoreError:  # no folder: opening refuses it, and check reports it
            return []
        return [start for start, _ in listed if start % self.file_size == 0]

    def table(self, start: int) -> SealTable | None:
        """Return the seals of a log file; None if it has none that can be used."""
        try:
            return decode_seals(read_small_file(self.folder / file_name(start), MAX_SIZE), start, self.file_size)
        except (OSError, StoreError):
            return None

    def sums_at(self, offset: int) -> tuple[Range, bytes] | None:
        """Return the sealed block that covers a physical offset, and its checksums; None if it is not sealed."""
        start = offset - offset % self.file_size
        table = self.table(start)
        index = (offset - start) // BLOCK_BYTES
        if table is None or offset - start >= table.end or not table.states[index]:
            return None
        low, high = table.block(index)
        return (start + low, start + high), table.sums_of(index)

    # ---- which seals are this log's

    def fitting_end(self, file_at: FileAt, *, is_same_log: bool) -> int:
        """Return the physical offset up to which seals can be believed.

        `is_same_log`: only mqlake wrote since the last checkpoint. Then a seal that does not fit shows damage, unless
        files begin with other records than they did, and none with its own. Otherwise seals after the newest one that
        fits are of another past of the log.
        """
        tables = [table for start in reversed(self.starts()) if (table := self.table(start)) is not None]
        if not tables:
            return 0
        if is_same_log:
            alike = {_begins_alike(table, file_at) for table in tables}
            return 0 if False in alike and True not in alike else tables[0].start + tables[0].end
        for table in tables:
            blocks = _data_blocks(table)
            file = file_at(table.start)
            if file is None or not blocks or not _fits(table, file, blocks[0]):
                continue
            low, high = 0, len(blocks)  # the block at `low` fits, the one at `high` does not
            if _fits(table, file, blocks[-1]):
                low = len(blocks) - 1
            while high - low > 1:
                middle = (low + high) // 2
                if _fits(table, file, blocks[middle]):
                    low = middle
                else:
                    high = middle
            return table.start + (table.end if high == len(blocks) else table.block(blocks[low])[1])
        return 0

    # ---- writing

    def save(self, tables: Iterable[SealTable]) -> None:
        """Replace seal files, durably. One without a block is removed."""
        assert self._scratch is not None, "only a writer changes seals"
        changed = False
        for table in tables:
            path = self.folder / file_name(table.start)
            if table.end:
                self.folder.mkdir(parents=True, exist_ok=True)
                _write_synced(path, table.encode(), self._scratch)
            else:
                path.unlink(missing_ok=True)
            changed = True
        if changed and self.folder.is_dir():
            sync_directory(self.folder)

    def cut(self, end: int) -> None:
        """Drop the seals of blocks that reach past a physical offset, before the log is cut there."""
        cut = []
        for start in reversed(self.starts()):
            if start + self.file_size <= end:
                break
            table = self.table(start)
            if table is None or start + table.end > end:
                empty = empty_table(start, self.file_size)
                cut.append(empty if table is None else table.cut_to(max(0, end - start)))
        self.save(cut)

    def forget(self, ranges: Iterable[Range]) -> None:
        """Drop the seals of blocks that overlap ranges of the log, before these are written."""
        changed: dict[int, SealTable] = {}
        for low, high in ranges:
            for start in range(low - low % self.file_size, high, self.file_size):
                table = changed.get(start) or self.table(start)
                if table is not None:
                    changed[start] = table.without(max(0, low - start), min(high - start, table.end))
        self.save(changed.values())

    def drop_deleted(self, starts: Iterable[int]) -> None:
        """Remove the seal files of log files that no longer exist."""
        gone = set(self.starts()).difference(starts)
        for start in gone:
            (self.folder / file_name(start)).unlink(missing_ok=True)


def extend(table: SealTable, pages: Readable, end: int, holes: Sequence[Range]) -> SealTable:
    """Return the table with the blocks up to position `end` sealed, except those that overlap `holes`.

    A last block that was short is continued from its checksums: bytes that changed since make it wrong, not right.
    """
    begin, index = table.end, table.end // BLOCK_BYTES
    if end <= begin:
        return table
    crc = crc_c = 0
    if begin % BLOCK_BYTES:
        crc, crc_c = SUMS.unpack(table.sums_of(index))
    sums = checksum_blocks(pages, begin, end, BLOCK_BYTES, crc, crc_c)
    count = len(sums) // SUMS.size
    states = b"\1" * count
    if begin % BLOCK_BYTES and not table.states[index]:
        states = b"\0" + states[1:]
    made = table._replace(end=end, states=table.states[:index] + states, sums=table.sums[: index * SUMS.size] + sums)
    if states[:1] == b"\0":
        made = made.without(index * BLOCK_BYTES, index * BLOCK_BYTES + 1)
    for low, high in holes:
        if low < end and high > begin:
            made = made.without(max(low, 0), min(high, end))
    return made


def fill(table: SealTable, pages: Readable, index: int) -> SealTable:
    """Return the table with one block sealed as it is now."""
    low, high = table.block(index)
    at = index * SUMS.size
    sums = checksum_blocks(pages, low, high, BLOCK_BYTES)
    return table._replace(
        states=table.states[:index] + b"\1" + table.states[index + 1 :],
        sums=table.sums[:at] + sums + table.sums[at + SUMS.size :],
    )


def broken_blocks(table: SealTable, pages: Readable, low: int, high: int) -> list[int]:
    """Return the sealed blocks of positions [low, high) whose bytes do not fit. `low` begins a block.

    Blocks that a file of less than its full size no longer has do not fit.
    """
    high = min(high, table.end)
    readable = high if len(pages) >= high else max(low, len(pages) // BLOCK_BYTES * BLOCK_BYTES)
    first, size = low // BLOCK_BYTES, SUMS.size
    if low >= high:
        return []
    found = checksum_blocks(pages, low, readable, BLOCK_BYTES)
    expected = table.sums[first * size : first * size + len(found)]
    broken = []
    if found != expected:
        places = range(0, len(found), size)
        broken = [first + at // size for at in places if found[at : at + size] != expected[at : at + size]]
    broken += range(block_count(readable), block_count(high)) if readable < high else ()
    return [index for index in broken if table.states[index]]


def first_time(pages: Readable) -> int:
    """Return the store time of the record with which a log file begins, whole or not."""
    at = STORE_TIME_AT + (IPV6_BYTES if pages[SYS_FLAG_AT] & BORN_IPV6 else 0)
    return int.from_bytes(pages[at : at + 8], "big", signed=True)


def _begins_alike(table: SealTable, file_at: FileAt) -> bool | None:
    """Return whether a log file begins with the record that it began with; None if it is missing or begins damaged.

    Another log has a whole record of another time there. One other bit in the time is damage, too.
    """
    file = file_at(table.start)
    if file is None or check_record(file.pages, 0, file.size, table.start, True) <= 0:
        return None
    return (first_time(file.pages) ^ table.first_time).bit_count() <= 1


def _data_blocks(table: SealTable) -> list[int]:
    """Return the sealed blocks that are not only zeros: the unused end of a file looks the same in every log."""
    zeros = checksum_blocks(bytes(BLOCK_BYTES), 0, BLOCK_BYTES, BLOCK_BYTES)
    short = b""
    if table.end % BLOCK_BYTES:
        short = checksum_blocks(bytes(table.end % BLOCK_BYTES), 0, table.end % BLOCK_BYTES, BLOCK_BYTES)
    last = block_count(table.end) - 1
    return [index for index in table.sealed() if table.sums_of(index) != (short if short and index == last else zeros)]


def _fits(table: SealTable, file: MappedFile, index: int) -> bool:
    low, high = table.block(index)
    return high <= file.size and checksum_blocks(file.pages, low, high, BLOCK_BYTES) == table.sums_of(index)


def _write_synced(path: Path, content: bytes, scratch: Path) -> None:
    """Replace a file. The caller syncs the folder."""
    scratch.mkdir(parents=True, exist_ok=True)
    temporary = scratch / f"{path.name}.seals"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
