"""A map of the commit log as it is on disk: where it has whole records, where not, and where it ends.

It refuses nothing and writes nothing. `check` reports what is wrong with the map, `repair` corrects it.

The end is the end of the last whole record, or the watermark if that is later, because the log before it was certainly
synced. What is missing before the watermark is lost; what is broken after it is a torn tail.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mqlake.files.layout import Layout
from mqlake.files.lock import writer_of
from mqlake.files.mapped_file import MappedFile
from mqlake.files.positions import APPENDED, DISPATCHED, DURABLE, WRITER, Positions
from mqlake.inspect.piece import NEVER, BadPort, Piece
from mqlake.inspect.survey import Placement
from mqlake.kernel import StoredRecord, check_record, find_record, walk_records
from mqlake.kernel.types import BAD_MAGIC, BAD_SIZE, BLANK, NOTHING, REACHED_END
from mqlake.logs.commit_log import MARKER, MARKER_MAGIC, MARKER_SIZE
from mqlake.logs.damage import is_leftover
from mqlake.store.checkpoint import Checkpoint, read_checkpoint
from mqlake.store.recovery import is_latest

MAGIC = MARKER_MAGIC.to_bytes(4, "big")
MISSING = -100
"""The reason of a gap that is a missing file."""
BROKEN_MARKER = -101
"""The reason of a gap that is only a broken end-of-file marker."""

Look = Callable[[MappedFile, int, int], Piece]
"""Returns the piece of a file that begins at a position; no record in it ends after the second position."""


class Gap(NamedTuple):
    """A range of the log without a whole record; it ends at one, at a marker, or with its file."""

    start: int
    end: int
    reason: int
    timestamp: int = 0
    """The store time of the record before it."""


class Ends(NamedTuple):
    """What the store itself states about the end of its log."""

    live: bool
    """Whether a process writes the store now."""
    limit: int | None
    """A live store is checked up to here: log, queues and index are complete before it."""
    watermark: int
    """The log certainly reached this offset: it was synced, or its writer dispatched it; 0 if unknown."""
    checkpoint: Checkpoint | None
    redone_from: int = NEVER
    """The next opening goes back to this offset and dispatches the log from there, because the store was not closed."""

    @property
    def derived_before(self) -> int:
        """Queues and index are complete before this offset."""
        return self.redone_from if self.limit is None else self.limit

    def goes_back_to(self, index_file: str) -> bool:
        """Return whether the next opening restores an index file from our checkpoint, or removes it."""
        newest = self.checkpoint.index.files[-1:] if self.checkpoint is not None else ()
        return self.redone_from < NEVER and (index_file,) >= newest


def read_ends(layout: Layout, *, locked_here: bool) -> Ends:
    """Read the live positions and our checkpoint; use each as far as it is plausible."""
    live = bool(writer_of(layout.lock)) and not locked_here
    positions = Positions.open(layout.positions)
    checkpoint = read_checkpoint(layout.own_checkpoint)
    if checkpoint is not None and not is_latest(layout, checkpoint):
        checkpoint = None  # RocketMQ has written the store since
    watermark = max(checkpoint.durable, checkpoint.dispatched) if checkpoint is not None else 0
    redone_from = NEVER
    if checkpoint is not None and not checkpoint.clean and not live and layout.abort.exists():
        redone_from = checkpoint.dispatched
    if positions is None:
        return Ends(live, None, watermark, checkpoint, redone_from)
    words = positions.words
    if live and words[WRITER] == writer_of(layout.lock):
        end = words[DISPATCHED]  # read once: it moves
        return Ends(True, end, end, checkpoint)
    closed = checkpoint is not None and checkpoint.clean
    if not closed and 0 <= words[DURABLE] <= words[APPENDED]:
        watermark = max(watermark, words[DURABLE])
    return Ends(live, None, watermark, checkpoint, redone_from)


class LogMap:
    """The log files in their places; `walk` finds `runs`, `gaps` and `end`."""

    def __init__(self, placement: Placement, file_size: int, ends: Ends) -> None:
        self.files = placement.files
        self.file_size = file_size
        self.ends = ends
        self.first = min(self.files, default=0)
        self.end = self.first
        self.runs: list[tuple[int, int]] = []
        """Ranges of whole records, each within one file."""
        self.gaps: list[Gap] = []
        self.markers: list[tuple[int, int]] = []
        """Markers with a wrong length: their offset, and that length."""
        self.steps_back: list[int] = []
        """The starts of pieces in which the store time decreases."""
        self.bad_ports: list[BadPort] = []
        self.last_timestamp = 0
        """The newest store time of the last piece with records."""
        self.stop_reason = NOTHING
        """Why there is no record at the end."""

    @property
    def limit(self) -> int:
        """The last offset that the walk may reach."""
        files_end = max(self.files, default=self.first - self.file_size) + self.file_size
        return files_end if self.ends.limit is None else min(self.ends.limit, files_end)

    @property
    def _known_end(self) -> int:
        """The log certainly reaches this offset."""
        return max(self.ends.watermark, self.ends.limit or 0)

    def limit_in(self, file: MappedFile) -> int:
        """Return the position in a file that its records must not exceed."""
        return min(self.limit - file.start, file.size, self.file_size)

    def walk(self, look: Look, first: int | None = None) -> None:
        """Walk the files piece by piece, starting at a record boundary."""
        self.first = self.end = self.first if first is None else first
        for start in range(self.first - self.first % self.file_size, self.limit, self.file_size):
            file = self.files.get(start)
            if file is None:
                self.gaps.append(Gap(start, start + self.file_size, MISSING, self.last_timestamp))
            else:
                self._walk_file(file, max(0, self.first - start), self.limit_in(file), look)
        self._find_end()

    def _walk_file(self, file: MappedFile, position: int, end: int, look: Look) -> None:
        while position < end:
            at, why = self._walk_run(file, position, end, look)
            if at > position:
                self.runs.append((file.start + position, file.start + at))
                self.end = file.start + at
            if why == BLANK:
                self._take_marker(file, at)
                return
            if why == REACHED_END and end < min(file.size, self.file_size):
                return  # a live store is checked up to here
            if self.file_size - at < MARKER_SIZE:
                return  # no room for a marker: the file is full
            position = self._resume(file, at, end)
            stop = position if position < min(end, file.size) else self.file_size
            self.gaps.append(Gap(file.start + at, file.start + stop, self._reason(file, at, why), self.last_timestamp))

    def _take_marker(self, file: MappedFile, at: int) -> None:
        told = MARKER.unpack_from(file.pages, at)[0]
        if told != self.file_size - at:
            self.markers.append((file.start + at, told))
        following = file.start + self.file_size
        if following in self.files or following <= self._known_end:
            self.end = following  # the log continues in the next file, even if it is empty or does not exist yet

    def _walk_run(self, file: MappedFile, position: int, end: int, look: Look) -> tuple[int, int]:
        """Walk as far as records are whole, and check the order of their store times."""
        why = REACHED_END
        while position < end and why == REACHED_END:
            piece = look(file, position, end)
            if piece.end > piece.start:
                if piece.first_time < self.last_timestamp or not piece.rises:
                    self.steps_back.append(piece.start)
                self.last_timestamp = piece.newest_time
            self.bad_ports += piece.bad_ports
            position, why = piece.end - file.start, piece.why
        return position, why

    def _resume(self, file: MappedFile, at: int, end: int) -> int:
        """Return where whole records, or the marker, continue after damage; `end` if neither does."""
        ranges = [(start, min(stop, end)) for start, stop in file.data_ranges(at) if start < end]
        for start, stop in ranges:
            found = find_record(file.pages, start, stop, file.start, True)
            if found < stop:
                # As in recovery: what is before the known end belongs to the log, whatever its times say.
                if file.start + found <= self._known_end or not is_leftover(file, found, end, self._time_before()):
                    return found
                break
        for start, stop in ranges:
            marker = file.pages.find(MAGIC, max(start, at + 4), stop) - 4
            while marker >= 0:
                if MARKER.unpack_from(file.pages, marker)[0] == self.file_size - marker:
                    return marker
                marker = file.pages.find(MAGIC, marker + 5, stop) - 4
        return end

    def _time_before(self) -> int:
        """Return the store time of the last whole record so far; 0 if there is none."""
        if not self.runs:
            return 0
        start, end = self.runs[-1]
        file = self.files[start - start % self.file_size]
        return walk_records(file.pages, start - file.start, end - file.start, file.start, False).last_timestamp

    def _reason(self, file: MappedFile, at: int, why: int) -> int:
        """Return what is wrong at the start of a gap. A marker with one wrong bit or field is no lost record."""
        if at + MARKER_SIZE <= file.size and why in (BAD_MAGIC, BAD_SIZE):
            told, magic = MARKER.unpack_from(file.pages, at)
            if magic == MARKER_MAGIC or (told == self.file_size - at and (magic ^ MARKER_MAGIC).bit_count() == 1):
                return BROKEN_MARKER
        return NOTHING if why == REACHED_END else why

    def _find_end(self) -> None:
        """Drop the gaps after the last whole record, which are a torn tail, except before the watermark."""
        tail = [gap for gap in self.gaps if gap.start >= self.end]
        self.gaps = [gap for gap in self.gaps if gap.start < self.end]
        self.stop_reason = tail[0].reason if tail else NOTHING
        if self.ends.watermark > self.end:
            self._keep_up_to_watermark(tail)

    def _keep_up_to_watermark(self, tail: list[Gap]) -> None:
        watermark, position = self.ends.watermark, self.end
        while position < watermark:
            stop = min(watermark, position - position % self.file_size + self.file_size)
            there = position - position % self.file_size in self.files
            reason = next((gap.reason for gap in tail if gap.start <= position < gap.end), NOTHING)
            self.gaps.append(Gap(position, stop, reason if there else MISSING, self.last_timestamp))
            position = stop
        self.end = watermark

    def file_of(self, offset: int) -> Path | None:
        file = self.files.get(offset - offset % self.file_size)
        return file.path if file is not None else None

    def time_at(self, offset: int) -> int | None:
        """Return the store time of a record; None if no whole record begins there."""
        file = self.files.get(offset - offset % self.file_size)
        if file is None or not 0 <= offset - file.start <= file.size:
            return None
        size = check_record(file.pages, offset - file.start, file.size, offset, True)
        at = offset - file.start
        return StoredRecord(bytes(file.pages[at : at + size])).store_timestamp if size > 0 else None

    def tail_is_dirty(self) -> bool:
        """Return whether there are other bytes than zeros after the end."""
        zeros = bytes(1 << 20)
        for start, file in self.files.items():
            for at, stop in file.data_ranges(max(0, self.end - start)):
                for chunk in range(at, stop, len(zeros)):
                    part = file.pages[chunk : min(stop, chunk + len(zeros))]
                    if part != zeros[: len(part)]:
                        return True
        return False
