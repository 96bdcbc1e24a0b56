"""The key index of the lake: key hashes, and the physical offsets of their messages.

A row is (store, key_hash, physical_offset, store_timestamp). A file covers one byte range of one store's log and is
sorted by hash. The hash is that of RocketMQ's index, of `topic#key`. Different keys can share a hash, so every hit must
be compared with the real key. The index is derived data: ranges without an index file are searched in the messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from mqlake.lake.entries import LakeFile
from mqlake.lake.parquet import write_table
from mqlake.lake.paths import table_path
from mqlake.lake.storage import Storage
from mqlake.lake.tables import INDEX

KEY = np.dtype([("key_hash", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
"""A key as dispatch returns it."""
ROW_GROUP_ROWS = 1 << 16
FARTHEST_MS = (2**63 - 1) // 1000
"""Times that do not fit in microseconds become the farthest ones: no checksum covers a record's time."""
Keys = np.ndarray[Any, np.dtype[np.void]]


def write_index(storage: Storage, store: str, identity: str, start: int, end: int, keys: Keys) -> LakeFile:
    """Write the index file of [start, end) of a log."""
    keys = keys[np.argsort(keys["key_hash"], kind="stable")]
    times = pa.array(np.clip(keys["store_timestamp"], -FARTHEST_MS, FARTHEST_MS) * 1000)
    times = times.cast(INDEX.field("store_timestamp").type)
    columns = [pa.repeat(store, len(keys)), keys["key_hash"].copy(), keys["physical_offset"].copy(), times]
    span = (int(keys["store_timestamp"].min()), int(keys["store_timestamp"].max())) if len(keys) else (None, None)
    return write_rows(storage, store, identity, start, end, pa.table(columns, schema=INDEX), span)


def write_rows(
    storage: Storage,
    store: str,
    identity: str,
    start: int,
    end: int,
    table: pa.Table,
    span: tuple[int | None, int | None],
) -> LakeFile:
    """Write an index file from rows that are already sorted by hash."""
    path = table_path("index", identity, start, end)
    written = write_table(storage, path, table, rows=ROW_GROUP_ROWS)
    return LakeFile("index", path, store, start, end, *written, *span)
