"""Read one split into Arrow batches, straight from the files. Runs in a worker.

A task opens only the files of its split, and proves what it read: a scan ends exactly at the split's end, an
end-of-file marker closes its file, and queue entries have the count and the offsets that were planned. Anything else,
including a file deleted meanwhile, raises ChangedUnderRead. A split never returns fewer rows than planned, except for
damage, which is reported.

Memory: pages of a mapped file are released one window at a time. A worker holds one window and one batch, however large
splits and files are.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlake.codec.queue_entry import ENTRY_SIZE, FILLER_SIZE
from mqlake.errors import ChangedUnderRead, CorruptRecord
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import PAGE_SIZE, MappedFile
from mqlake.files.names import file_name
from mqlake.kernel import check_record, find_record, java_hash
from mqlake.logs.stretch import Stretch
from mqlake.spark.jobs.tasks import settle
from mqlake.spark.options import SourceOptions
from mqlake.spark.schema import Table
from mqlake.spark.selection import Selection
from mqlake.spark.split import QueueRun, Split
from mqlake.store.scan import BATCH_BYTES, Scan

if TYPE_CHECKING:
    import pyarrow as pa

Entries = np.ndarray[Any, np.dtype[np.void]]
Times = np.ndarray[Any, np.dtype[np.int64]]
ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
WINDOW_BYTES = 32 << 20
"""Bytes of log that a worker keeps mapped in before it releases their pages."""

_log = logging.getLogger(__name__)


def read_split(options: SourceOptions, schema: pa.Schema, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages of a split as batches of the table, in log order."""
    settle()
    selection = Selection(options, split.topics)
    table = Table(split.store, schema)
    scan = (TimeScan if reads_times_first(options) else SplitScan)(options, split, selection.columns)
    try:
        if split.archived:
            raise FileVanished(split.store, split.start, "a log that begins later", "it in the lake")
        for batch in scan.of_split():
            batch = selection.of(batch)
            if batch.num_rows:
                yield table.of_messages(batch)
            if scan.damage and options.on_damage == "rows":
                yield table.of_damage(scan.damage)
                scan.damage.clear()
    except FileVanished as gone:
        if split.lake is None:
            raise
        from mqlake.spark.archived import read_archived

        end = yield from read_archived(options, schema, split, scan.reached, gone.found)
        if end < split.end:
            yield from read_split(options, schema, replace(split, start=end, runs=None, offsets=None, archived=False))
    if scan.damage and options.on_damage == "rows":
        yield table.of_damage(scan.damage)


class FileVanished(ChangedUnderRead):
    """A log file was deleted after the read was planned."""


class SplitScan(Scan):
    """A scan that proves that it reached the split's end, and records the damage it skipped."""

    batch_bytes = BATCH_BYTES

    def __init__(
        self, options: SourceOptions, split: Split, columns: tuple[str, ...], *, check_crc: bool = True
    ) -> None:
        on_damage = "fail" if options.on_damage == "fail" else "skip"
        super().__init__(columns, self.batch_bytes, True, split.topics, on_damage, check_crc)  # type: ignore[arg-type]
        self._split = split
        self._tags = options.tags
        self._layout = Layout(Path(split.store))
        self.damage: list[tuple[int, int, str]] = []
        """Offset, size and reason of each damaged range skipped since this list was last cleared."""
        self.reached = split.start
        """The rows before this offset were returned. The lake continues here if a file is gone."""

    def of_split(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the split, in whichever way it names its messages."""
        split = self._split
        if split.runs is not None:
            yield from self._at(queue_offsets(self._layout, split, self._tags))
        elif split.offsets is not None:
            yield from self._at(split.offsets)
        else:
            offset = split.start
            while offset < split.end:
                stretch = self._stretch(offset, split.end)
                yield from self._scanned(stretch)
                offset = stretch.log_start + stretch.end

    def _scanned(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        return self.batches(stretch, _PageRelease(stretch))

    def _at(self, offsets: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the records at these offsets, which are in ascending order."""
        places = np.frombuffer(offsets, np.int64)
        number = 0
        while number < len(places):
            stretch = self._stretch(int(places[number]), self._split.readable)
            reached = yield from _releasing(stretch.data, self.picked(stretch, offsets, number))
            assert reached > number, "the first offset is in the file that was mapped for it"
            number = reached

    def _stretch(self, start: int, stop: int) -> Stretch:
        """Return the part of [start, stop) that lies in one file of the log."""
        self.reached = start
        size = self._split.file_size
        log_start = start - start % size
        path = self._layout.commit_log / file_name(log_start)
        file = self._file(path, log_start)
        return Stretch(file.pages, log_start, start - log_start, min(stop - log_start, size), path)

    def _file(self, path: Path, log_start: int) -> MappedFile:
        return open_file(self._split, path, log_start, self._split.file_size)

    def behind_marker(self, stretch: Stretch, position: int) -> int:
        """Check that the marker covers the rest of its file, and that the split does not end inside it."""
        size = self._split.file_size
        covers = int.from_bytes(stretch.data[position : position + 4], "big")
        if position + covers != size or stretch.end != size:
            found = f"an end-of-file marker over {covers} bytes at position {position} of a file of {size}"
            raise ChangedUnderRead(
                self._split.store, stretch.log_start + position, found, f"records up to {self._split.end}"
            )
        return stretch.end

    def behind_damage(self, stretch: Stretch, position: int, status: int) -> int:
        """Check that damage does not hide a split cut inside a record: that record would be in no split."""
        limit = min(self._split.file_size, self._split.readable - stretch.log_start)
        whole = find_record(stretch.data, position, limit, stretch.log_start)
        if whole < stretch.end < limit:
            place = stretch.log_start + whole
            if whole + check_record(stretch.data, whole, limit, place, False) > stretch.end:
                found = f"a whole record that crosses {self._split.end}, where this split ends"
                raise ChangedUnderRead(
                    self._split.store, place, found, "a record boundary there (try another splitSize)"
                )
        return super().behind_damage(stretch, position, status)

    def report(self, error: CorruptRecord, size: int) -> None:
        super().report(error, size)
        self.damage.append((error.physical_offset, size, error.reason))


def reads_times_first(options: SourceOptions) -> bool:
    """Return whether a scan reads the times of all records, and then the records in time.

    Not if the plan has searched for the times, so that most records are in time, and not if all damage is reported.
    """
    by_time = options.start_time is not None or options.end_time is not None
    return by_time and not options.rising_times and options.on_damage == "skip"


class TimeScan(SplitScan):
    """A scan that reads the times of a batch first, and its records only from the first to the last that is in time.

    Every time is looked at: store times run back along the log when a clock is set back.
    """

    def __init__(self, options: SourceOptions, split: Split, columns: tuple[str, ...]) -> None:
        super().__init__(options, split, columns)
        self._start, self._stop = options.start_time, options.end_time
        self._walk = SplitScan(options, split, ("store_timestamp", "physical_offset", "size"), check_crc=False)

    def _scanned(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        for batch in self._walk.batches(stretch, _PageRelease(stretch)):
            wanted = np.flatnonzero(self._in_time(batch.column("store_timestamp").view("int64").to_numpy()))
            if len(wanted):
                offsets = batch.column("physical_offset").to_numpy() - stretch.log_start
                end = int(offsets[wanted[-1]]) + batch.column("size")[int(wanted[-1])].as_py()
                part = stretch._replace(position=int(offsets[wanted[0]]), end=end)
                yield from self.batches(part, lambda size: None)

    def _in_time(self, times: Times) -> np.ndarray[Any, np.dtype[np.bool_]]:
        since = times >= self._start if self._start is not None else np.full(len(times), True)
        return since & (times < self._stop) if self._stop is not None else since


class _PageRelease:
    """Release the pages that a scan has read. They stay in the page cache, but not in the process's memory."""

    def __init__(self, stretch: Stretch) -> None:
        self._pages = stretch.data
        self._at = self._kept_from = stretch.position

    def __call__(self, size: int) -> None:
        self._at += size
        if self._at - self._kept_from >= WINDOW_BYTES:
            start = self._kept_from - self._kept_from % PAGE_SIZE
            self._pages.madvise(mmap.MADV_DONTNEED, start, self._at - start)
            self._kept_from = self._at


def _releasing(pages: mmap.mmap, batches: Generator[pa.RecordBatch, None, int]) -> Generator[pa.RecordBatch, None, int]:
    """Yield batches of scattered records, and release all pages after each batch."""
    while True:
        try:
            batch = next(batches)
        except StopIteration as done:
            reached: int = done.value
            return reached
        yield batch
        pages.madvise(mmap.MADV_DONTNEED)


def queue_offsets(layout: Layout, split: Split, tags: tuple[str, ...] | None) -> bytes:
    """Return the physical offsets in the split's queue entries, ascending. Drop entries with another tag hash."""
    assert split.runs is not None
    parts = [_entries(layout, split, run) for run in split.runs]
    entries = np.concatenate(parts)
    if tags is not None:
        codes = entries["tags_code"].astype(np.int64)
        hashes = [java_hash(tag) for tag in tags]
        no_hash = (codes < -(1 << 31)) | (codes >= 1 << 31)  # a delivery time, or a place in RocketMQ's extension file
        entries = entries[np.isin(codes, hashes) | no_hash]
    return np.sort(entries["offset"].astype(np.int64)).tobytes()


def _entries(layout: Layout, split: Split, run: QueueRun) -> Entries:
    """Return the entries of a run that name messages. All of them must point into the split."""
    directory = layout.consume_queues / run.topic / str(run.queue_id)
    parts = []
    at, stop = run.first * ENTRY_SIZE, run.stop * ENTRY_SIZE
    while at < stop:
        start = at - at % split.queue_file_size
        file = open_file(split, directory / file_name(start), start, split.queue_file_size)
        count = (min(stop, file.end) - at) // ENTRY_SIZE
        parts.append(np.frombuffer(file.pages, ENTRY, count, at - start))
        at += count * ENTRY_SIZE
    entries: Entries = np.concatenate(parts)
    entries = entries[entries["size"] != FILLER_SIZE]
    outside = (entries["offset"] < split.start) | (entries["offset"] >= split.end) | (entries["size"] <= 0)
    if outside.any():
        found = f"an entry of {run.topic}, queue {run.queue_id}, that points there"
        offset = int(entries["offset"][outside][0])
        raise ChangedUnderRead(split.store, offset, found, f"entries that point into [{split.start}, {split.end})")
    return entries


def open_file(split: Split, path: Path, start: int, size: int) -> MappedFile:
    try:
        return MappedFile.open(path, start, size, writable=False)
    except FileNotFoundError:
        found = f"no file {path.parent.name}/{path.name}: it was deleted after this read was planned"
        raise FileVanished(split.store, split.start, found, f"the log up to {split.end}") from None
