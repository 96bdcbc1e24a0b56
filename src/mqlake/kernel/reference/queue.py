"""Consume-queue entries: how many of them hold, and the records they point at."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from typing import TypeVar

from mqlake.kernel.reference.message import StoredRecord
from mqlake.kernel.reference.record import BORN_IPV6, FIXED_SIZE, check_record, parse, raw_properties
from mqlake.kernel.types import BAD_ENTRY, LogFile, Readable

Kind = TypeVar("Kind", bound=StoredRecord)
ENTRY = struct.Struct(">qiq")  # physical offset, record size, tags code
FILLER_SIZE = 0x7FFFFFFF  # the size in an entry that stands for no message (the queue began later)


def count_valid_entries(entries: Readable, log_end: int) -> int:
    """How many entries from the first on are whole: size above 0, and the record ends at or before `log_end`."""
    count = 0
    for count, at in enumerate(range(0, len(entries) - 19, 20)):
        offset, size, _ = ENTRY.unpack_from(entries, at)
        if offset < 0 or size <= 0 or (size != FILLER_SIZE and offset + size > log_end):
            return count
    return len(entries) // 20


def select_entries(entries: Readable, first: int, codes: bytes, limit: int) -> tuple[list[int], int]:
    """The numbers of at most `limit` entries from `first` on that have one of the tags codes, and where it stopped.

    `codes` are native int64, rising. An entry that stands for no message has none.
    """
    if first < 0 or limit < 1:
        raise ValueError(f"{first} is no number of an entry, or {limit} no limit")
    wanted = set(memoryview(codes).cast("q"))
    found: list[int] = []
    while first < len(entries) // 20 and len(found) < limit:
        _, size, code = ENTRY.unpack_from(entries, first * 20)
        if code in wanted and size != FILLER_SIZE:
            found.append(first)
        first += 1
    return found, first


def read_records(
    log: Readable,
    log_start: int,
    readable: int,
    entries: Readable,
    first: int,
    max_bytes: int,
    kind: type[Kind],
    topic: bytes,
    queue_id: int,
    start: int,
    numbers: list[int] | None = None,
) -> tuple[list[Kind], int, int]:
    """Copy out the records that entries point at, from entry `first` on, while they lie in this stretch of the log.

    `log` holds the log from offset `log_start` on, `readable` bytes of it. Every record is checked, CRC included, and
    must be the one of its number: the entries are those of a queue of `topic` from number `start` on.
    `kind` is the class, a StoredRecord, that they are made into. With `numbers`, rising, only those entries count, and
    `first` is a place in that list.
    Returns the records, the entry where reading stopped, and why: 0 (all read, the next lies outside, or `max_bytes`
    are full; one record always fits) or the code of `check_record` for the record that is damaged, or BAD_ENTRY (-7)
    where another record is there than the entry must name.
    """
    if not issubclass(kind, StoredRecord):
        raise TypeError(f"{kind!r} is no StoredRecord")
    if first < 0:
        raise ValueError(f"{first} is no number of an entry")
    found: list[Kind] = []
    taken = 0
    readable = min(readable, len(log))
    total = len(entries) // 20
    for number in numbers or ():
        if not 0 <= number < total:
            raise ValueError(f"{number} is not inside of {total} entries")
    while first < (total if numbers is None else len(numbers)):
        number = first if numbers is None else numbers[first]
        offset, size, _ = ENTRY.unpack_from(entries, number * 20)
        at = offset - log_start
        if not 0 <= at < readable or size <= 0 or (taken and taken + size > max_bytes):
            break
        result = check_record(log, at, readable, offset, True)
        if result != size:
            return found, first, result if result < 0 else BAD_ENTRY
        record = bytes(log[at : at + size])
        if not _is_numbered(record, topic, queue_id, start + number):
            return found, first, BAD_ENTRY
        found.append(kind(record))
        taken += size
        first += 1
    return found, first, 0


def _is_numbered(record: bytes, topic: bytes, queue_id: int, number: int) -> bool:
    """The record has this number in this queue: as its own, or as one of the light queues that it names."""
    parsed = parse(record, -1, False)
    assert not isinstance(parsed, int), "it was checked"
    fields = parsed[1]
    raw_topic = record[fields.body_at + fields.body_size + (2 if record[7] == 0xAB else 1) : fields.properties_at - 2]
    if (fields.queue_offset, fields.queue_id, raw_topic) == (number, queue_id, topic) and topic:
        return True
    properties = raw_properties(record[fields.properties_at :])
    names = properties.get(b"INNER_MULTI_DISPATCH", b"").split(b",")
    offsets = properties.get(b"INNER_MULTI_QUEUE_OFFSET", b"").split(b",")
    for name, offset in zip(names, offsets, strict=False):
        if name == topic and topic and 0 < len(offset) <= 18 and offset.isdigit() and int(offset) == number:
            return queue_id == (0 if name.startswith(b"%LMQ%") else fields.queue_id)
    return False


def seek_timestamp(
    entries: Readable, low: int, high: int, timestamp: int, file_at: Callable[[int], LogFile | None]
) -> int:
    """The first of the entries [low, high) whose record was stored at or after a time; `high` where none was.

    `file_at(offset)` gives the log file that covers an offset (its `start` and `pages`), or None: then the record is
    gone, and older than any time.
    """
    if low < 0 or high > len(entries) // 20:
        raise ValueError(f"[{low}, {high}) is not inside of {len(entries) // 20} entries")

    def time_of(number: int) -> int:
        offset = ENTRY.unpack_from(entries, number * 20)[0]
        file = file_at(offset)
        at = offset - file.start if file is not None else -1
        if file is None or not 0 <= at <= len(file.pages) - FIXED_SIZE:
            return -1
        where = at + (68 if file.pages[at + 39] & BORN_IPV6 else 56)
        return int.from_bytes(file.pages[where : where + 8], "big", signed=True)

    return low + bisect_left(range(low, high), timestamp, key=time_of)
