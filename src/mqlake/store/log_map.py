"""The commit log as it lies on the disk: where whole records are, where they are not, and where it ends.

Nothing is refused and nothing is written. `check` tells what is wrong with the map, `repair` makes it right.

The end is where the last whole record ends, or the watermark (below it the log was surely synced) where that is
farther: what is missing before the watermark is lost, what is broken behind it is a torn tail.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mqlake.files.layout import Layout
from mqlake.files.lock import writer_of
from mqlake.files.mapped_file import MappedFile
from mqlake.files.positions import APPENDED, DISPATCHED, DURABLE, WRITER, Positions
from mqlake.kernel import StoredRecord, check_record, find_record, walk_records
from mqlake.kernel.types import BAD_MAGIC, BAD_SIZE, BLANK, NOTHING, REACHED_END
from mqlake.logs.commit_log import MARKER, MARKER_MAGIC, MARKER_SIZE
from mqlake.store.checkpoint import Checkpoint, read_checkpoint
from mqlake.store.piece import BadPort, Piece
from mqlake.store.recovery import is_latest
from mqlake.store.survey import Placement

MAGIC = MARKER_MAGIC.to_bytes(4, "big")
MISSING = -100
"""The reason of a gap where a whole file is missing."""
BROKEN_MARKER = -101
"""The reason of a gap that is nothing but the file's end-of-file marker."""

Look = Callable[[MappedFile, int, int], Piece]
"""The piece of a file that begins at a position; no record of it ends behind another one."""


class Gap(NamedTuple):
    """A range of the log without a whole record; it ends at one, at a marker, or with its file."""

    start: int
    end: int
    reason: int
    timestamp: int = 0
    """The store time of the record before it."""


class Ends(NamedTuple):
    """What the store itself says of its log's end."""

    live: bool
    """A process writes it now."""
    limit: int | None
    """A live store is looked at up to here: log, queues and index are whole before it."""
    watermark: int
    """Before this the log was synced; 0 where nothing says so."""
    checkpoint: Checkpoint | None


def read_ends(layout: Layout, *, locked_here: bool) -> Ends:
    """The live positions and our checkpoint, each believed as far as it can be true."""
    live = bool(writer_of(layout.lock)) and not locked_here
    positions = Positions.open(layout.positions)
    checkpoint = read_checkpoint(layout.own_checkpoint)
    if checkpoint is not None and not is_latest(layout, checkpoint):
        checkpoint = None  # RocketMQ wrote the store since
    watermark = max(checkpoint.durable, checkpoint.dispatched) if checkpoint is not None else 0
    if positions is None:
        return Ends(live, None, watermark, checkpoint)
    words = positions.words
    if live and words[WRITER] == writer_of(layout.lock):
        return Ends(True, words[DISPATCHED], 0, checkpoint)
    closed = checkpoint is not None and checkpoint.clean
    if not closed and 0 <= words[DURABLE] <= words[APPENDED]:
        watermark = max(watermark, words[DURABLE])
    return Ends(live, None, watermark, checkpoint)


class LogMap:
    """The placed files; `walk` finds `runs`, `gaps` and `end`."""

    def __init__(self, placement: Placement, file_size: int, ends: Ends) -> None:
        self.files = placement.files
        self.file_size = file_size
        self.ends = ends
        self.first = min(self.files, default=0)
        self.end = self.first
        self.runs: list[tuple[int, int]] = []
        """Stretches of whole records, each in one file."""
        self.gaps: list[Gap] = []
        self.markers: list[tuple[int, int]] = []
        """Markers that tell a wrong length: where, and what they tell."""
        self.steps_back: list[int] = []
        """Where the pieces begin in which the store time goes back."""
        self.bad_ports: list[BadPort] = []
        self.last_timestamp = 0
        self.stop_reason = NOTHING
        """Why no record begins at the end."""

    @property
    def limit(self) -> int:
        """Where the walk ends at the latest."""
        files_end = max(self.files, default=self.first - self.file_size) + self.file_size
        return files_end if self.ends.limit is None else min(self.ends.limit, files_end)

    def limit_in(self, file: MappedFile) -> int:
        """The position in a file before which its records end."""
        return min(self.limit - file.start, file.size, self.file_size)

    def walk(self, look: Look, first: int | None = None) -> None:
        """Go through the files, from a record boundary on, piece by piece."""
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
                return  # a live store is looked at up to here
            if self.file_size - at < MARKER_SIZE:
                return  # no room for a marker: full to the end
            position = self._resume(file, at, end)
            stop = position if position < min(end, file.size) else self.file_size
            self.gaps.append(Gap(file.start + at, file.start + stop, self._reason(file, at, why), self.last_timestamp))

    def _take_marker(self, file: MappedFile, at: int) -> None:
        told = MARKER.unpack_from(file.pages, at)[0]
        if told != self.file_size - at:
            self.markers.append((file.start + at, told))
        behind = file.start + self.file_size
        if behind in self.files or (self.ends.limit is not None and behind <= self.ends.limit):
            self.end = behind  # the log goes on in the next file, be it empty

    def _walk_run(self, file: MappedFile, position: int, end: int, look: Look) -> tuple[int, int]:
        """As far as records hold, the order of their store times looked at."""
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
        """Where whole records, or the file's marker, go on behind damage; `end` where neither does."""
        ranges = [(start, min(stop, end)) for start, stop in file.data_ranges(at) if start < end]
        for start, stop in ranges:
            found = find_record(file.pages, start, stop, file.start, True)
            if found < stop:
                # Remains of an earlier life of the file are older than what is before them.
                newest = walk_records(file.pages, found, end, file.start, False)[4]
                if newest >= self.last_timestamp:
                    return found
                break
        for start, stop in ranges:
            marker = file.pages.find(MAGIC, max(start, at + 4), stop) - 4
            while marker >= 0:
                if MARKER.unpack_from(file.pages, marker)[0] == self.file_size - marker:
                    return marker
                marker = file.pages.find(MAGIC, marker + 5, stop) - 4
        return end

    def _reason(self, file: MappedFile, at: int, why: int) -> int:
        """What is wrong at a gap's beginning; a marker that one bit or one field has spoilt is no lost record."""
        if at + MARKER_SIZE <= file.size and why in (BAD_MAGIC, BAD_SIZE):
            told, magic = MARKER.unpack_from(file.pages, at)
            if magic == MARKER_MAGIC or (told == self.file_size - at and (magic ^ MARKER_MAGIC).bit_count() == 1):
                return BROKEN_MARKER
        return NOTHING if why == REACHED_END else why

    def _find_end(self) -> None:
        """Gaps behind the last whole record are a tail, except for what the watermark covers."""
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
        """The store time of a record; None where no whole one begins there."""
        file = self.files.get(offset - offset % self.file_size)
        if file is None or not 0 <= offset - file.start <= file.size:
            return None
        size = check_record(file.pages, offset - file.start, file.size, offset, True)
        at = offset - file.start
        return StoredRecord(bytes(file.pages[at : at + size])).store_timestamp if size > 0 else None

    def tail_is_dirty(self) -> bool:
        """Something other than zeroes is behind the end."""
        zeroes = bytes(1 << 20)
        for start, file in self.files.items():
            for at, stop in file.data_ranges(max(0, self.end - start)):
                for chunk in range(at, stop, len(zeroes)):
                    part = file.pages[chunk : min(stop, chunk + len(zeroes))]
                    if part != zeroes[: len(part)]:
                        return True
        return False
