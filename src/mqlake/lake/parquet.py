"""Parquet files of the lake: written under a temporary name or in parts, and visible only when complete.

A file's name follows from its content (store, range), so a repeated task replaces its own file with the same one. A
file counts only once a commit names it.

Each column gets exactly one encoding: numbers are stored as deltas, texts with few distinct values as dictionary
indices, and all other texts are compressed. Compressing the first two as well would cost as much as all other work on a
small file and save almost nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.lake.entries import LakeFile
from mqlake.lake.storage import Storage

DICTIONARIES = ("store", "topic", "tags", "born_host", "store_host")
"""Texts with few distinct values. For other texts a dictionary costs more time than it saves space."""
STATISTICS = (
    *("store", "topic", "queue_id", "queue_offset", "physical_offset", "sys_flag"),
    *("born_timestamp", "store_timestamp", "tags", "key_hash"),
)
"""Columns with min/max statistics, which tell readers which row groups and pages to skip."""
ZSTD_LEVEL = 1
SMALL_WRITES = 1 << 16
"""Writes below this size are gathered: Arrow makes several for every page, and each would call Python."""
SAMPLE_BYTES = 1 << 16
SHRUNK = 0.95
"""Do not compress a column if compression leaves more than this fraction of its size."""
PAGE_ROWS = 2048
"""Rows of a page of sorted rows. A file is ordered by topic, so the rows of one hour are a few in each row group: with
small pages a reader skips most of the others, and writing takes a few percent longer."""
_KNOWN = inspect.signature(pq.ParquetWriter.__init__).parameters


class Written(NamedTuple):
    """The result of a file that was written."""

    rows: int
    bytes: int
    crc: int


class ParquetFile:
    """A file being written. `close` gives it its name; `drop` abandons it."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        schema: pa.Schema,
        *,
        dictionaries: Sequence[str] = DICTIONARIES,
        plain: Collection[str] = (),
        sorted_by: Sequence[str] = (),
        bloom: Mapping[str, int] | None = None,
    ) -> None:
        """`plain` names texts to store uncompressed, as they would not shrink. `bloom` names columns that get a Bloom
        filter, with the number of distinct values in a row group."""
        self._file = storage.open_output(path)
        self._rows = 0
        options = dict(_ways(schema, tuple(dictionaries), tuple(plain)))
        if sorted_by:
            order = [(name, "ascending") for name in sorted_by]
            options["sorting_columns"] = pq.SortingColumn.from_ordering(schema, order)
        if sorted_by and "max_rows_per_page" in _KNOWN:
            options["max_rows_per_page"] = PAGE_ROWS
        if bloom and "bloom_filter_options" in _KNOWN:
            options["bloom_filter_options"] = {name: {"ndv": max(1, count)} for name, count in bloom.items()}
        self._gathered = pa.BufferedOutputStream(pa.PythonFile(self._file, "w"), SMALL_WRITES)
        self._writer = pq.ParquetWriter(self._gathered, schema, **options)

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows

    def close(self) -> Written:
        """Make content and name durable."""
        self._writer.close()
        self._gathered.detach()
        self._file.commit()
        return Written(self._rows, self._file.size, self._file.crc)

    def drop(self) -> None:
        """Abandon the file, unless `close` has returned."""
        self._file.drop()


@cache
def _ways(schema: pa.Schema, dictionaries: tuple[str, ...], plain: tuple[str, ...]) -> dict[str, Any]:
    """Return the writer options for the columns of a file."""
    numbers = [field.name for field in schema if _is_number(field.type)]
    small = {*numbers, *dictionaries, *plain}
    compression = {leaf: "none" if field.name in small else "zstd" for field in schema for leaf in _leaves(field)}
    return {
        "compression": compression,
        "compression_level": {leaf: ZSTD_LEVEL for leaf, way in compression.items() if way == "zstd"},
        "use_dictionary": [name for name in dictionaries if name in schema.names],
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "write_statistics": [name for name in STATISTICS if name in schema.names],
        "write_page_index": True,
        "store_schema": False,
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def _leaves(field: pa.Field) -> list[str]:
    """Return Parquet's names of the columns that a field becomes."""
    if pa.types.is_map(field.type):
        return [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
    return [f"{field.name}.list.element"] if pa.types.is_list(field.type) else [field.name]


def plain_columns(bodies: pa.Array) -> tuple[str, ...]:
    """Return the message columns that are not worth compressing, judged by some bodies: many bodies are already
    compressed or encrypted."""
    values = bodies.buffers()[2]
    if values is None:
        return ()
    sample = values.slice(0, min(SAMPLE_BYTES, values.size))
    compressed: bytes = pa.compress(sample, "zstd", asbytes=True)
    return () if len(compressed) <= SHRUNK * int(sample.size) else ("body",)


def write_table(
    storage: Storage, path: str, table: pa.Table, dictionaries: Sequence[str] = DICTIONARIES, rows: int = 1 << 20
) -> Written:
    """Write a whole file, in row groups of `rows`."""
    file = ParquetFile(storage, path, table.schema, dictionaries=dictionaries)
    try:
        for first in range(0, max(1, table.num_rows), rows):
            file.write(table.slice(first, rows))
        return file.close()
    except BaseException:
        file.drop()
        raise


def open_parquet(storage: Storage, file: LakeFile, **options: Any) -> pq.ParquetFile:
    """Open a file of the lake. Close it, or use it in a `with`."""
    return pq.ParquetFile(storage.open_input(file.path), pre_buffer=True, **options)


def read_table(storage: Storage, file: LakeFile, schema: pa.Schema) -> pa.Table:
    """Return all rows of a file."""
    with open_parquet(storage, file) as opened:
        return opened.read().cast(schema)
