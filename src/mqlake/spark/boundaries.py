"""Where records begin, and where in the log a time lies: what a plan cuts a log by.

A record is known by its own physical offset and its CRC, never by its magic number alone. A body may quote even that;
so a boundary is approached from further ahead, record by record, and a quoted record inside of a body is stepped
over. Should it be wrong all the same, the task that reads up to it finds out and fails (`read_split.py`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import check_record, find_record, walk_records
from mqlake.kernel.types import BLANK
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.damage import APPROACH, boundary_behind
from mqlake.logs.stretch import Stretch
from mqlake.message import StoredMessage
from mqlake.store.scan import BATCH_BYTES, Scan

GRAIN = 1 << 20
"""A time is searched for down to this many bytes; rows at the edges are filtered."""


class FileGone(Exception):
    """A file of the log was deleted while the read was planned: the snapshot is to be taken again."""


class Boundaries:
    """Searches the part [first, end) of a log, both of them record boundaries."""

    def __init__(self, log: CommitLog, first: int, end: int) -> None:
        self._log = log
        self.first = first
        self.end = end

    def at_or_behind(self, offset: int) -> int:
        """The first record boundary at or behind an offset; `end` where no record begins from there on."""
        while offset < self.end:
            file = self._file(offset)
            limit = min(file.end, self.end) - file.start
            position = boundary_behind(file, offset - file.start, limit)
            if position < limit:
                return file.start + position
            offset = file.end  # a file begins with a record
            if offset < self.end:
                return offset
        return self.end

    def at_or_before(self, offset: int, start: int) -> int:
        """The last record boundary in [start, offset], of which `start` is one."""
        if offset >= self.end:
            return self.end
        file = self._file(offset)
        limit, target = min(file.end, self.end) - file.start, offset - file.start
        at = max(start - file.start, 0)
        if target - APPROACH > at:
            near = boundary_behind(file, target - APPROACH, limit)
            at = near if near <= target else at
        while True:
            at, why, *_ = walk_records(file.pages, at, target, file.start, False)
            if why >= BLANK or check_record(file.pages, at, limit, file.start + at, False) >= 0:
                return file.start + at
            behind = find_record(file.pages, at + 1, target, file.start)
            if behind == target:
                return file.start + at
            at = behind

    def is_one(self, offset: int) -> bool:
        """A record begins or ends here, as far as the log tells."""
        if offset in (self.first, self.end):
            return True
        file = self._file(offset)
        begins = check_record(file.pages, offset - file.start, file.size, offset, False) >= BLANK
        return begins or self.at_or_before(offset, self.first) == offset

    def behind_records(self, start: int, count: int) -> tuple[int, int]:
        """The boundary behind so many records from `start` on, or `end`, and how many there were."""
        found = 0
        while start < self.end and found < count:
            file = self._file(start)
            limit = min(file.end, self.end) - file.start
            at, why, more, *_ = walk_records(file.pages, start - file.start, limit, file.start, False, count - found)
            found += more
            if why == BLANK:
                at = limit
            elif why < BLANK:
                at = find_record(file.pages, at + 1, limit, file.start)
            start = file.start + at
        return start, found

    def first_since(self, timestamp_ms: int, clock_step_ms: int) -> int:
        """Where the first record lies that was stored at or after a time, `end` where there is none; right as long as
        the clock never stepped by more than `clock_step_ms`."""
        offset = self.around_time(timestamp_ms - clock_step_ms)[0]
        scan = Scan(("physical_offset", "store_timestamp"), BATCH_BYTES, False, None, "skip", False)
        while offset < self.end:
            file = self._file(offset)
            stretch = Stretch(
                file.pages, file.start, offset - file.start, min(file.end, self.end) - file.start, file.path
            )
            for batch in scan.batches(stretch, lambda size: None):
                times = batch.column("store_timestamp").view(pa.int64()).to_numpy()
                found = np.flatnonzero(times >= timestamp_ms)
                if len(found):
                    return int(batch.column("physical_offset")[int(found[0])].as_py())
            offset = file.end
        return self.end

    def around_time(self, timestamp_ms: int) -> tuple[int, int]:
        """Two places: records before the first are older, those from the second on are not; little lies between.

        It takes store times to rise along the log. They do, but for steps of the clock; a plan allows for those.
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
        """The first whole record in [offset, stop)."""
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
