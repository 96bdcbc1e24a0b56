"""The records of queue entries as one run of bytes, as a pull's answer holds them."""

from __future__ import annotations

from collections.abc import Callable

from mqlake.kernel.reference.queue import ENTRY, FILLER_SIZE, _is_numbered, _require_entries
from mqlake.kernel.reference.record import FIXED_SIZE, check_record
from mqlake.kernel.types import LogFile, Readable


def gather_records(
    entries: Readable,
    first: int,
    stop: int,
    start: int,
    topic: bytes,
    queue_id: int,
    log_first: int,
    readable: int,
    file_at: Callable[[int], LogFile | None],
    limit: int,
    max_bytes: int,
    codes: bytes | None = None,
) -> tuple[bytes, int, int, bool]:
    """Copy the records that the entries [first, stop) point at next to each other, at most `limit` of them.

    `entries` belong to a queue of `topic` and begin at queue offset `start`. With `codes` (native int64, ascending)
    only entries with one of these tags codes are taken. Fillers are skipped. Every record is checked, CRC included, and
    must have its entry's queue offset. `max_bytes` may be exceeded by the first record only.

    Return the bytes, the entry where it stopped, how many records they hold, and whether the entry where it stopped,
    if it is before `stop`, is one that cannot be taken: `read_records` tells why.
    """
    _require_entries(len(entries) // 20, first, stop, None)
    wanted = None if codes is None else set(memoryview(codes).cast("q"))
    found: list[bytes] = []
    taken = 0
    while first < stop and len(found) < limit:
        offset, size, code = ENTRY.unpack_from(entries, first * 20)
        if size != FILLER_SIZE and (wanted is None or code in wanted):
            if size < FIXED_SIZE or not log_first <= offset <= readable - size:
                return b"".join(found), first, len(found), True
            if found and taken + size > max_bytes:
                break
            record = _record(file_at(offset), offset, size, readable)
            if record is None or not _is_numbered(record, topic, queue_id, start + first):
                return b"".join(found), first, len(found), True
            found.append(record)
            taken += size
        first += 1
    return b"".join(found), first, len(found), False


def _record(file: LogFile | None, offset: int, size: int, readable: int) -> bytes | None:
    """Return the whole record of this size at an offset; None if there is none."""
    if file is None or not 0 <= offset - file.start < len(file.pages):
        return None
    at, end = offset - file.start, min(readable - file.start, len(file.pages))
    if check_record(file.pages, at, end, offset, True) != size:
        return None
    return bytes(file.pages[at : at + size])
