"""Merge files of a lake. Runs in a worker, with bounded memory: a few rows of each file and one row group.

Files of messages are merged by topic; within a topic the files follow each other in log order, so the result is ordered
as each of them was. Index files are sorted by hash again; files of statistics and findings are concatenated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.errors import BadFile
from mqlake.lake import LakeFile, done
from mqlake.lake.entries import TableName
from mqlake.lake.index import write_rows
from mqlake.lake.messages_file import IN_FILES, MessagesFile
from mqlake.lake.parquet import open_parquet, read_table, write_table
from mqlake.lake.paths import table_path
from mqlake.lake.storage import Storage, storage_at
from mqlake.lake.tables import INDEX, SCHEMAS
from mqlake.lake.verify import check_file

STEP_BYTES = 4 << 20
STEP_ROWS = 1 << 14
"""What is read of a file at a time: at most so many rows, and about so many bytes."""


@dataclass(frozen=True)
class Merge:
    """Files to merge into one: of one table and one store, in log order."""

    identity: str
    files: tuple[LakeFile, ...]


def merge_files(lake: str, merge: Merge) -> pa.Table:
    """Read the files, check that they are as committed, and write one."""
    storage = storage_at(lake)
    for file in merge.files:
        for finding in check_file(storage, file):
            raise BadFile(f"{storage.place}/{file.path}", finding.found, finding.expected)
    merged = MERGES.get(merge.files[0].table, _merge_rows)(storage, merge)
    rows = sum(file.rows for file in merge.files)
    assert merged.rows == rows, f"{merged.rows} rows of {rows}"
    return done([merged])


def _merge_messages(storage: Storage, merge: Merge) -> LakeFile:
    first, last = merge.files[0], merge.files[-1]
    texts = [field.name for field in IN_FILES if pa.types.is_dictionary(field.type)]
    with ExitStack() as stack:
        opened = [stack.enter_context(open_parquet(storage, file, read_dictionary=texts)) for file in merge.files]
        plain = ("body",) if not any(_is_compressed(file.metadata, "body") for file in opened) else ()
        made = MessagesFile(storage, first.store, merge.identity, first.start, last.end, plain)
        with made:
            topic = None
            for of_topic, _, rows in heapq.merge(*map(_runs, range(len(opened)), opened), key=lambda run: run[:2]):
                if topic != of_topic:
                    made.new_topic()
                    topic = of_topic
                made.add(rows)
            merged = made.close()
    assert merged is not None, "files of messages have rows"
    return merged


def _runs(number: int, file: pq.ParquetFile) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yield the rows of a file, topic by topic, each with its topic and the file's number."""
    size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
    step = max(1, min(STEP_ROWS, STEP_BYTES * file.metadata.num_rows // max(1, size)))
    for batch in file.iter_batches(step, use_threads=False):
        rows = pa.RecordBatch.from_arrays(
            [batch.column(field.name).cast(field.type) for field in IN_FILES], schema=IN_FILES
        )
        topics = rows.column("topic")
        cuts = [0, *(np.flatnonzero(np.diff(topics.indices.to_numpy())) + 1).tolist(), rows.num_rows]
        for start, end in pairwise(cuts):
            yield topics[start].as_py(), number, rows.slice(start, end - start)


def _is_compressed(metadata: pq.FileMetaData, column: str) -> bool:
    if not metadata.num_row_groups:
        return False
    group = metadata.row_group(0)
    chunks = (group.column(number) for number in range(group.num_columns))
    return any(chunk.path_in_schema == column and chunk.compression != "UNCOMPRESSED" for chunk in chunks)


def _merge_index(storage: Storage, merge: Merge) -> LakeFile:
    first, last = merge.files[0], merge.files[-1]
    rows = pa.concat_tables([read_table(storage, file, INDEX) for file in merge.files])
    rows = rows.sort_by([("key_hash", "ascending"), ("physical_offset", "ascending")])
    return write_rows(storage, first.store, merge.identity, first.start, last.end, rows, _span(merge.files))


def _merge_rows(storage: Storage, merge: Merge) -> LakeFile:
    """Concatenate rows that are independent or that add up."""
    first, last = merge.files[0], merge.files[-1]
    rows = pa.concat_tables([read_table(storage, file, SCHEMAS[first.table]) for file in merge.files])
    path = table_path(first.table, merge.identity, first.start, last.end)
    written = write_table(storage, path, rows)
    return LakeFile(first.table, path, first.store, first.start, last.end, *written, *_span(merge.files))


MERGES: dict[TableName, Callable[[Storage, Merge], LakeFile]] = {"messages": _merge_messages, "index": _merge_index}


def _span(files: Sequence[LakeFile]) -> tuple[int | None, int | None]:
    lows = [file.min_time for file in files if file.min_time is not None]
    highs = [file.max_time for file in files if file.max_time is not None]
    return min(lows, default=None), max(highs, default=None)
