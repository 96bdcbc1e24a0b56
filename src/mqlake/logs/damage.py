"""Find the next record after damage.

A candidate is a record only if magic, lengths, its own physical offset and its CRC agree. Leftovers from an earlier
use of the file can pass all of these. Their store time gives them away: it is older than that of the records before.
"""

from __future__ import annotations

from mqlake.files.mapped_file import MappedFile
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.kernel import check_record, find_record, walk_records
from mqlake.kernel.types import BLANK

APPROACH = 1 << 20
"""Bytes before a wanted boundary at which the walk to it starts, so that it steps over a record quoted in a body."""


def next_record(log: MappedFileQueue, position: int, stop: int, timestamp: int) -> int | None:
    """Return the offset of the first whole record in [position, stop) that is not older than `timestamp`."""
    while position < stop and (file := log.file_at(position)) is not None:
        end = min(stop, file.end) - file.start
        for start, data_end in file.data_ranges(position - file.start):
            at = find_record(file.pages, start, max(start, min(data_end, end)), file.start, True)
            if at < min(data_end, end):
                return None if is_leftover(file, at, end, timestamp) else file.start + at
        position = file.end
    return None


def is_leftover(file: MappedFile, at: int, end: int, timestamp: int) -> bool:
    """Return whether the records from position `at` on are older than the last one before them, of `timestamp`.

    The newest record of the run decides: a clock set back a little must not turn records into leftovers. Ask this only
    where nothing else shows that the log continues: no CRC covers a store time, and clocks are set back.
    """
    return walk_records(file.pages, at, end, file.start, False).last_timestamp < timestamp


def boundary_behind(file: MappedFile, target: int, limit: int) -> int:
    """Return the first record boundary at or after position `target` of a file, or `limit` if there is none.

    The boundary is a good place to start, not a proof: a body may quote a record. The caller must see that the walk
    from before `target` arrives at the same boundary.
    """
    at = target - APPROACH
    at = 0 if at <= 0 else find_record(file.pages, at, limit, file.start)
    while at < limit:
        at = walk_records(file.pages, at, max(at, target), file.start, False).position
        size = check_record(file.pages, at, limit, file.start + at, False)
        if size == BLANK:
            break
        if size > 0 and at >= target:
            return at
        at = at + size if size > 0 else find_record(file.pages, at + 1, limit, file.start)
    return limit
