"""A Parquet file of the lake: written under another name, synced, renamed; its CRC is taken before anyone knows it.

Names follow from what a file holds (store, range), so a task that runs again replaces its own file by the same one.
Until a commit names it, a file is nothing.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.files.mapped_file import sync_directory
from mqlake.kernel import crc32

DICTIONARIES = ("store", "topic", "queue_id", "tags", "born_host", "store_host")
"""Columns with few values; a dictionary of any other costs more time than it saves space."""
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
        """`plain`: columns that are not compressed, because they would not get smaller."""
        self._path = root / path
        self._made = self._path.with_name(f"{self._path.name}.{os.getpid()}.{threading.get_ident()}{NEW}")
        make_folders(root, self._path.parent)
        self._sink = pa.OSFile(str(self._made), "wb")
        self._file = self._made.open("rb")  # for the CRC and the sync
        self._rows = 0
        leaves = [leaf for field in schema for leaf in _leaves(field)]
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression={leaf: "none" if leaf in plain else "zstd" for leaf in leaves},
            compression_level={leaf: ZSTD_LEVEL for leaf in leaves if leaf not in plain},
            use_dictionary=[name for name in dictionaries if name in schema.names],
            write_statistics=[name for name in STATISTICS if name in schema.names],
            store_schema=False,
        )

    def write(self, table: pa.Table) -> None:
        """One more row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows

    def close(self) -> Written:
        """Durable but for its name: `sync_names` sees to those."""
        self._writer.close()
        self._sink.close()
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            written = Written(self._rows, len(content), crc32(content))
        os.fsync(self._file.fileno())
        self._made.rename(self._path)
        self._file.close()
        return written

    def drop(self) -> None:
        """Nothing is left of it, unless it has its name."""
        if not self._file.closed:
            self._file.close()
            self._made.unlink(missing_ok=True)


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
