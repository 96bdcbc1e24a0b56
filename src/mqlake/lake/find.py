"""Look up archived messages by key: in the index, or in the messages themselves if no index file covers them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.codec.index_entry import key_hash, key_text
from mqlake.lake.entries import LakeFile
from mqlake.lake.lake import Lake
from mqlake.lake.messages import groups_within, rows_between
from mqlake.lake.snapshot import LakeSnapshot
from mqlake.lake.storage import Storage
from mqlake.lake.tables import MESSAGES

UNIQUE = "UNIQ_KEY"
ROLLED_BACK = 0xC


def find(lake: Lake, topic: str, key: str) -> pa.Table:
    """Return the archived messages of a topic with this key or client id, in log order."""
    snapshot = lake.snapshot()
    parts = [MESSAGES.empty_table()]
    for store in snapshot.stores:
        looked = KeyLookup(lake.storage, snapshot, store, {key_hash(key_text(topic, key))})
        for file in snapshot.files("messages", store):
            if file.may_have(topic):
                parts += [_with_key(rows, topic, key) for rows in looked.rows(file, [topic])]
    return pa.concat_tables(parts).sort_by([("store", "ascending"), ("physical_offset", "ascending")])


class KeyLookup:
    """What the index of one store has for some key hashes. Different keys can share a hash."""

    def __init__(self, storage: Storage, snapshot: LakeSnapshot, store: str, hashes: Collection[int]) -> None:
        self._storage = storage
        self._files = snapshot.files("index", store)
        self._covered = _covered(self._files)
        self._hashes = np.array(sorted(hashes), np.int32)
        self._hits: tuple[list[int], set[int]] | None = None

    def covers(self, file: LakeFile) -> bool:
        """Return whether the index has the keys of all messages of a file."""
        return any(start <= file.start and file.end <= end for start, end in self._covered)

    @property
    def offsets(self) -> list[int]:
        """The physical offsets that the index has, ascending."""
        return self._found()[0]

    @property
    def hashes(self) -> set[int]:
        """Those of the hashes that the index has."""
        return self._found()[1]

    def _found(self) -> tuple[list[int], set[int]]:
        """Return offsets and hashes. The index is read once, on first use."""
        if self._hits is None:
            bounds = [{"key_hash": (wanted, wanted)} for wanted in self._hashes.tolist()]
            offsets, hashes = set[int](), set[int]()
            for file in self._files:
                for rows in groups_within(self._storage, file, bounds, ["key_hash", "physical_offset"]):
                    hits = self._matching(rows.column("key_hash").to_numpy())
                    offsets.update(rows.column("physical_offset").take(hits).to_pylist())
                    hashes.update(rows.column("key_hash").take(hits).to_pylist())
            self._hits = sorted(offsets), hashes
        return self._hits

    def _matching(self, hashes: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the places of the wanted hashes among those of a row group, which are sorted."""
        firsts = np.searchsorted(hashes, self._hashes, "left")
        ends = np.searchsorted(hashes, self._hashes, "right")
        runs = [np.arange(first, end) for first, end in zip(firsts, ends, strict=True) if first < end]
        return np.concatenate([np.empty(0, np.int64), *runs])

    def inside(self, file: LakeFile) -> list[int]:
        """Return the offsets in the range of a file."""
        return [offset for offset in self.offsets if file.start <= offset < file.end]

    def rows(self, file: LakeFile, topics: Collection[str]) -> Iterator[pa.Table]:
        """Yield the rows of a file that may have the keys: all of these topics, if the index does not cover it."""
        if not self.covers(file):
            yield from rows_between(self._storage, file, file.start, file.end, topics=topics)
            return
        inside = self.inside(file)
        if not inside:
            return
        for rows in rows_between(self._storage, file, inside[0], inside[-1] + 1, topics=topics):
            hits = np.isin(rows.column("physical_offset").to_numpy(), inside)
            if hits.any():
                yield rows.filter(pa.array(hits))


def _covered(files: Collection[LakeFile]) -> list[tuple[int, int]]:
    """Return the byte ranges of a log that the index covers, in order. Adjacent ranges are merged."""
    ranges: list[tuple[int, int]] = []
    for file in files:
        if ranges and ranges[-1][1] >= file.start:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], file.end)
        else:
            ranges.append((file.start, file.end))
    return ranges


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
