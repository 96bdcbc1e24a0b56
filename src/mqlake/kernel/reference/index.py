"""The hash index over message keys: put many, look one up."""

from __future__ import annotations

import struct

from mqlake.kernel.reference.hashing import as_int64
from mqlake.kernel.types import Readable, Writable

HEADER = struct.Struct(
    ">qqqqii"
)  # begin time, end time, begin offset, end offset, used slots, number of the next entry
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(">iqii")  # key hash, physical offset, seconds since begin time, previous entry of the chain
KEY = struct.Struct("<iqq")  # hash, physical offset, store time: what dispatch_records returns


def put_index_keys(index: Writable, slot_count: int, entry_count: int, keys: Readable, first: int) -> int:
    """Add keys from index `first` on. Return the index of the first that did not fit into the file, or their count."""
    if first < 0:
        raise ValueError(f"{first} is not the index of a key")
    _require_geometry(index, slot_count, entry_count)
    while first < len(keys) // KEY.size:
        key_hash, offset, timestamp = KEY.unpack_from(keys, first * KEY.size)
        if not _put_key(index, slot_count, entry_count, key_hash, offset, timestamp):
            break
        first += 1
    return first


def _put_key(index: Writable, slots: int, entries: int, key_hash: int, offset: int, timestamp: int) -> bool:
    begin_time, _, begin_offset, end_offset, used, number = HEADER.unpack_from(index)
    number = max(number, 1)
    if offset < end_offset:
        return True  # added before: the file already ends after this message
    if number >= entries:
        return False
    slot_at = _slot_at(slots, key_hash)
    (previous,) = SLOT.unpack_from(index, slot_at)
    previous = previous if 0 <= previous <= number else 0
    seconds = min((timestamp - begin_time) // 1000, 0x7FFFFFFF) if 0 < begin_time < timestamp else 0
    ENTRY.pack_into(index, _entry_at(slots, number), key_hash, offset, seconds, previous)
    SLOT.pack_into(index, slot_at, number)
    if number <= 1:
        begin_time, begin_offset = timestamp, offset
    used = min(used + (previous == 0), 0x7FFFFFFF)
    HEADER.pack_into(index, 0, begin_time, timestamp, begin_offset, offset, used, number + 1)
    return True


def link_index_entries(index: Writable, slot_count: int, entry_count: int) -> None:
    """Relink the entries that the header counts into their chains: the slots, and each entry's previous one."""
    _require_geometry(index, slot_count, entry_count)
    count = min(HEADER.unpack_from(index)[5], entry_count)
    index[HEADER.size : _entry_at(slot_count, 0)] = bytes(SLOT.size * slot_count)
    for number in range(1, count):
        key_hash, offset, seconds, _ = ENTRY.unpack_from(index, _entry_at(slot_count, number))
        slot_at = _slot_at(slot_count, key_hash)
        (previous,) = SLOT.unpack_from(index, slot_at)
        ENTRY.pack_into(index, _entry_at(slot_count, number), key_hash, offset, seconds, previous)
        SLOT.pack_into(index, slot_at, number)


def index_entries_hold(index: Readable, slot_count: int, entry_count: int, header: Readable) -> bool:
    """Return whether the entries that a header counts exist: their offsets rise from its begin to its end offset."""
    if len(header) != HEADER.size:
        raise ValueError(f"a header has {HEADER.size} bytes, not {len(header)}")
    _, _, begin, end, _, count = HEADER.unpack_from(header)
    _require_geometry(index, slot_count, entry_count)
    if count > entry_count:
        return False
    entries = [ENTRY.unpack_from(index, _entry_at(slot_count, number)) for number in range(1, count)]
    offsets = [offset for _, offset, _, _ in entries]
    return not offsets or (
        (offsets[0], offsets[-1]) == (begin, end)
        and offsets == sorted(offsets)
        and all(seconds >= 0 for _, _, seconds, _ in entries)
    )


def find_index_key(
    index: Readable,
    slot_count: int,
    entry_count: int,
    key_hash: int,
    begin_timestamp: int,
    end_timestamp: int,
    limit: int,
) -> list[int]:
    """Return at most `limit` physical offsets that were added under a hash within a time range, newest first.

    An entry's time is in seconds, rounded down, and the first entry of a file may count from the file before. So
    entries near the edges are included, and the caller checks the record's own time.
    """
    _require_geometry(index, slot_count, entry_count)
    begin_time, _, _, _, _, count = HEADER.unpack_from(index)
    (number,) = SLOT.unpack_from(index, _slot_at(slot_count, key_hash))
    if number > count or number >= entry_count:
        number = 0
    found: list[int] = []
    while number > 0 and len(found) < limit:
        entry_hash, offset, seconds, previous = ENTRY.unpack_from(index, _entry_at(slot_count, number))
        if seconds < 0:
            break
        timestamp = as_int64(begin_time + seconds * 1000)
        if entry_hash == key_hash and (number == 1 or begin_timestamp - 1000 < timestamp <= end_timestamp):
            found.append(offset)
        if timestamp <= begin_timestamp - 1000 or previous >= number:  # numbers must fall: no cycle
            break
        number = previous
    return found


def _slot_at(slots: int, key_hash: int) -> int:
    return HEADER.size + SLOT.size * (max(key_hash, 0) % slots)


def _entry_at(slots: int, number: int) -> int:
    return HEADER.size + SLOT.size * slots + ENTRY.size * number


def _require_geometry(index: Readable, slots: int, entries: int) -> None:
    if slots < 1 or entries < 1 or len(index) < _entry_at(slots, entries):
        raise ValueError(f"{len(index)} bytes cannot hold {slots} slots and {entries} entries")
