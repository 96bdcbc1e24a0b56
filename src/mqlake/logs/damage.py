"""Finding one's feet again behind damage.

A candidate is a record only if magic, lengths, its own physical offset and its CRC agree. Remains of an earlier life of
the file may agree on all of that; their store time gives them away, for it is older than that of the records before.
"""

from __future__ import annotations

from mqlake.files.mapped_file import MappedFile
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.kernel import check_record, find_record, walk_records
from mqlake.kernel.types import BLANK

APPROACH = 1 << 20
"""How far ahead of a wanted boundary the walk to it begins: a record that a body quotes is stepped over so."""


def next_record(log: MappedFileQueue, position: int, stop: int, timestamp: int) -> int | None:
    """The offset of the first whole record in [position, stop) that is not older than `timestamp`."""
    while position < stop and (file := log.file_at(position)) is not None:
        end = min(stop, file.end) - file.start
        for start, data_end in file.data_ranges(position - file.start):
            at = find_record(file.pages, start, max(start, min(data_end, end)), file.start, True)
            if at < min(data_end, end):
                # The newest record of the run decides: one that the clock set back by a little is no remains.
                _, _, _, _, newest = walk_records(file.pages, at, end, file.start, False)
                return file.start + at if newest >= timestamp else None
        position = file.end
    return None


def boundary_behind(file: MappedFile, target: int, limit: int) -> int:
    """The first record boundary at or behind position `target` of a file; `limit` where there is none.

    Good enough to begin at, no proof: who goes on from it must be met there by who comes from before.
    """
    at = target - APPROACH
    at = 0 if at <= 0 else find_record(file.pages, at, limit, file.start)
    while at < limit:
        at = walk_records(file.pages, at, max(at, target), file.start, False)[0]
        size = check_record(file.pages, at, limit, file.start + at, False)
        if size == BLANK:
            break
        if size > 0 and at >= target:
            return at
        at = at + size if size > 0 else find_record(file.pages, at + 1, limit, file.start)
    return limit
