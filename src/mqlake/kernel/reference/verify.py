"""Verify the log, the chains of an index file, and its entries against the keys of the log."""

from __future__ import annotations

import struct

from mqlake.kernel.reference.index import ENTRY, KEY, SLOT, _entry_at, _require_geometry, _slot_at
from mqlake.kernel.reference.record import parse
from mqlake.kernel.types import REACHED_END, MatchedKeys, Readable, Surveyed

MAX_TOLD = 64
LOOK_AHEAD = 64
Pair = tuple[int, int]


def survey_records(log: Readable, position: int, end: int, log_start: int, max_bytes: int) -> Surveyed:
    """Walk the valid records in [position, end) of a log file, CRC included, for at most `max_bytes`."""
    if position < 0 or end > len(log) or position > end:
        raise ValueError(f"[{position}, {end}) is not inside {len(log)} bytes")
    stop, why = position + min(end - position, max_bytes), REACHED_END
    times: list[int] = []
    ports: list[tuple[int, int]] = []
    while position < stop:
        parsed = parse(log[position:end], log_start + position, True)
        if isinstance(parsed, int):
            why = parsed
            break
        size, fields = parsed
        times.append(fields.store_timestamp)
        for host, packed in enumerate((fields.born_host, fields.store_host)):
            if not 0 <= int.from_bytes(packed[-4:], "big", signed=True) <= 0xFFFF:
                ports.append((position, host))
        position += size
    first, oldest, newest = (times[0], min(times), max(times)) if times else (0, 0, 0)
    return Surveyed(position, why, len(times), first, oldest, newest, times == sorted(times), ports)


def check_index(
    index: Readable, slot_count: int, entry_count: int, next_entry: int, live: bool
) -> tuple[list[tuple[int, int, int, int]], int]:
    """Return the faults of the chains of an index file, as (entry, slot, found, expected), and how many slots are used.

    An entry's fault is a wrong link to the entry before it in its chain; entry 0 stands for a fault of the slot itself.
    With `live`, a slot may name an entry from `next_entry` on: it was added since.
    """
    _require_geometry(index, slot_count, entry_count)
    if not 0 <= next_entry <= entry_count:
        raise ValueError(f"{next_entry} is not the index of an entry")
    heads = [0] * slot_count
    faults = []
    for number in range(1, next_entry):
        key_hash, _, _, previous = ENTRY.unpack_from(index, _entry_at(slot_count, number))
        slot = max(key_hash, 0) % slot_count
        if previous != heads[slot]:
            faults.append((number, slot, previous, heads[slot]))
        heads[slot] = number
    for slot, head in enumerate(heads):
        (number,) = SLOT.unpack_from(index, _slot_at(slot_count, slot))
        if number != head and not (live and number >= next_entry):
            faults.append((0, slot, number, head))
    return faults[:MAX_TOLD], sum(head != 0 for head in heads)


def first_index_entry(index: Readable, slot_count: int, entry_count: int, next_entry: int, offset: int) -> int:
    """Return the first entry before `next_entry` that names this offset or a later one; `next_entry` if none does."""
    _require_geometry(index, slot_count, entry_count)
    if not 1 <= next_entry <= entry_count:
        raise ValueError(f"{next_entry} is not the index of an entry")
    for number in range(1, next_entry):
        if ENTRY.unpack_from(index, _entry_at(slot_count, number))[1] >= offset:
            return number
    return next_entry


def match_index_keys(
    index: Readable, slot_count: int, entry_count: int, entry: int, next_entry: int, keys: Readable, first: int
) -> MatchedKeys:
    """Compare entries with keys, both in the order of the log.

    It stops when one of the two sides ends. Where they differ, it searches a few items ahead for a place where they
    agree again.
    """
    _require_geometry(index, slot_count, entry_count)
    if entry < 0 or first < 0 or next_entry > entry_count:
        raise ValueError(f"entry {entry} of {next_entry}, key {first}")
    entries = [ENTRY.unpack_from(index, _entry_at(slot_count, number))[:2] for number in range(entry, next_entry)]
    wanted = [KEY.unpack_from(keys, at)[:2] for at in range(first * KEY.size, len(keys) - KEY.size + 1, KEY.size)]
    times = [KEY.unpack_from(keys, at)[2] for at in range(first * KEY.size, len(keys) - KEY.size + 1, KEY.size)]
    (begin,) = struct.unpack_from(">q", index)
    late: list[int] = []
    missing: list[int] = []
    surplus: list[int] = []
    e = k = 0
    while e < len(entries) and k < len(wanted):
        if entries[e] == wanted[k]:
            seconds = min((times[k] - begin) // 1000, 0x7FFFFFFF) if 0 < begin < times[k] else 0
            if entry + e > 1 and ENTRY.unpack_from(index, _entry_at(slot_count, entry + e))[2] != seconds:
                late.append(entry + e)
            e, k = e + 1, k + 1
            continue
        ahead = _resume_after(entries[e : e + LOOK_AHEAD], wanted[k : k + LOOK_AHEAD])
        if ahead != -1:
            surplus.append(entry + e)
            e += 1
        if ahead != 1:
            missing.append(first + k)
            k += 1
    told = missing[:MAX_TOLD], surplus[:MAX_TOLD]
    return MatchedKeys(entry + e, first + k, len(missing), told[0], len(surplus), told[1], late[:MAX_TOLD])


def _resume_after(entries: list[Pair], wanted: list[Pair]) -> int:
    """Return what to skip where the two sides differ: 1 an entry, -1 a key, 0 one of each."""
    for by in range(1, LOOK_AHEAD):
        if by < len(entries) and by < len(wanted) and entries[by] == wanted[by]:
            return 0
        if by < len(wanted) and entries[0] == wanted[by]:
            return -1
        if by < len(entries) and entries[by] == wanted[0]:
            return 1
    return (entries[0][1] < wanted[0][1]) - (entries[0][1] > wanted[0][1])
