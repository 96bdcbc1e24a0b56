"""The table `messages` as a stream of Arrow batches: the rows and types that Spark's source gives too.

RocketMQ's own topics, half messages and rolled-back ones are left out. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from mqlake.message_store import MessageStore
from mqlake.store.scan import COLUMNS, HALF_OR_ROLLED_BACK, is_internal

STORE = "store"
FARTHEST_MS = (2**63 - 1) // 1000
"""The farthest time before or after 1970 that fits in microseconds: a flipped bit must not fail the other rows."""
TYPES: dict[str, pa.DataType] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp[ms, UTC]": pa.timestamp("us", "UTC"),
    "dictionary<int32, string>": pa.dictionary(pa.int32(), pa.string()),
    "list<string>": pa.list_(pa.string()),
    "map<string, string>": pa.map_(pa.string(), pa.string()),
}
SCHEMA = pa.schema([pa.field(STORE, pa.string()), *(pa.field(name, TYPES[kind]) for name, kind in COLUMNS.items())])
FILTERED_BY = ("topic", "sys_flag")


def batches(path: str, columns: Collection[str], topics: Collection[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one store. Columns that are not asked for are null."""
    wanted = [name for name in COLUMNS if name in columns or name in FILTERED_BY]
    with MessageStore.open(path, read_only=True) as store:
        for batch in store.scan(columns=wanted, topics=topics):
            rows = _shown(batch)
            if rows.num_rows:
                arrays = [_column(rows, field, path, columns) for field in SCHEMA]
                yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _shown(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a batch without those that only the store itself needs."""
    names = batch.column("topic")
    hidden = [code for code, name in enumerate(names.dictionary.to_pylist()) if is_internal(name)]
    drop = _values(batch.column("sys_flag"), np.int32) & HALF_OR_ROLLED_BACK != 0
    if hidden:
        drop |= np.isin(_values(names.indices, np.int32), hidden)
    return batch.filter(_mask(~drop)) if drop.any() else batch


def _mask(keep: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.BooleanArray:
    """Return truths as an Arrow column. Like `_values`, this keeps pandas out: it takes longer than most queries."""
    bits = np.packbits(keep, bitorder="little")
    return pa.BooleanArray.from_buffers(pa.bool_(), len(keep), [None, pa.py_buffer(bits)])


def _values(column: pa.Array, kind: type[np.generic]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a column without nulls as it lies in memory. Arrow's own conversions import pandas, if it is there."""
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def _column(batch: pa.RecordBatch, field: pa.Field, path: str, columns: Collection[str]) -> pa.Array:
    if field.name not in columns:
        return pa.nulls(batch.num_rows, field.type)
    if field.name == STORE:
        return _repeated(path.encode(), batch.num_rows)
    column = batch.column(field.name)
    if pa.types.is_timestamp(column.type):
        us = np.clip(_values(column, np.int64), -FARTHEST_MS, FARTHEST_MS) * 1000
        return pa.Array.from_buffers(field.type, len(column), [None, pa.py_buffer(us)])
    return column if column.type == field.type else column.cast(field.type)


def _repeated(text: bytes, count: int) -> pa.Array:
    ends = np.arange(count + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])
