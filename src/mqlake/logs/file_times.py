"""`mqlake/times/`: which store times the closed files of the log hold, block by block.

A reader of a time window skips blocks without a record in it. Store times run back along the log when a clock is set
back, so nothing is searched: a block's oldest and newest time are those of all its records, found by walking them with
their CRC. What lies after the first damage of a file is in no block, so it is always read.

A table is valid for one content of its log file: the file's size and its time of modification, taken before the walk
and the same after it. A file that was truncated, repaired or written again has another one, and its table counts as
missing until it is made again. So does a table that is damaged. Losing tables costs time, never records.
"""

from __future__ import annotations

import struct
import time
import zlib
from array import array
from pathlib import Path
from typing import Final, NamedTuple

from mqlake.errors import StoreError
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name, list_files
from mqlake.files.small_files import read_small_file, replace_file
from mqlake.kernel import survey_records
from mqlake.kernel.types import BLANK, REACHED_END

BLOCK_BYTES: Final = 1 << 20
MAGIC: Final = b"MQTIMES1"
HEAD: Final = struct.Struct("<8sIqqq")
"""Magic, CRC-32 of what follows it, size and time of modification (ns) of the log file, number of blocks."""
FIELDS: Final = 3
MAX_SIZE: Final = 1 << 28


class FileTimes(NamedTuple):
    """The blocks of a log file, in its order: where each ends (the first begins with the file), and its times."""

    ends: array[int]
    oldest: array[int]
    newest: array[int]


def times_of(layout: Layout, start: int) -> FileTimes | None:
    """Return the blocks of the log file that begins at an offset; None if they are not known."""
    name = file_name(start)
    try:
        data = read_small_file(layout.times / name, MAX_SIZE)
        content = _content_of(layout.commit_log / name)
    except (OSError, StoreError):
        return None
    if len(data) < HEAD.size or data[:8] != MAGIC:
        return None
    _, checksum, size, modified, count = HEAD.unpack_from(data)
    if zlib.crc32(data[12:]) != checksum or (size, modified) != content or len(data) != HEAD.size + 8 * FIELDS * count:
        return None
    numbers = array("q", data[HEAD.size :])
    return FileTimes(numbers[:count], numbers[count : 2 * count], numbers[2 * count :])


def first_not_older(layout: Layout, start: int, time_ms: int) -> int:
    """Return a position in a log file before which every record is known to be older than a time."""
    known = times_of(layout, start)
    position = 0
    for end, newest in zip(known.ends, known.newest, strict=True) if known is not None else ():
        if newest >= time_ms:
            break
        position = end
    return position


def keep_times(layout: Layout, file_size: int, end: int, *, since: int = 0, budget_s: float | None = None) -> int:
    """Make the tables that are missing for the files in [since, end) of the log, and delete those of deleted files.

    Nothing before `end` may change any more. Stops after `budget_s` seconds. Return the number of tables made.
    """
    deadline = None if budget_s is None else time.monotonic() + budget_s
    starts = _starts_in(layout.commit_log)
    for start in _starts_in(layout.times) - starts:
        (layout.times / file_name(start)).unlink(missing_ok=True)
    made = 0
    for start in sorted(starts):
        if deadline is not None and time.monotonic() > deadline:
            break
        if since <= start and start + file_size <= end and times_of(layout, start) is None:
            made += _make(layout, start, file_size)
    return made


def _make(layout: Layout, start: int, file_size: int) -> bool:
    path = layout.commit_log / file_name(start)
    try:
        content = _content_of(path)
        file = MappedFile.open(path, start, file_size, writable=False)
        blocks = _blocks(file)
        if _content_of(path) != content:
            return False
    except FileNotFoundError:  # retention deleted it
        return False
    body = struct.pack("<qqq", *content, len(blocks.ends)) + b"".join(column.tobytes() for column in blocks)
    layout.times.mkdir(parents=True, exist_ok=True)
    replace_file(layout.times / path.name, MAGIC + struct.pack("<I", zlib.crc32(body)) + body, layout.times)
    return True


def _blocks(file: MappedFile) -> FileTimes:
    """Walk a file up to its end or to the first damage."""
    found = FileTimes(array("q"), array("q"), array("q"))
    position = 0
    while position < file.size:
        seen = survey_records(file.pages, position, file.size, file.start, BLOCK_BYTES)
        if seen.why not in (REACHED_END, BLANK) or (seen.why == BLANK and not _covers_rest(file, seen.position)):
            break
        position = file.size if seen.why == BLANK else seen.position
        if seen.record_count:
            for column, value in zip(found, (position, seen.oldest_timestamp, seen.newest_timestamp), strict=True):
                column.append(value)
        elif found.ends:  # only the end-of-file marker is left
            found.ends[-1] = position
    return found


def _covers_rest(file: MappedFile, position: int) -> bool:
    return position + int.from_bytes(file.pages[position : position + 4], "big") == file.size


def _content_of(path: Path) -> tuple[int, int]:
    """Return what changes when a file's content does."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _starts_in(folder: Path) -> set[int]:
    return {start for start, _ in list_files(folder, strict=False)}
