"""Look up archived messages by key: in the index, or in the messages themselves if no index file covers them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.codec.index_entry import key_hash, key_text
from mqlake.lake.entries import LakeFile
from mqlake.lake.lake import Lake
from mqlake.lake.messages import MESSAGES, groups_between, rows_between
from mqlake.lake.snapshot import LakeSnapshot

UNIQUE = "UNIQ_KEY"
ROLLED_BACK = 0xC


def find(lake: Lake, topic: str, key: str) -> pa.Table:
    """Return the archived messages of a topic with this key or client id, in log order."""
    snapshot = lake.snapshot()
    indexed = {store: _indexed(snapshot, store) for store in snapshot.stores}
    candidates = {store: _candidates(lake, snapshot, store, key_hash(key_text(topic, key))) for store in indexed}
    parts = [
        rows
        for file in snapshot.files("messages")
        if file.topic in (topic, None)
        for rows in _rows(lake, file, indexed[file.store], candidates[file.store])
    ]
    found = [_with_key(rows, topic, key) for rows in parts]
    order = [("store", "ascending"), ("physical_offset", "ascending")]
    return pa.concat_tables([MESSAGES.empty_table(), *found]).sort_by(order)


def _indexed(snapshot: LakeSnapshot, store: str) -> list[tuple[int, int]]:
    """Return the byte ranges of a log that the index covers, in order. Adjacent ranges are merged."""
    ranges: list[tuple[int, int]] = []
    for file in snapshot.files("index", store):
        if ranges and ranges[-1][1] >= file.start:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], file.end)
        else:
            ranges.append((file.start, file.end))
    return ranges


def _candidates(lake: Lake, snapshot: LakeSnapshot, store: str, wanted: int) -> list[int]:
    """Return the physical offsets that the index has for this hash."""
    found: set[int] = set()
    for file in snapshot.files("index", store):
        for rows in groups_between(lake.root / file.path, "key_hash", wanted, wanted):
            hits = rows.filter(pc.equal(rows.column("key_hash"), wanted))
            found.update(hits.column("physical_offset").to_pylist())
    return sorted(found)


def _rows(lake: Lake, file: LakeFile, indexed: list[tuple[int, int]], candidates: list[int]) -> Iterator[pa.Table]:
    """Yield the rows of a file that may have the key."""
    if not any(start <= file.start and file.end <= end for start, end in indexed):
        yield from rows_between(lake.root, file, file.start, file.end)
        return
    inside = [offset for offset in candidates if file.start <= offset < file.end]
    if not inside:
        return
    for rows in rows_between(lake.root, file, inside[0], inside[-1] + 1):
        hits = np.isin(rows.column("physical_offset").to_numpy(), inside)
        if hits.any():
            yield rows.filter(pa.array(hits))


def _with_key(rows: pa.Table, topic: str, key: str) -> pa.Table:
    """Keep the rows with this topic and key: hashes can collide. Drop rolled-back messages: they are in no index."""
    rows = rows.filter(pc.equal(rows.column("topic"), topic))
    rolled_back = pc.equal(pc.bit_wise_and(rows.column("sys_flag"), ROLLED_BACK), ROLLED_BACK)
    rows = rows.filter(pc.invert(rolled_back)).combine_chunks()
    if not rows.num_rows:
        return rows
    keys = rows.column("keys").combine_chunks()
    parents = pc.list_parent_indices(keys).filter(pc.equal(pc.list_flatten(keys), key)).to_numpy()
    unique = pc.equal(pc.map_lookup(rows.column("properties").combine_chunks(), UNIQUE, "first"), key)
    mask = pc.fill_null(unique, False).to_numpy(zero_copy_only=False).copy()
    mask[parents] = True
    return rows.filter(pa.array(mask))
