"""The key index of the lake: key hashes, and the physical offsets of their messages.

A row is (key_hash, physical_offset, store_timestamp). A file covers one byte range of one store's log and is sorted by
hash. The hash is that of RocketMQ's index, of `topic#key`. Different keys can share a hash, so every hit must be
compared with the real key. The index is derived data: ranges without an index file are searched in the messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mqlake.lake.entries import LakeFile
from mqlake.lake.parquet import ParquetFile, sync_names
from mqlake.lake.paths import table_path

KEY = np.dtype([("key_hash", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
"""A key as dispatch returns it."""
SCHEMA = pa.schema(
    [
        pa.field("key_hash", pa.int32(), nullable=False),
        pa.field("physical_offset", pa.int64(), nullable=False),
        pa.field("store_timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
ROW_GROUP_ROWS = 1 << 16
Keys = np.ndarray[Any, np.dtype[np.void]]


def write_index(root: Path, store: str, identity: str, start: int, end: int, keys: Keys) -> LakeFile:
    """Write the index file of [start, end) of a log."""
    keys = keys[np.argsort(keys["key_hash"], kind="stable")]
    times = pa.array(keys["store_timestamp"], pa.timestamp("ms", "UTC")).cast(SCHEMA.field(2).type)
    table = pa.table([keys["key_hash"].copy(), keys["physical_offset"].copy(), times], schema=SCHEMA)
    span = (int(keys["store_timestamp"].min()), int(keys["store_timestamp"].max())) if len(keys) else (None, None)
    return write_rows(root, store, identity, start, end, table, span)


def write_rows(
    root: Path, store: str, identity: str, start: int, end: int, table: pa.Table, span: tuple[int | None, int | None]
) -> LakeFile:
    """Write an index file from rows that are already sorted by hash."""
    path = table_path("index", identity, start, end)
    file = ParquetFile(root, path, SCHEMA)
    try:
        for first in range(0, table.num_rows, ROW_GROUP_ROWS):
            file.write(table.slice(first, ROW_GROUP_ROWS))
        written = file.close()
    except BaseException:
        file.drop()
        raise
    sync_names(root, [path])
    return LakeFile("index", path, store, start, end, *written, *span)
