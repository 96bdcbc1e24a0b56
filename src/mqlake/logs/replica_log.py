"""The log of a slave: its master's bytes as they come, records, markers and all.

A master cuts its log anywhere, so the bytes of half a record may have arrived. They are written to their place in the
file at once, but the appended end moves from record to record only. So everyone else (readers, dispatch, syncs,
checkpoints) sees whole records, as in any log, and half a record costs no memory. After a crash it is a torn tail,
which recovery cuts; `discard` zeroes it when a connection ends.

Every record is checked as far as its own lengths and its own physical offset go, and every marker against the size of
the files here: the log can only be the master's if both cut it into the same files. A record's CRC is not looked at: a
slave keeps what its master has, and readers judge it as they do there.

One thread, the slave's, calls `take` and `discard`. No message can be put.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection
from typing import NoReturn

from mqlake.errors import BadTransfer, FilesDiffer, NotMaster
from mqlake.files.mapped_file import MappedFile
from mqlake.files.preallocation import CHUNK_BYTES
from mqlake.kernel import unlock_memory, walk_records
from mqlake.kernel.types import APPENDED, BAD_SIZE, REACHED_END, REASONS
from mqlake.logs.commit_log import MARKER, MARKER_MAGIC, MARKER_SIZE
from mqlake.logs.log_writer import LogWriter, Placed


class ReplicaLog(LogWriter):
    """A log that only a master extends."""

    _begin: int | None = None
    """Where the first file of an empty log starts, once it is known."""
    _received: int = 0
    """How many bytes of the file being written have arrived."""

    @property
    def received(self) -> int:
        """The physical offset of the next byte that is wanted from the master."""
        return self.ends.appended if self._file is None else self._file.start + self._received

    @property
    def is_empty(self) -> bool:
        """Whether the log holds nothing yet, so that its master decides where it begins."""
        return self._file is None and not self.files.starts

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin at an offset, which is the first byte of a file of the master's."""
        assert self.is_empty, "a log has one beginning"
        if offset % self.file_size:
            raise FilesDiffer(self.files.directory.parent, self.file_size, offset)
        self._begin = offset

    def take(self, data: memoryview) -> None:
        """Append bytes that follow those taken before. The appended end moves past the records that are whole now."""
        with self._lock:
            while data:
                self._raise_if_refused()
                file = self._file_with_room(len(data))
                size = min(len(data), file.size - self._received)
                # Through the descriptor: a first store into each page of a mapping costs three times as much.
                file.write_at(self._received, data[:size])
                self._received += size
                data = data[size:]
                self._settle(file)

    def _file_with_room(self, wanted: int) -> MappedFile:
        """Return the file being written, with blocks for the next bytes; the next file if this one is complete."""
        if self._file is None or self._received == self._file.size:
            self._roll()
        file = self._file
        assert file is not None, "rolling gives a file"
        needed = min(file.size, self._received + wanted)
        if needed > file.reserved:
            file.reserve(min(file.size, -(-needed // CHUNK_BYTES) * CHUNK_BYTES))
            self.group.reserved(file.start + file.reserved)
            self._preallocator.reserve_ahead(file)
        return file

    def _settle(self, file: MappedFile) -> None:
        """Move the appended end past every record that is whole, and past the marker once all of the file is here."""
        start = self.ends.appended - file.start
        walked = walk_records(file.pages, start, self._received, file.start, False)
        self.ends.advance(APPENDED, file.start + walked.position)
        if walked.why != REACHED_END and self._is_closed(file, walked.position, walked.why):
            self.ends.advance(APPENDED, file.end)
        if self.ends.appended == file.end:
            self._roll()  # at once: an end at which no file begins is nothing that a writer leaves

    def _is_closed(self, file: MappedFile, at: int, why: int) -> bool:
        """Return whether the marker at a position of the file, and all that it covers, is here. False if a record or a
        marker has begun to arrive; anything else is an error.
        """
        left = self._received - at
        if left < MARKER_SIZE:
            if self._received == file.size:
                raise FilesDiffer(self.files.directory.parent, self.file_size, None)
            return False
        size, magic = MARKER.unpack_from(file.pages, at)
        if magic == MARKER_MAGIC and size >= MARKER_SIZE:
            if at + size != file.size:
                raise FilesDiffer(self.files.directory.parent, self.file_size, file.start + at + size)
            return bool(left == size)
        if why == BAD_SIZE and left < size:
            if at + size + MARKER_SIZE > file.size:
                raise FilesDiffer(self.files.directory.parent, self.file_size, None)
            return False
        raise BadTransfer(f"offset {file.start + at}", f"no record ({REASONS[why]})", "a record of the master's log")

    def discard(self) -> None:
        """Forget the bytes of a record that is not whole: the master sends it again, or another one."""
        with self._lock:
            file = self._file
            if file is None:
                self._begin = None
                return
            start = self.ends.appended - file.start
            file.write_at(start, bytes(self._received - start))
            self._received = start

    # ---- instead of an appender

    def _write_to(self, file: MappedFile, target: mmap.mmap, position: int) -> None:
        """Make `file` the one being written. The appender gets no target, so it can take no message."""
        self._file, self._target, self._received = file, target, position
        self.group.write_to(self._descriptor_of(file), file.start, file.start + file.reserved)
        self.ends.advance(APPENDED, file.start + position)

    def _next_start(self) -> int:
        return super()._next_start() if self._begin is None or self.files.starts else self._begin

    def _close_file(self, file: MappedFile) -> None:
        """The marker came from the master."""
        if self._unlock_full_files:
            unlock_memory(file.pages)

    def _under_lock(self, topics: Collection[str], place: Callable[[], Placed]) -> NoReturn:
        raise NotMaster(self.files.directory.parent)

    def hold_visible(self) -> NoReturn:
        raise NotMaster(self.files.directory.parent)
