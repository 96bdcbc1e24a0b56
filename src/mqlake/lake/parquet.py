"""Parquet files of the lake: written under a temporary name, synced, then renamed. The CRC is taken while writing.

A file's name follows from its content (store, range), so a repeated task replaces its own file with the same one. A
file counts only once a commit names it.

Each column gets exactly one encoding: numbers are stored as deltas, texts with few distinct values as dictionary
indices, and all other texts are compressed. Compressing the first two as well would cost as much as all other work on a
small file and save almost nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.files.mapped_file import sync_directory
from mqlake.lake.direct import DirectFile

DICTIONARIES = ("store", "topic", "tags", "born_host", "store_host")
"""Texts with few distinct values. For other texts a dictionary costs more time than it saves space."""
STATISTICS = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "born_timestamp",
    "store_timestamp",
    "tags",
    "key_hash",
)
"""Columns with min/max statistics, which tell readers which row groups to skip."""
NEW = ".new"
ZSTD_LEVEL = 1
SAMPLE_BYTES = 1 << 16
SHRUNK = 0.95
"""Do not compress a column if compression leaves more than this fraction of its size."""


class Written(NamedTuple):
    """The result of a file that was written and renamed."""

    rows: int
    bytes: int
    crc: int


class ParquetFile:
    """A file being written. `close` renames it to its final name; `drop` deletes it."""

    def __init__(
        self,
        root: Path,
        path: str,
        schema: pa.Schema,
        dictionaries: Sequence[str] = DICTIONARIES,
        plain: Collection[str] = (),
    ) -> None:
        """Open the file under a temporary name. `plain` names texts to store uncompressed, as they would not shrink."""
        self._path = root / path
        self._made = self._path.with_name(f"{self._path.name}.{os.getpid()}.{threading.get_ident()}{NEW}")
        make_folders(root, self._path.parent)
        self._file = DirectFile(self._made)
        self._rows = 0
        self._writer = pq.ParquetWriter(self._file, schema, **_ways(schema, tuple(dictionaries), tuple(plain)))

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows

    def close(self) -> Written:
        """Make the content durable and rename the file. The name is durable after `sync_names`."""
        self._writer.close()
        self._file.sync()
        self._made.rename(self._path)
        return Written(self._rows, self._file.size, self._file.crc)

    def drop(self) -> None:
        """Delete the file, unless `close` has renamed it."""
        self._file.close()
        self._made.unlink(missing_ok=True)


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
        "store_schema": False,
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def _leaves(field: pa.Field) -> list[str]:
    """Return Parquet's names of the columns that a field becomes."""
    if pa.types.is_map(field.type):
        return [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
    return [f"{field.name}.list.element"] if pa.types.is_list(field.type) else [field.name]


def plain_columns(body: pa.Array) -> tuple[str, ...]:
    """Return the message columns that are not worth compressing, judged by the first bodies: many bodies are already
    compressed or encrypted."""
    values = body.buffers()[2]
    if values is None:
        return ()
    sample = values.slice(0, min(SAMPLE_BYTES, values.size))
    compressed: bytes = pa.compress(sample, "zstd", asbytes=True)
    return () if len(compressed) <= SHRUNK * int(sample.size) else ("body",)


def make_folders(root: Path, folder: Path) -> None:
    """Make a folder inside `root`. Every new name on the way is durable."""
    if folder == root or folder.exists():
        return
    make_folders(root, folder.parent)
    folder.mkdir(exist_ok=True)
    sync_directory(folder.parent)


def sync_names(root: Path, paths: Iterable[str]) -> None:
    """Make the names of files durable."""
    for folder in sorted({(root / path).parent for path in paths}):
        sync_directory(folder)


def write_table(root: Path, path: str, table: pa.Table, dictionaries: Sequence[str] = DICTIONARIES) -> Written:
    """Write a small file in one go. Content and name are durable."""
    file = ParquetFile(root, path, table.schema, dictionaries)
    try:
        file.write(table)
        written = file.close()
    except BaseException:
        file.drop()
        raise
    sync_names(root, [path])
    return written
