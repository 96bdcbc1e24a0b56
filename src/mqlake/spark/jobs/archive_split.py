"""Write one split of a log as one Parquet file, clustered by topic, with every byte accounted for. Runs in a worker.

There are two passes. The first walks and checks the records, and notes the offset and the topic of each. The second
reads them in the order of the file, by topic and then by offset: the kernel lays out the records of a row group,
wherever they lie in the split. So no row is sorted or copied after it was read, and a worker holds one row group.
Python touches no record.

The written rows and the gaps (damage, end-of-file markers) must tile the split without a hole or an overlap, else the
task fails. First of all, the log's own files are synced: a power cut cannot take from the log what the archive has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mqlake.errors import ChangedUnderRead
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile, sync_file
from mqlake.files.names import file_name
from mqlake.kernel import crc32
from mqlake.lake.entries import MARKER, Gap, Seam, done
from mqlake.lake.messages_file import GROUP_BYTES, IN_FILES, MAX_GROUP_BYTES, MessagesFile
from mqlake.lake.parquet import plain_columns
from mqlake.lake.storage import storage_at
from mqlake.lake.stores import Member, read_log
from mqlake.logs.stretch import Stretch
from mqlake.spark.options import parse_options
from mqlake.spark.read_split import SplitScan, open_file
from mqlake.spark.schema import STORE, microseconds
from mqlake.spark.split import Split
from mqlake.store.scan import COLUMNS

Numbers = np.ndarray[Any, np.dtype[np.int64]]

SAMPLED = 64
"""Records, spread over the split, whose bodies decide whether bodies are compressed."""
WHOLE_LOG = parse_options({"path": "-", "via": "scan", "includeInternal": "true"})
"""Jobs read every record."""


def archive_split(lake: str, member: Member, split: Split) -> pa.Table:
    """Write the messages of a split. Return the file and the range as `lake.entries.done` does."""
    sync_log(split)
    survey = Survey(split)
    scan = RowScan(split)
    plain = _plain(split, survey.sample())
    with MessagesFile(storage_at(lake), member.name, member.identity, split.start, split.end, plain) as file:
        for offsets in survey.groups():
            file.new_topic()
            for batch in scan.rows_at(offsets):
                file.add(_for_parquet(member.name, batch))
        gaps = sorted(survey.gaps + scan.gaps)
        survey.prove(gaps, file.rows)
        written = file.close()
    files = [] if written is None else [written]
    return done(files, [member.range(split.start, split.end, tuple(gaps), survey.seam(member.path))])


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

    batch_bytes = 16 << 20  # a few numbers for each record

    def __init__(self, split: Split) -> None:
        super().__init__(WHOLE_LOG, split, ("topic", "physical_offset", "size"))

    def behind_marker(self, stretch: Stretch, position: int) -> int:
        end = super().behind_marker(stretch, position)
        self.damage.append((stretch.log_start + position, end - position, MARKER))
        return end


class RowScan(ArchiveScan):
    """Read rows of checked records. Log files stay mapped, because every row group walks them again."""

    batch_bytes = 2 * GROUP_BYTES  # nearly all row groups are read as one batch
    max_inflated = MAX_GROUP_BYTES

    def __init__(self, split: Split, columns: tuple[str, ...] = tuple(COLUMNS)) -> None:
        super().__init__(WHOLE_LOG, split, columns, check_crc=False)
        self._open = cache(open_file)

    def _file(self, path: Path, log_start: int) -> MappedFile:
        return self._open(self._split, path, log_start, self._split.file_size)

    def rows_at(self, offsets: Numbers) -> Iterator[pa.RecordBatch]:
        """Yield the records at these offsets, in this order."""
        number, packed = 0, offsets.tobytes()
        while number < len(offsets):
            number = yield from self.picked(self._stretch(int(offsets[number]), self._split.end), packed, number)


class Survey:
    """Where the records of a split lie, and of which topic each is."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._names: dict[str, int] = {}
        scan = PlaceScan(split)
        looked = [self._look_at(batch) for batch in scan.of_split()]
        self.gaps = scan.gaps
        none = np.empty(0, np.int64)
        columns = zip(*looked, strict=True) if looked else [[none]] * 3
        self._offsets, self._sizes, self._topics = map(np.concatenate, columns)

    def _look_at(self, batch: pa.RecordBatch) -> tuple[Numbers, Numbers, Numbers]:
        """Return offsets and sizes of the records, and the number of each one's topic."""
        topics = batch.column("topic")
        numbers = [self._names.setdefault(name, len(self._names)) for name in topics.dictionary.to_pylist()]
        number = np.array(numbers, np.int32)[topics.indices.to_numpy()]
        return batch.column("physical_offset").to_numpy(), batch.column("size").to_numpy(), number

    def groups(self) -> Iterator[Numbers]:
        """Yield offsets in the order of the file, a group at a time: one topic, or some that are small."""
        if not len(self._offsets):
            return
        place = {name: number for number, name in enumerate(sorted(self._names))}
        kind = np.uint16 if len(place) <= 1 << 16 else np.int32  # NumPy sorts 16 bits in a quarter of the time
        places = np.array([place[name] for name in self._names], kind)[self._topics]
        order = np.argsort(places, kind="stable")
        offsets, topics = self._offsets[order], places[order]
        starts = np.insert(np.flatnonzero(topics[1:] != topics[:-1]) + 1, 0, 0)
        begun, held = 0, 0
        sizes = np.add.reduceat(self._sizes[order], starts, dtype=np.int64)
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            if held >= GROUP_BYTES:
                yield offsets[begun:start]
                begun, held = start, 0
            held += size
        yield offsets[begun:]

    def sample(self) -> Numbers:
        """Return the offsets of some records, spread over the split."""
        return self._offsets[:: max(1, len(self._offsets) // SAMPLED)]

    def prove(self, gaps: list[Gap], rows: int) -> None:
        """Check that each byte of the split is in one record or one gap, and each record outside gaps is a row."""
        split = self._split
        offsets, sizes = self._offsets, self._sizes
        starts, ends = offsets, offsets + sizes
        if gaps:
            begins = np.array([gap.start for gap in gaps], np.int64)
            is_row = ~np.isin(offsets, begins)  # a record whose body cannot be decompressed is a gap
            offsets, sizes = offsets[is_row], sizes[is_row]
            places = np.searchsorted(offsets, begins)
            starts = np.insert(offsets, places, begins)
            ends = np.insert(offsets + sizes, places, [gap.end for gap in gaps])
        starts = np.append(starts, split.end)
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


def _plain(split: Split, offsets: Numbers) -> tuple[str, ...]:
    """Return the columns that would not shrink."""
    bodies = [batch.column("body") for batch in RowScan(split, ("body",)).rows_at(offsets)]
    return plain_columns(pa.concat_arrays(bodies)) if bodies else ()


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
