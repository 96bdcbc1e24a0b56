"""Find record boundaries, and positions by store time, so that a plan can cut a log.

A record is recognised by its own physical offset and its CRC, never by its magic number alone. A body can contain a
copy of even those. So the search starts further ahead and steps from record to record, which skips a copy inside a
body. If a boundary is wrong all the same, the task that reads up to it notices and fails (`read_split.py`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import check_record, find_record, walk_records
from mqlake.kernel.types import BLANK
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.damage import APPROACH, boundary_behind
from mqlake.logs.file_times import first_not_older
from mqlake.logs.stretch import Stretch
from mqlake.message import StoredMessage
from mqlake.store.scan import BATCH_BYTES, Scan

GRAIN = 1 << 20
"""The search for a time stops at this many bytes. Rows at the edges are filtered."""
CLOCK_STEP_MS = 120_000
"""With the option risingTimes, clock steps are smaller than this."""


class FileGone(Exception):
    """A log file was deleted during planning: take a new snapshot."""


class Boundaries:
    """Search the part [first, end) of a log. Both ends are record boundaries."""

    def __init__(self, log: CommitLog, first: int, end: int) -> None:
        self._log = log
        self.first = first
        self.end = end

    def at_or_after(self, offset: int) -> int:
        """Return the first record boundary at or after an offset, or `end` if no record begins there."""
        while offset < self.end:
            file = self._file(offset)
            limit = min(file.end, self.end) - file.start
            position = boundary_behind(file, offset - file.start, limit)
            if position < limit:
                return file.start + position
            offset = file.end  # every file begins with a record
            if offset < self.end:
                return offset
        return self.end

    def at_or_before(self, offset: int, start: int) -> int:
        """Return the last record boundary in [start, offset]. `start` itself is one."""
        if offset >= self.end:
            return self.end
        file = self._file(offset)
        limit, target = min(file.end, self.end) - file.start, offset - file.start
        at = max(start - file.start, 0)
        if target - APPROACH > at:
            near = boundary_behind(file, target - APPROACH, limit)
            at = near if near <= target else at
        while True:
            walked = walk_records(file.pages, at, target, file.start, False)
            at = walked.position
            if walked.why >= BLANK or check_record(file.pages, at, limit, file.start + at, False) >= 0:
                return file.start + at
            after = find_record(file.pages, at + 1, target, file.start)
            if after == target:
                return file.start + at
            at = after

    def is_one(self, offset: int) -> bool:
        """Return whether a record begins or ends here, as far as the log shows."""
        if offset in (self.first, self.end):
            return True
        file = self._file(offset)
        begins = check_record(file.pages, offset - file.start, file.size, offset, False) >= BLANK
        return begins or self.at_or_before(offset, self.first) == offset

    def after_records(self, start: int, count: int) -> tuple[int, int]:
        """Return the boundary after `count` records from `start`, or `end`, and how many records that are."""
        found = 0
        while start < self.end and found < count:
            file = self._file(start)
            limit = min(file.end, self.end) - file.start
            walked = walk_records(file.pages, start - file.start, limit, file.start, False, count - found)
            at = walked.position
            found += walked.record_count
            if walked.why == BLANK:
                at = limit
            elif walked.why < BLANK:
                at = find_record(file.pages, at + 1, limit, file.start)
            start = file.start + at
        return start, found

    def last_record(self, stop: int) -> tuple[int, int] | None:
        """Return offset and size of the last whole record before the boundary `stop`. None if there is none.

        Searches backwards, further each time: the end of a file can be empty, and damage can be of any length.
        """
        while stop > self.first:
            file = self._file(stop - 1)
            first, limit = max(0, self.first - file.start), stop - file.start
            reach = APPROACH
            while True:
                begin = max(first, limit - reach)
                found = _last_record_in(file, begin if begin == first else boundary_behind(file, begin, limit), limit)
                if found is not None:
                    return found
                if begin == first:
                    break
                reach *= 8
            stop = file.start + first
        return None

    def first_since(self, timestamp_ms: int, *, rising: bool = False) -> int:
        """Return the offset of the first record stored at or after a time, or `end`.

        All records before it are looked at, because store times run back when a clock is set back, except in blocks
        that are known to be older. With `rising`, the search starts where `around_time` says.
        """
        offset = self.around_time(timestamp_ms - CLOCK_STEP_MS)[0] if rising else self.first
        scan = Scan(("physical_offset", "store_timestamp"), BATCH_BYTES, False, None, "skip", False)
        while offset < self.end:
            file = self._file(offset)
            older = first_not_older(Layout(file.path.parent.parent), file.start, timestamp_ms)
            position, limit = max(offset - file.start, older), min(file.end, self.end) - file.start
            stretch = Stretch(file.pages, file.start, min(position, limit), limit, file.path)
            for batch in scan.batches(stretch, lambda size: None):
                times = batch.column("store_timestamp").view(pa.int64()).to_numpy()
                found = np.flatnonzero(times >= timestamp_ms)
                if len(found):
                    return int(batch.column("physical_offset")[int(found[0])].as_py())
            offset = file.end
        return self.end

    def around_time(self, timestamp_ms: int) -> tuple[int, int]:
        """Return two offsets: records before the first are older, records from the second on are not.

        Little lies between the two. Assumes that store times rise along the log. Clock steps break that: a caller
        allows for CLOCK_STEP_MS, and uses this only if the user said that there were no larger ones.
        """
        low, high = self.first, self.end
        while high - low > GRAIN:
            middle = (low + high) // 2
            found = self._first_record(middle, high)
            if found is None or found.store_timestamp >= timestamp_ms:
                high = middle
            else:
                low = found.physical_offset
        return low, high

    def _first_record(self, offset: int, stop: int) -> StoredMessage | None:
        """Return the first whole record in [offset, stop)."""
        while offset < stop:
            file = self._file(offset)
            limit = min(file.end, self.end) - file.start
            position = find_record(file.pages, offset - file.start, limit, file.start)
            if file.start + position >= stop:
                return None
            if position < limit:
                return StoredMessage(self._log.record_at(file.start + position, self.end))
            offset = file.end
        return None

    def _file(self, offset: int) -> MappedFile:
        file = self._log.files.file_at(offset)
        if file is None:
            raise FileGone(offset)
        return file


def _last_record_in(file: MappedFile, position: int, limit: int) -> tuple[int, int] | None:
    """Return offset and size of the last whole record in [position, limit) of a file, which begins with a boundary."""
    last = -1
    while position < limit:
        walked = walk_records(file.pages, position, limit, file.start, True)
        last = walked.last_offset if walked.record_count else last
        if walked.why >= BLANK:
            break
        position = find_record(file.pages, walked.position + 1, limit, file.start)
    if last < 0:
        return None
    at = last - file.start
    return last, int.from_bytes(file.pages[at : at + 4], "big")
