"""Consume-queue entries: how many are valid, and the records they point at."""

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
FILLER_SIZE = 0x7FFFFFFF  # the size in a filler: an entry without a message


def count_valid_entries(entries: Readable, log_end: int) -> int:
    """Count the leading entries that are valid: size above 0, and the record ends at or before `log_end`."""
    count = 0
    for count, at in enumerate(range(0, len(entries) - 19, 20)):
        offset, size, _ = ENTRY.unpack_from(entries, at)
        if offset < 0 or size <= 0 or (size != FILLER_SIZE and offset + size > log_end):
            return count
    return len(entries) // 20


def select_entries(entries: Readable, first: int, codes: bytes, limit: int) -> tuple[list[int], int]:
    """Return the indexes of at most `limit` entries from `first` on with one of the tags codes, and where it stopped.

    `codes` are native int64, ascending. A filler never matches.
    """
    if first < 0 or limit < 1:
        raise ValueError(f"{first} is not the index of an entry, or {limit} is not a limit")
    wanted = set(memoryview(codes).cast("q"))
    found: list[int] = []
    while first < len(entries) // 20 and len(found) < limit:
        _, size, code = ENTRY.unpack_from(entries, first * 20)
        if code in wanted and size != FILLER_SIZE:
            found.append(first)
        first += 1
    return found, first


def read_records(
    entries: Readable,
    first: int,
    stop: int,
    start: int,
    topic: bytes,
    queue_id: int,
    log_first: int,
    readable: int,
    file_at: Callable[[int], LogFile | None],
    max_bytes: int,
    kind: type[Kind],
    numbers: list[int] | None = None,
) -> tuple[list[Kind], int, int]:
    """Copy the records that the entries [first, stop) point at, while they lie in [log_first, readable) of the log.

    `entries` belong to a queue of `topic` and begin at queue offset `start`. Every record is checked, CRC included, and
    must have its entry's queue offset. `file_at(offset)` returns the log file that covers an offset (with `start` and
    `pages`), or None. `kind`, a StoredRecord class, is the class of the results. With `numbers`, ascending, only those
    entries are read, and `first` and `stop` are positions in that list.

    Return the records, the position where reading stopped, and why: 0 (all were read; or the next entry is a filler or
    points outside the log; or `max_bytes` are full, but one record always fits), or the code of `check_record` for a
    damaged record, or BAD_ENTRY (-7) if another record is there than the entry must name.
    """
    if not isinstance(kind, type) or not issubclass(kind, StoredRecord):
        raise TypeError(f"{kind!r} is not a StoredRecord")
    _require_entries(len(entries) // 20, first, stop, numbers)
    found: list[Kind] = []
    taken = 0
    while first < stop:
        number = first if numbers is None else numbers[first]
        offset, size, _ = ENTRY.unpack_from(entries, number * 20)
        if size <= 0 or size == FILLER_SIZE or not log_first <= offset < readable:
            break
        file = file_at(offset)
        at = offset - file.start if file is not None else -1
        if file is None or not 0 <= at < len(file.pages):
            break
        end = min(readable - file.start, len(file.pages))
        # The size in the record itself: a damaged size must be reported, not look like a full read.
        named = int.from_bytes(file.pages[at : at + 4], "big")
        if named == size <= end - at and taken and taken + size > max_bytes:
            break
        result = check_record(file.pages, at, end, offset, True)
        if result != size:
            return found, first, result if result < 0 else BAD_ENTRY
        record = bytes(file.pages[at : at + size])
        if not _is_numbered(record, topic, queue_id, start + number):
            return found, first, BAD_ENTRY
        found.append(kind(record))
        taken += size
        first += 1
    return found, first, 0


def _require_entries(total: int, first: int, stop: int, numbers: list[int] | None) -> None:
    if numbers is not None:
        for number in numbers:
            if not 0 <= number < total:
                raise ValueError(f"{number} is not inside {total} entries")
        total = len(numbers)
    if first < 0 or stop > total:
        raise ValueError(f"[{first}, {stop}) is not inside {total} entries")


def _is_numbered(record: bytes, topic: bytes, queue_id: int, number: int) -> bool:
    """Return whether the record has this queue offset in this queue: as its own, or in a light queue that it names."""
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
    """Return the first of the entries [low, high) whose record was stored at or after a time; `high` if none was.

    `file_at(offset)` returns the log file that covers an offset (with `start` and `pages`), or None: then the record
    was deleted and counts as older than any time.
    """
    if low < 0 or high > len(entries) // 20:
        raise ValueError(f"[{low}, {high}) is not inside {len(entries) // 20} entries")

    def time_of(number: int) -> int:
        offset = ENTRY.unpack_from(entries, number * 20)[0]
        file = file_at(offset)
        at = offset - file.start if file is not None else -1
        if file is None or not 0 <= at <= len(file.pages) - FIXED_SIZE:
            return -1
        where = at + (68 if file.pages[at + 39] & BORN_IPV6 else 56)
        return int.from_bytes(file.pages[where : where + 8], "big", signed=True)

    return low + bisect_left(range(low, high), timestamp, key=time_of)
