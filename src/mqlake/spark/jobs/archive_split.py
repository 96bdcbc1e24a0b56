"""Write one split of a log to Parquet files by topic and day, with every byte accounted for. Runs in a worker.

There are two passes. The first walks and checks the records, and notes the offset and the target file of each. The
second writes one file after the other: the kernel lays out its records, wherever they lie in the split, as one row
group. So no row is sorted or copied after it was read, and a worker holds one row group, however many files a split
has. Python touches no record.

The written rows and the gaps (damage, end-of-file markers) must tile the split without a hole or an overlap, else the
task fails. First of all, the log's own files are synced: a power cut cannot take from the log what the archive has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mqlake.errors import ChangedUnderRead
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile, sync_file
from mqlake.files.names import file_name
from mqlake.kernel import crc32
from mqlake.lake.entries import MARKER, Gap, LakeFile, Seam, done
from mqlake.lake.messages import MESSAGES
from mqlake.lake.parquet import ParquetFile, Written, plain_columns, sync_names
from mqlake.lake.paths import messages_path
from mqlake.lake.stores import Member, read_log
from mqlake.logs.stretch import Stretch
from mqlake.spark.options import parse_options
from mqlake.spark.read_split import SplitScan, open_file
from mqlake.spark.schema import STORE, microseconds
from mqlake.spark.split import Split
from mqlake.store.scan import COLUMNS

Numbers = np.ndarray[Any, np.dtype[np.int64]]

MAX_FILES = 200
"""Topics and days that get their own file in a split. Those below this share of the split go into one common file:
ten thousand topics must not make ten thousand files per split."""
ROW_GROUP_BYTES = 32 << 20
SYNCS_AT_ONCE = 8
"""The file system syncs several files at the cost of one, while the next file is written."""
DAY_MS = 86_400_000
WHOLE_LOG = parse_options({"path": "-", "via": "scan", "includeInternal": "true"})
"""Jobs read every record."""

IN_FILES = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), pa.string()))
        if field.name == STORE or COLUMNS[field.name].startswith("dictionary")
        else field
        for field in MESSAGES
    ]
)
"""The schema that Parquet is given. Parquet knows dictionaries only as an encoding: reading returns MESSAGES."""


def archive_split(lake: str, member: Member, split: Split) -> pa.Table:
    """Write the messages of a split. Return the files and the range as `lake.entries.done` does."""
    sync_log(split)
    survey = Survey(split)
    scan = RowScan(split)
    files = Files(Path(lake), member, split)
    try:
        for plan in survey.files():
            files.write(plan, scan.rows_at(plan.offsets))
        written = files.close()
    except BaseException:
        files.drop()
        raise
    gaps = sorted(survey.gaps + scan.gaps)
    survey.prove(gaps, sum(file.rows for file in written))
    return done(written, [member.range(split.start, split.end, tuple(gaps), survey.seam(member.path))])


def sync_log(split: Split) -> None:
    """Sync the log files of a split to disk."""
    first = split.start - split.start % split.file_size
    for start in range(first, split.end, split.file_size):
        path = Layout(Path(split.store)).commit_log / file_name(start)
        try:
            sync_file(path)
        except FileNotFoundError:
            found = f"no file {path.name}: it was deleted after this job was planned"
            raise ChangedUnderRead(split.store, start, found, f"the log up to {split.end}") from None


class ArchiveScan(SplitScan):
    """A scan that reports damage as gaps."""

    @property
    def gaps(self) -> list[Gap]:
        """The damaged ranges that the scan skipped."""
        return [Gap(offset, offset + size, reason) for offset, size, reason in self.damage]


class PlaceScan(ArchiveScan):
    """Find where records lie. Also record end-of-file markers as gaps."""

    def __init__(self, split: Split) -> None:
        super().__init__(WHOLE_LOG, split, ("topic", "store_timestamp", "physical_offset", "size"))

    def behind_marker(self, stretch: Stretch, position: int) -> int:
        end = super().behind_marker(stretch, position)
        self.damage.append((stretch.log_start + position, end - position, MARKER))
        return end


class RowScan(ArchiveScan):
    """Read whole rows of checked records. Log files stay mapped, because every written file walks them again."""

    max_inflated = ROW_GROUP_BYTES

    def __init__(self, split: Split) -> None:
        super().__init__(WHOLE_LOG, split, tuple(COLUMNS), check_crc=False)
        self._open = cache(open_file)

    def _file(self, path: Path, log_start: int) -> MappedFile:
        return self._open(self._split, path, log_start, self._split.file_size)

    def rows_at(self, offsets: Numbers) -> Iterator[pa.RecordBatch]:
        """Yield the records at these offsets, which are in ascending order."""
        number, packed = 0, offsets.tobytes()
        while number < len(offsets):
            number = yield from self.picked(self._stretch(int(offsets[number]), self._split.end), packed, number)


class FilePlan(NamedTuple):
    """The content of one file. `name` is topic and day, or None for the file that small ones share."""

    name: tuple[str, int] | None
    offsets: Numbers
    min_time: int
    max_time: int


class Survey:
    """Where the records of a split lie, and which file each belongs to."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._names: dict[tuple[str, int], int] = {}
        scan = PlaceScan(split)
        looked = [self._look_at(batch) for batch in scan.of_split()]
        self.gaps = scan.gaps
        none = np.empty(0, np.int64)
        columns = zip(*looked, strict=True) if looked else [[none]] * 4
        self._offsets, self._sizes, self._times, self._numbers = map(np.concatenate, columns)

    def _look_at(self, batch: pa.RecordBatch) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return offsets, sizes and times of the records, and the id of each one's topic and day."""
        topics = batch.column("topic")
        times = batch.column("store_timestamp").cast(pa.int64()).to_numpy()
        days, day_number = _distinct(times // DAY_MS)
        names = itertools.product(topics.dictionary.to_pylist(), days.tolist())
        numbers = np.array([self._names.setdefault(name, len(self._names)) for name in names])
        number = numbers[topics.indices.to_numpy() * len(days) + day_number]
        return batch.column("physical_offset").to_numpy(), batch.column("size").to_numpy(), times, number

    def files(self) -> Iterator[FilePlan]:
        """Yield the plan of each file of this split."""
        sizes = np.bincount(self._numbers, self._sizes, len(self._names))
        large = np.flatnonzero(sizes * MAX_FILES >= max(1, sizes.sum()))
        file_of = np.full(len(self._names), len(large), np.int16)
        file_of[large] = np.arange(len(large))
        known = list(self._names)
        names = [*(known[number] for number in large), None]
        files = file_of[self._numbers]
        order = np.argsort(files, kind="stable")
        starts = np.flatnonzero(np.diff(files[order], prepend=-1))
        if not len(starts):
            return
        offsets, times = self._offsets[order], self._times[order]
        first, last = np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts)
        for number, rows in enumerate(np.split(offsets, starts[1:])):
            name = names[files[order[starts[number]]]]
            yield FilePlan(name, rows, int(first[number]), int(last[number]))

    def prove(self, gaps: list[Gap], rows: int) -> None:
        """Check that each byte of the split is in one record or one gap, and each record outside gaps is a row."""
        split = self._split
        begins = np.array([gap.start for gap in gaps], np.int64)
        is_row = ~np.isin(self._offsets, begins)  # a record whose body cannot be decompressed is a gap
        offsets, sizes = self._offsets[is_row], self._sizes[is_row]
        places = np.searchsorted(offsets, begins)
        starts = np.append(np.insert(offsets, places, begins), split.end)
        ends = np.insert(offsets + sizes, places, [gap.end for gap in gaps])
        wrong = np.flatnonzero(starts != np.insert(ends, 0, split.start))
        if len(wrong) or rows != len(offsets):
            place = int(starts[wrong[0]]) if len(wrong) else split.start
            found = f"{len(offsets)} records, {rows} rows and {len(gaps)} gaps that leave a hole, or overlap"
            raise ChangedUnderRead(split.store, place, found, f"each byte of [{split.start}, {split.end}) once")

    def seam(self, store: Path) -> Seam | None:
        """Return the seam at the last record."""
        if not len(self._offsets):
            return None
        offset, size = int(self._offsets[-1]), int(self._sizes[-1])
        return Seam(offset, size, crc32(read_log(store, offset, size)))


class Files:
    """The files of one split being written. Each is synced while the next is written."""

    def __init__(self, root: Path, member: Member, split: Split) -> None:
        self._root, self._member, self._split = root, member, split
        self._pool = ThreadPoolExecutor(SYNCS_AT_ONCE)
        self._made: list[ParquetFile] = []
        self._plans: list[tuple[str, FilePlan]] = []
        self._written: list[Future[Written]] = []

    def write(self, plan: FilePlan, batches: Iterator[pa.RecordBatch]) -> None:
        """Write one file in row groups of bounded size. Writes no file if all bodies are damaged."""
        first = next(batches, None)
        if first is None:
            return
        if len(self._written) >= SYNCS_AT_ONCE:  # files waiting for their sync are held in memory
            self._written[-SYNCS_AT_ONCE].result()
        topic, date = _topic_and_date(plan)
        path = messages_path(self._member.identity, self._split.start, self._split.end, topic, date)
        file = ParquetFile(self._root, path, IN_FILES, plain=plain_columns(first.column("body")))
        self._made.append(file)
        held: list[pa.RecordBatch] = []
        for batch in itertools.chain([first], batches):
            held.append(_for_parquet(self._member.name, batch))
            if sum(rows.nbytes for rows in held) >= ROW_GROUP_BYTES:
                file.write(pa.Table.from_batches(held).unify_dictionaries())
                held = []
        if held:
            file.write(pa.Table.from_batches(held).unify_dictionaries())
        self._plans.append((path, plan))
        self._written.append(self._pool.submit(file.close))

    def close(self) -> list[LakeFile]:
        """Make all files durable under their names and return them."""
        what = self._member.name, self._split.start, self._split.end
        files = [
            LakeFile("messages", path, *what, *written.result(), plan.min_time, plan.max_time, *_topic_and_date(plan))
            for (path, plan), written in zip(self._plans, self._written, strict=True)
        ]
        self._pool.shutdown()
        sync_names(self._root, [file.path for file in files])
        return files

    def drop(self) -> None:
        self._pool.shutdown()
        for file in self._made:
            file.drop()


def _topic_and_date(plan: FilePlan) -> tuple[str | None, str | None]:
    return (None, None) if plan.name is None else (plan.name[0], str(np.datetime64(plan.name[1], "D")))


def _for_parquet(store: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a scanned batch to the schema IN_FILES."""
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
    """Return the distinct values, ascending, and the index of each value among them. Fast if there is only one."""
    if values.min() == values.max():
        return values[:1], np.zeros(len(values), np.int64)
    distinct, numbers = np.unique(values, return_inverse=True)
    return distinct, numbers
