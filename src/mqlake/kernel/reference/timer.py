"""Timed messages: when each is due, which are due now, and which were delivered."""

from __future__ import annotations

import struct
from collections.abc import Callable

from mqlake.kernel.reference.record import check_record, decode_properties, parse
from mqlake.kernel.types import BAD_ENTRY, NO_TIME, REACHED_END, LogFile, Readable, Writable

ENTRY = struct.Struct(">qiq")
PAIR = struct.Struct("=qq")
UNIT = struct.Struct(">iqiqiqiiq")
INT64_MAX = (1 << 63) - 1
MAX_DELAY_S = 10**15
END_OF_TIME = 1 << 60
"""Sums of times below it fit into 64 bits."""


def read_timers(
    log: Readable, log_start: int, readable: int, entries: Readable, first: int, precision_ms: int
) -> tuple[bytes, int, int]:
    """Return when timed messages are due: those of `entries` from entry `first` on, as long as they are in this file.

    Returns pairs (due, place) of native int64, the entry where it stopped, and why: 0 (all were read, or the next is
    outside), a code of `check_record`, or NO_TIME (-9). A message is due at its requested time, if that is known and
    lies within one precision unit after TIMER_OUT_MS, else at the end of that unit. Its place is its physical offset.
    A cancellation is due at TIMER_OUT_MS, before all messages of that unit, and its place is inverted.
    """
    if first < 0:
        raise ValueError(f"entry {first}: entries count from 0")
    readable = min(readable, len(log))
    found: list[bytes] = []
    while first < len(entries) // ENTRY.size:
        offset, size, _ = ENTRY.unpack_from(entries, first * ENTRY.size)
        at = offset - log_start
        if not 0 <= at < readable or size <= 0:
            break
        result = check_record(log, at, readable, offset, False)
        if result != size:
            return b"".join(found), first, min(result, 0) or BAD_ENTRY
        pair = _timer(bytes(log[at : at + size]), precision_ms)
        if pair is None:
            return b"".join(found), first, NO_TIME
        found.append(PAIR.pack(*pair))
        first += 1
    return b"".join(found), first, 0


def _timer(record: bytes, precision_ms: int) -> tuple[int, int] | None:
    parsed = parse(record, -1, False)
    assert not isinstance(parsed, int), "the record was checked before"
    fields = parsed[1]
    properties = decode_properties(record[fields.properties_at :])
    out_ms = decimal(properties.get("TIMER_OUT_MS"))
    if out_ms < 0:
        return None
    if "TIMER_DEL_UNIQKEY" in properties:
        return out_ms, ~fields.physical_offset
    exact = decimal(properties.get("TIMER_DELIVER_MS"))
    delay_sec, delay_ms = decimal(properties.get("TIMER_DELAY_SEC")), decimal(properties.get("TIMER_DELAY_MS"))
    if delay_sec >= 0 or delay_ms >= 0:
        exact = delay_ms if delay_sec < 0 else (delay_sec * 1000 if delay_sec < MAX_DELAY_S else -1)
        is_time = exact >= 0 and 0 <= fields.store_timestamp < END_OF_TIME
        exact = fields.store_timestamp + exact if is_time else -1
    if not out_ms < exact <= out_ms + precision_ms:
        exact = out_ms + precision_ms
    return exact, fields.physical_offset


def decimal(text: str | None) -> int:
    """Return a decimal number of at most 18 digits, or -1 if the text is none."""
    if text is None or not 1 <= len(text.encode()) <= 18 or not all("0" <= digit <= "9" for digit in text):
        return -1
    return int(text)


def take_due(pairs: Writable, count: int, before: int) -> tuple[bytes, int, int]:
    """Remove the pairs (due, place) that are due before a time from the first `count`, and close up the rest in order.

    Returns the removed pairs, sorted, how many are left, and when the earliest of those is due (2**63 - 1 if none is
    left).
    """
    if not 0 <= count <= len(pairs) // PAIR.size:
        raise ValueError(f"{count} pairs are not inside of {len(pairs)} bytes")
    items = list(PAIR.iter_unpack(bytes(pairs[: count * PAIR.size])))
    taken = sorted(pair for pair in items if pair[0] < before)
    left = [pair for pair in items if pair[0] >= before]
    pairs[: len(left) * PAIR.size] = b"".join(PAIR.pack(*pair) for pair in left)
    return (
        b"".join(PAIR.pack(*pair) for pair in taken),
        len(left),
        min((due for due, _ in left), default=INT64_MAX),
    )


def find_deliveries(log: Readable, position: int, end: int, log_start: int) -> tuple[int, int, bytes]:
    """Find the records in [position, end) of a log file that deliver another record, named by `prepared_offset`.

    In a committed message, 0 names the log's first record; in all others, 0 means none and -1 names the first. Returns
    where it stopped, why (like `walk_records`), and pairs (own offset, the other's offset) of native int64.
    """
    if not 0 <= position <= end <= len(log):
        raise ValueError(f"[{position}, {end}) is not inside {len(log)} bytes")
    found: list[bytes] = []
    while position < end:
        size = check_record(log, position, end, log_start + position, False)
        if size <= 0:
            return position, size, b"".join(found)
        parsed = parse(bytes(log[position : position + size]), -1, False)
        assert not isinstance(parsed, int), "the record was checked before"
        fields = parsed[1]
        if fields.prepared_offset != 0 or fields.sys_flag & 0xC == 0x8:
            found.append(PAIR.pack(log_start + position, max(fields.prepared_offset, 0)))
        position += size
    return position, REACHED_END, b"".join(found)


def lowest_place(pairs: Readable) -> int:
    """Return the lowest physical offset in pairs (due, place), inverted ones included; 2**63 - 1 if there is none."""
    whole = bytes(pairs[: len(pairs) // PAIR.size * PAIR.size])
    return min((_place(place) for _, place in PAIR.iter_unpack(whole)), default=INT64_MAX)


def _place(place: int) -> int:
    return place if place >= 0 else ~place


def pack_timer_units(
    pairs: Readable,
    now_ms: int,
    precision_ms: int,
    window_ms: int,
    per_file: int,
    file_size: int,
    file_at: Callable[[int], LogFile | None],
    target: Writable,
) -> None:
    """Write units of RocketMQ's timer log for pairs (due, place), in the order of their places.

    The units of one precision unit form a chain: each holds the position of the one before it, the first holds -1. A
    message that is due in `window_ms` or later is parked at an earlier time, when RocketMQ looks at it again. A file
    holds `per_file` units and has `file_size` bytes; `target` gets the units without the gaps between files.
    `file_at(offset)` returns the log file that covers an offset; if there is none, the message gets size 0.
    """
    if precision_ms < 1 or per_file < 1:
        raise ValueError(f"precision_ms = {precision_ms}, per_file = {per_file}: at least 1")
    whole = list(PAIR.iter_unpack(bytes(pairs[: len(pairs) // PAIR.size * PAIR.size])))
    if len(target) < len(whole) * UNIT.size:
        raise ValueError(f"{len(whole)} units are not inside of {len(target)} bytes")
    placed = sorted((_place(place), due * 2 + (place < 0)) for due, place in whole)
    last_of: dict[int, int] = {}
    for number, (offset, coded) in enumerate(placed):
        due_ms, magic = _parked(coded >> 1, bool(coded & 1), now_ms, precision_ms, window_ms)
        before = last_of.get(due_ms, -1)
        last_of[due_ms] = number // per_file * file_size + number % per_file * UNIT.size
        file = file_at(offset)
        at = offset - file.start if file is not None else 0
        size = int.from_bytes(file.pages[at : at + 4], "big", signed=True) if file and at + 4 <= len(file.pages) else 0
        unit = UNIT.pack(UNIT.size, before, magic, now_ms, due_ms - now_ms, offset, size, 0, 0)
        target[number * UNIT.size : (number + 1) * UNIT.size] = unit


def _parked(due_ms: int, cancels: bool, now_ms: int, precision_ms: int, window_ms: int) -> tuple[int, int]:
    """Return when RocketMQ looks at a message, and the magic of its unit."""
    out_ms, magic = (due_ms, 5) if cancels else ((due_ms - 1) // precision_ms * precision_ms, 1)
    beyond_ms = out_ms - now_ms - window_ms
    if beyond_ms < 0:
        return out_ms, magic
    ahead_ms = window_ms // 2 if beyond_ms < window_ms // 3 else window_ms
    return (now_ms + ahead_ms) // precision_ms * precision_ms, magic | 2
