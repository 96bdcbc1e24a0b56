"""In a worker: one split of a log -> Parquet files by topic and day, every byte accounted for.

Each batch of the scan is put in the order of its files while it is in the cache, and cut into slices, which wait until
there are enough of them for a row group, or too many for the memory. No record is touched by Python.

The rows that were written and the gaps (damage, end-of-file markers) must tile the split without a hole or an overlap;
else the task fails. Before anything, the log's own files are synced: what the archive has, a power cut cannot take from
the log.
"""

from __future__ import annotations

import itertools
import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mqlake.errors import ChangedUnderRead
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import sync_file
from mqlake.files.names import file_name
from mqlake.kernel import crc32
from mqlake.lake.entries import MARKER, Gap, LakeFile, Seam, done
from mqlake.lake.messages import MESSAGES
from mqlake.lake.parquet import ParquetFile, sync_names
from mqlake.lake.paths import messages_path
from mqlake.lake.stores import Member, read_log
from mqlake.logs.stretch import Stretch
from mqlake.spark.options import parse_options
from mqlake.spark.read_split import SplitScan
from mqlake.spark.schema import STORE, microseconds
from mqlake.spark.split import Split
from mqlake.store.scan import BATCH_BYTES, COLUMNS

Numbers = np.ndarray[Any, np.dtype[np.int64]]

MAX_FILES = 200
"""Topics and days of a split that get a file of their own. The small ones, below such a share of a batch, have one
file together: ten thousand topics do not make ten thousand files of every split."""
ROW_GROUP_BYTES = 32 << 20
HELD_BYTES = 224 << 20
"""Rows that wait in memory: enough for a split of the usual size, because many small row groups cost twice the time."""
SMALL_SLICE = 1 << 20
SYNCS_AT_ONCE = 8
"""The file system does several at the cost of one."""
DAY_MS = 86_400_000
WHOLE_LOG = parse_options({"path": "-", "via": "scan", "includeInternal": "true"})
"""A job sees every record."""

IN_FILES = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), pa.string()))
        if field.name == STORE or COLUMNS[field.name].startswith("dictionary")
        else field
        for field in MESSAGES
    ]
)
"""As it is handed to Parquet, which knows dictionaries as an encoding only: read again, it is MESSAGES."""


def archive_split(lake: str, member: Member, split: Split) -> pa.Table:
    """Write the messages of a split; what was written, and the range, as `lake.entries.done` has it."""
    sync_log(split)
    scan = ArchiveScan(WHOLE_LOG, split, tuple(COLUMNS))
    tiling, partitions = Tiling(), Partitions(Path(lake), member, split)
    try:
        for batch in scan.of_split():
            tiling.add(batch)
            partitions.add(batch)
            scan.let_go()
        files = partitions.close()
    except BaseException:
        partitions.drop()
        raise
    gaps = sorted(scan.gaps)
    tiling.prove(split, gaps, sum(file.rows for file in files))
    return done(files, [member.range(split.start, split.end, tuple(gaps), tiling.seam(member.path))])


def sync_log(split: Split) -> None:
    """Bring the log's files that a split lies in to the disk."""
    first = split.start - split.start % split.file_size
    for start in range(first, split.end, split.file_size):
        path = Layout(Path(split.store)).commit_log / file_name(start)
        try:
            sync_file(path)
        except FileNotFoundError:
            found = f"no file {path.name}: it was deleted since this job was planned"
            raise ChangedUnderRead(split.store, start, found, f"the log up to {split.end}") from None


class ArchiveScan(SplitScan):
    """A scan that notes end-of-file markers as well as damage, and inflates less at once."""

    max_inflated = ROW_GROUP_BYTES
    _mapped: Stretch | None = None

    def _stretch(self, start: int, stop: int) -> Stretch:
        self._mapped = super()._stretch(start, stop)
        return self._mapped

    def let_go(self) -> None:
        """Pages of the log that were read count as this process' memory until it says that it does not need them."""
        if self._mapped is not None and isinstance(self._mapped.data, mmap.mmap):
            self._mapped.data.madvise(mmap.MADV_DONTNEED)

    @property
    def gaps(self) -> list[Gap]:
        """What was passed over."""
        return [Gap(offset, offset + size, reason) for offset, size, reason in self.damage]

    def behind_marker(self, stretch: Stretch, position: int) -> int:
        end = super().behind_marker(stretch, position)
        self.damage.append((stretch.log_start + position, end - position, MARKER))
        return end


class Tiling:
    """Where the records of a split lie; gaps must be all that is between them."""

    def __init__(self) -> None:
        self._offsets: list[Numbers] = [np.empty(0, np.int64)]
        self._sizes: list[Numbers] = [np.empty(0, np.int64)]

    def add(self, batch: pa.RecordBatch) -> None:
        self._offsets.append(batch.column("physical_offset").to_numpy())
        self._sizes.append(batch.column("size").to_numpy())

    def prove(self, split: Split, gaps: list[Gap], rows: int) -> None:
        """Each byte of the split is in one record or one gap, and each record is a row."""
        offsets, sizes = np.concatenate(self._offsets), np.concatenate(self._sizes)
        begins = np.array([gap.start for gap in gaps], np.int64)
        places = np.searchsorted(offsets, begins)
        starts = np.append(np.insert(offsets, places, begins), split.end)
        ends = np.insert(offsets + sizes, places, [gap.end for gap in gaps])
        wrong = np.flatnonzero(starts != np.insert(ends, 0, split.start))
        if len(wrong) or rows != len(offsets):
            place = int(starts[wrong[0]]) if len(wrong) else split.start
            found = f"{len(offsets)} records, {rows} rows and {len(gaps)} gaps that leave a hole, or overlap"
            raise ChangedUnderRead(split.store, place, found, f"each byte of [{split.start}, {split.end}) once")

    def seam(self, store: Path) -> Seam | None:
        """The last record."""
        if not len(self._offsets[-1]):
            return None
        offset, size = int(self._offsets[-1][-1]), int(self._sizes[-1][-1])
        return Seam(offset, size, crc32(read_log(store, offset, size)))


class Partition:
    """One file in the making, and the rows that wait for it."""

    def __init__(self, root: Path, path: str, topic: str | None, date: str | None) -> None:
        self.path, self.topic, self.date = path, topic, date
        self.file = ParquetFile(root, path, IN_FILES)
        self.held_bytes = 0
        self._held: list[pa.RecordBatch] = []
        self._span = 2**63 - 1, -(2**63)

    def add(self, rows: pa.RecordBatch, size: int, times: Numbers) -> None:
        self._held.append(rows)
        self.held_bytes += size
        self._span = min(self._span[0], int(times.min())), max(self._span[1], int(times.max()))

    def write(self) -> None:
        """A row group of what waits. Small slices are put together first: Parquet is slow on them."""
        if self._held:
            small = self.held_bytes < len(self._held) * SMALL_SLICE
            table = pa.Table.from_batches(self._held).unify_dictionaries()
            self._held, self.held_bytes = [], 0
            self.file.write(table.combine_chunks() if small else table)

    def close(self, member: Member, split: Split) -> LakeFile:
        written = self.file.close()
        what = member.name, split.start, split.end
        return LakeFile("messages", self.path, *what, *written, *self._span, self.topic, self.date)


class Partitions:
    """The files of one split, by topic and day."""

    def __init__(self, root: Path, member: Member, split: Split) -> None:
        self._root, self._member, self._split = root, member, split
        self._numbers: dict[tuple[str, int] | None, int] = {}
        self._partitions: list[Partition] = []
        self._seen_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Hand each row to its file."""
        times = batch.column("store_timestamp").cast(pa.int64()).to_numpy()
        numbers = self._numbers_of(batch, times // DAY_MS)
        rows = _for_parquet(self._member.name, batch)
        if numbers.min() < numbers.max():
            order = np.argsort(numbers, kind="stable")
            rows, times, numbers = rows.take(pa.array(order)), times[order], numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        row_bytes = rows.nbytes / rows.num_rows
        for start, end in zip(starts, [*starts[1:], len(times)], strict=True):
            slice_bytes = int(row_bytes * (end - start))
            self._partitions[numbers[start]].add(rows.slice(start, end - start), slice_bytes, times[start:end])
        self._write_what_is_due()

    def _numbers_of(self, batch: pa.RecordBatch, day_of: Numbers) -> Numbers:
        """For each row of a batch the number of its file."""
        topics = batch.column("topic")
        days, day_number = _distinct(day_of)
        keys = topics.indices.to_numpy() * len(days) + day_number
        sizes = np.bincount(keys, batch.column("size").to_numpy())
        names = itertools.product(topics.dictionary.to_pylist(), days.tolist())
        self._seen_bytes += int(sizes.sum())
        share = min(self._seen_bytes, BATCH_BYTES) / MAX_FILES
        known = [self._number(name, size >= share) if size else 0 for name, size in zip(names, sizes, strict=False)]
        numbers: Numbers = np.array(known, np.int16)[keys]
        return numbers

    def _number(self, name: tuple[str, int] | None, large: bool) -> int:
        """The number of the file for a topic and a day: its own, or the one that small ones share."""
        if name not in self._numbers and not (large and len(self._numbers) < MAX_FILES):
            name = None
        if name not in self._numbers:
            topic, date = (name[0], str(np.datetime64(name[1], "D"))) if name is not None else (None, None)
            path = messages_path(self._member.identity, self._split.start, self._split.end, topic, date)
            self._numbers[name] = len(self._partitions)
            self._partitions.append(Partition(self._root, path, topic, date))
        return self._numbers[name]

    def _write_what_is_due(self) -> None:
        too_much = sum(partition.held_bytes for partition in self._partitions) >= HELD_BYTES
        for partition in self._partitions:
            if too_much or partition.held_bytes >= ROW_GROUP_BYTES:
                partition.write()

    def close(self) -> list[LakeFile]:
        """All files, durable and under their names."""
        for partition in self._partitions:
            partition.write()
        with ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:
            files = list(pool.map(lambda partition: partition.close(self._member, self._split), self._partitions))
        sync_names(self._root, [file.path for file in files])
        return files

    def drop(self) -> None:
        for partition in self._partitions:
            partition.file.drop()


def _for_parquet(store: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of a scan, as IN_FILES has it."""
    columns = {name: batch.column(name) for name in COLUMNS}
    columns[STORE] = pa.DictionaryArray.from_arrays(np.zeros(batch.num_rows, np.int32), pa.array([store]))
    for name in ("born_timestamp", "store_timestamp"):
        columns[name] = microseconds(columns[name])
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for field, column in ((field, columns[field.name]) for field in IN_FILES)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=IN_FILES)


def _distinct(values: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct values, rising, and for each value the number of its own; quick where there is only one."""
    if values.min() == values.max():
        return values[:1], np.zeros(len(values), np.int64)
    distinct, numbers = np.unique(values, return_inverse=True)
    return distinct, numbers
