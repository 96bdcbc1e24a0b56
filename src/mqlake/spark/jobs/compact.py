"""Compact a lake: merge small files of one topic and day into large ones, in log order.

One commit swaps them. The old files stay for the grace time, for their readers (`lake.vacuum`). Index files are merged
and sorted by hash again; files of statistics and findings are concatenated. No row is read twice: a version of the lake
has either the old files or the new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from mqlake.errors import BadFile
from mqlake.lake import DONE, Lake, LakeFile, done, harvest
from mqlake.lake.entries import TableName
from mqlake.lake.index import write_rows
from mqlake.lake.notes import TABLES
from mqlake.lake.parquet import ParquetFile, plain_columns, sync_names, write_table
from mqlake.lake.paths import messages_path, table_path
from mqlake.lake.vacuum import GRACE_S, vacuum
from mqlake.lake.verify import check_file
from mqlake.spark.jobs.archive_split import IN_FILES, ROW_GROUP_BYTES
from mqlake.spark.jobs.tasks import run_tasks

TARGET_BYTES = 128 << 20
TASKS_A_COMMIT = 64


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    deleted: int
    """Files of earlier compactions and of killed tasks that were deleted from disk."""


@dataclass(frozen=True)
class Merge:
    """Files to merge into one."""

    identity: str
    files: tuple[LakeFile, ...]


def compact(spark: SparkSession, lake: str, *, target_bytes: int = TARGET_BYTES, grace_s: float = GRACE_S) -> Compacted:
    """Merge files smaller than half of `target_bytes`. Delete files that were replaced more than `grace_s` ago."""
    opened = Lake.open(lake)
    with opened.lock():
        deleted = vacuum(opened, grace_s)
        merges = list(plan_merges(opened, target_bytes))
        old = [file for merge in merges for file in merge.files]
        new: list[LakeFile] = []
        for first in range(0, len(merges), TASKS_A_COMMIT):
            some = merges[first : first + TASKS_A_COMMIT]
            _, files = harvest(run_tasks(spark, some, partial(merge_files, str(opened.root)), DONE))
            opened.commit([], files, [file.path for merge in some for file in merge.files])
            new += files
    sizes = sum(file.bytes for file in old), sum(file.bytes for file in new)
    return Compacted(len(old), len(new), *sizes, len(deleted))


def plan_merges(lake: Lake, target_bytes: int) -> Iterator[Merge]:
    """Yield adjacent small files of one topic and day of a store whose total size is within the target."""
    snapshot = lake.snapshot()
    for table in TABLES.values():
        files = sorted(snapshot.files(table), key=_place)
        for _, of_one in itertools.groupby(files, key=lambda file: _place(file)[:3]):
            for together in _bins([file for file in of_one if 2 * file.bytes <= target_bytes], target_bytes):
                if len(together) > 1:
                    yield Merge(snapshot.stores[together[0].store].identity, tuple(together))


def _bins(files: Sequence[LakeFile], target_bytes: int) -> Iterator[list[LakeFile]]:
    together: list[LakeFile] = []
    for file in files:
        too_large = sum(f.bytes for f in together) + file.bytes > target_bytes
        if together and (too_large or not _follows(together[-1], file)):
            yield together
            together = []
        together.append(file)
    yield together


def _place(file: LakeFile) -> tuple[str, str, str, int]:
    return file.store, file.topic or "", file.date or "", file.start


def _follows(before: LakeFile, file: LakeFile) -> bool:
    """Return whether two files may be merged.

    A file of any table but messages says that its whole range went through a stage. A gap between two files did not.
    """
    return file.table == "messages" or before.end == file.start


def merge_files(lake: str, merge: Merge) -> pa.Table:
    """Read the files, check that they are as committed, and write one. Runs in a worker."""
    root = Path(lake)
    for file in merge.files:
        for finding in check_file(root, file):
            raise BadFile(root / file.path, finding.found, finding.expected)
    merged = MERGES.get(merge.files[0].table, _merge_rows)(root, merge)
    rows = sum(file.rows for file in merge.files)
    assert merged.rows == rows, f"{merged.rows} rows of {rows}"
    return done([merged])


def _merge_messages(root: Path, merge: Merge) -> LakeFile:
    first, last = merge.files[0], merge.files[-1]
    path = messages_path(merge.identity, first.start, last.end, first.topic, first.date)
    tables = _row_groups(root, merge.files)
    one = next(tables)
    file = ParquetFile(root, path, IN_FILES, plain=plain_columns(one.column("body").chunk(0)))
    try:
        for table in itertools.chain([one], tables):
            file.write(table)
        written = file.close()
    except BaseException:
        file.drop()
        raise
    sync_names(root, [path])
    return LakeFile(
        "messages", path, first.store, first.start, last.end, *written, *_span(merge.files), first.topic, first.date
    )


def _row_groups(root: Path, files: Sequence[LakeFile]) -> Iterator[pa.Table]:
    """Yield the rows of the files, in order, in tables of the size of a row group."""
    held: list[pa.Table] = []
    texts = [field.name for field in IN_FILES if pa.types.is_dictionary(field.type)]
    for file in files:
        with pq.ParquetFile(root / file.path, read_dictionary=texts) as opened:
            for number in range(opened.num_row_groups):
                held.append(opened.read_row_group(number).cast(IN_FILES))
                if sum(table.nbytes for table in held) >= ROW_GROUP_BYTES:
                    yield pa.concat_tables(held).unify_dictionaries().combine_chunks()
                    held = []
    if held:
        yield pa.concat_tables(held).unify_dictionaries().combine_chunks()


def _merge_index(root: Path, merge: Merge) -> LakeFile:
    first, last = merge.files[0], merge.files[-1]
    rows = pa.concat_tables([pq.read_table(root / file.path) for file in merge.files])
    rows = rows.sort_by([("key_hash", "ascending"), ("physical_offset", "ascending")])
    return write_rows(root, first.store, merge.identity, first.start, last.end, rows, _span(merge.files))


def _merge_rows(root: Path, merge: Merge) -> LakeFile:
    """Concatenate rows that are independent or that add up."""
    first, last = merge.files[0], merge.files[-1]
    rows = pa.concat_tables([pq.read_table(root / file.path) for file in merge.files])
    path = table_path(first.table, merge.identity, first.start, last.end)
    written = write_table(root, path, rows)
    return LakeFile(first.table, path, first.store, first.start, last.end, *written, *_span(merge.files))


MERGES: dict[TableName, Callable[[Path, Merge], LakeFile]] = {"messages": _merge_messages, "index": _merge_index}


def _span(files: Sequence[LakeFile]) -> tuple[int | None, int | None]:
    lows = [file.min_time for file in files if file.min_time is not None]
    highs = [file.max_time for file in files if file.max_time is not None]
    return min(lows, default=None), max(highs, default=None)
