"""A Parquet file of the lake: written under another name, synced, renamed; its CRC is taken before anyone knows it.

Names follow from what a file holds (store, range), so a task that runs again replaces its own file by the same one.
Until a commit names it, a file is nothing.

A column is written in the way that suits it, and in one way only: numbers as the differences between them, texts with
few values as numbers into a dictionary, all other texts compressed. Compressing the first two again would cost as much
as all the rest of a small file, and save next to nothing.
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
"""Texts with few values; a dictionary of any other costs more time than it saves space."""
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
"""Columns whose smallest and largest value say which row groups need not be read."""
NEW = ".new"
ZSTD_LEVEL = 1
SAMPLE_BYTES = 1 << 16
SHRUNK = 0.95
"""A column that compressing leaves larger than this part of its size is not compressed."""


class Written(NamedTuple):
    """A file that has its name."""

    rows: int
    bytes: int
    crc: int


class ParquetFile:
    """One file in the making; `close` gives it its name, `drop` leaves nothing of it."""

    def __init__(
        self,
        root: Path,
        path: str,
        schema: pa.Schema,
        dictionaries: Sequence[str] = DICTIONARIES,
        plain: Collection[str] = (),
    ) -> None:
        """`plain`: texts that are not compressed, because they would not get smaller."""
        self._path = root / path
        self._made = self._path.with_name(f"{self._path.name}.{os.getpid()}.{threading.get_ident()}{NEW}")
        make_folders(root, self._path.parent)
        self._file = DirectFile(self._made)
        self._rows = 0
        self._writer = pq.ParquetWriter(self._file, schema, **_ways(schema, tuple(dictionaries), tuple(plain)))

    def write(self, table: pa.Table) -> None:
        """One more row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows

    def close(self) -> Written:
        """Durable but for its name: `sync_names` sees to those."""
        self._writer.close()
        self._file.sync()
        self._made.rename(self._path)
        return Written(self._rows, self._file.size, self._file.crc)

    def drop(self) -> None:
        """Nothing is left of it, unless it has its name."""
        self._file.close()
        self._made.unlink(missing_ok=True)


@cache
def _ways(schema: pa.Schema, dictionaries: tuple[str, ...], plain: tuple[str, ...]) -> dict[str, Any]:
    """How the columns of a file are written, as Arrow has it."""
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
    """What Parquet calls the columns that a field becomes."""
    if pa.types.is_map(field.type):
        return [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
    return [f"{field.name}.list.element"] if pa.types.is_list(field.type) else [field.name]


def plain_columns(body: pa.Array) -> tuple[str, ...]:
    """Columns of messages that are not worth the time to compress them, judged by the first bodies: many are compressed
    already, or encrypted."""
    values = body.buffers()[2]
    if values is None:
        return ()
    sample = values.slice(0, min(SAMPLE_BYTES, values.size))
    compressed: bytes = pa.compress(sample, "zstd", asbytes=True)
    return () if len(compressed) <= SHRUNK * int(sample.size) else ("body",)


def make_folders(root: Path, folder: Path) -> None:
    """Make a folder inside of `root`, each name on the way durable."""
    if folder == root or folder.exists():
        return
    make_folders(root, folder.parent)
    folder.mkdir(exist_ok=True)
    sync_directory(folder.parent)


def sync_names(root: Path, paths: Iterable[str]) -> None:
    """The names of files are durable when this returns."""
    for folder in sorted({(root / path).parent for path in paths}):
        sync_directory(folder)


def write_table(root: Path, path: str, table: pa.Table, dictionaries: Sequence[str] = DICTIONARIES) -> Written:
    """A small file, all of it at once, durable with its name."""
    file = ParquetFile(root, path, table.schema, dictionaries)
    try:
        file.write(table)
        written = file.close()
    except BaseException:
        file.drop()
        raise
    sync_names(root, [path])
    return written
