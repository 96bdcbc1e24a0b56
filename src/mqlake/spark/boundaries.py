"""Where records begin, and where in the log a time lies: what a plan cuts a log by.

A record is known by its own physical offset and its CRC, never by its magic number alone. A body may quote even that;
so a boundary is approached from further ahead, record by record, and a quoted record inside of a body is stepped
over. Should it be wrong all the same, the task that reads up to it finds out and fails (`read_split.py`).
"""

from __future__ import annotations

from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import find_record
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.damage import boundary_behind
from mqlake.message import StoredMessage

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
