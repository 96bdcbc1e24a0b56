"""The commit log: all messages of all topics, one after the other. This is its reading side.

Invariant: [first_offset, end) is a gap-free sequence of records. Each file is closed by a marker, and no record spans
two files. A record's own physical offset is where it lies.

How far it may be read says `ends.visible`; `logs/log_writer.py` moves the ends. Any thread reads.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Final

from mqlake.errors import CorruptRecord, NoSuchMessage, OffsetOutOfRange, StoreError
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name
from mqlake.kernel import Ends, check_record
from mqlake.kernel.types import APPENDED, REASONS
from mqlake.logs.stretch import Stretch
from mqlake.message import StoredMessage

MARKER: Final = struct.Struct(">iI")
MARKER_MAGIC: Final = 0xCBD43194
MARKER_SIZE: Final = 8
"""Every file keeps this much for the marker that closes it."""


class CommitLog:
    """The log's files, for reading. `LogWriter` is the side that appends."""

    def __init__(self, files: MappedFileQueue, ends: Ends) -> None:
        self.files = files
        self.file_size = files.file_size
        self.ends = ends

    def follow(self, end: int) -> None:
        """Another process wrote the log up to here, and it is visible. The end never steps back."""
        if end > self.files.end_offset:
            self.files.refresh()
        self.ends.advance(APPENDED, end)

    @property
    def first_offset(self) -> int:
        return self.files.first_offset

    def file_time_ms(self, start: int) -> int:
        """Return the store time of a file's newest record, in milliseconds since 1970. Not for the last file.

        The first record of the next file bounds it from above and costs one look. RocketMQ takes the file's
        modification time, which lags behind writes through a mapping and changes when the store is copied: here it is
        used only if that record cannot be read, or if its time is in the future, because the clock was wrong then.
        """
        try:
            stored_ms = StoredMessage(self.record_at(start + self.file_size)).store_timestamp
            if stored_ms <= time.time_ns() // 1_000_000:
                return stored_ms
        except StoreError:
            pass
        return (self.files.directory / file_name(start)).stat().st_mtime_ns // 1_000_000

    def stretch(self, start: int, stop: int) -> Stretch | None:
        """Return the part of [start, stop) that lies in one file; None if the file is gone."""
        file = self.files.file_at(start)
        if file is None:
            return None
        return Stretch(file.pages, file.start, start - file.start, min(stop, file.end) - file.start, file.path)

    def stretches(self, start: int, stop: int) -> Iterator[Stretch]:
        """Yield [start, stop) file by file."""
        while start < stop:
            stretch = self.stretch(start, stop)
            if stretch is None:
                raise OffsetOutOfRange("commit log", start, self.first_offset, self.ends.visible)
            yield stretch
            start = stretch.log_start + self.file_size

    def record_at(self, offset: int, end: int | None = None) -> bytes:
        """Return the record that begins at an offset, checked, CRC included.

        Records from `end` on are out of range: the visible end, unless the caller reads what it appended itself.
        """
        readable = self.ends.visible if end is None else end
        if not self.first_offset <= offset < readable:
            raise OffsetOutOfRange("commit log", offset, self.first_offset, readable)
        stretch = self.stretch(offset, readable)
        if stretch is None:
            raise OffsetOutOfRange("commit log", offset, self.first_offset, readable)
        size = check_record(stretch.data, stretch.position, stretch.end, offset, True)
        if size > 0:
            return bytes(stretch.data[stretch.position : stretch.position + size])
        if size == 0:
            raise NoSuchMessage(f"physical offset {offset}", "the marker that closes a file is here, not a record")
        if check_record(stretch.data, stretch.position, stretch.end, offset, False) > 0:
            raise CorruptRecord(stretch.file, offset, REASONS[size])
        raise NoSuchMessage(f"physical offset {offset}", f"no record begins here: {REASONS[size]}")

    def require_record(self, offset: int) -> None:
        """Raise CorruptRecord if neither a record nor a marker begins at an offset."""
        stretch = self.stretch(offset, self.ends.visible)
        size = check_record(stretch.data, stretch.position, stretch.end, offset, False) if stretch is not None else 1
        if stretch is not None and size < 0:
            raise CorruptRecord(stretch.file, offset, REASONS[size])
