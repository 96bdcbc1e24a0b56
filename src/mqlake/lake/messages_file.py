"""Write a file of the table `messages`. The archive and the compaction both use it.

Rows come in the order of the file: by topic, then by offset. A row group ends before a new topic once it holds
GROUP_BYTES, so large topics have row groups of their own and small ones share some; and it ends at MAX_GROUP_BYTES,
which bounds what a worker holds.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.lake.entries import LakeFile
from mqlake.lake.parquet import ParquetFile
from mqlake.lake.paths import table_path
from mqlake.lake.storage import Storage
from mqlake.lake.tables import MESSAGES
from mqlake.store.scan import COLUMNS

GROUP_BYTES = 8 << 20
"""A topic pays for a row group of its own from about this size on. Half of the time to write a group of 2 MiB does not
depend on its size; a reader of a small topic reads at most this much of others."""
MAX_GROUP_BYTES = 32 << 20
MANY_BATCHES = 16
"""More small batches than this are copied together before they are encoded."""
MAX_TOPICS = 100
"""The most topics that the manifest lists for a file."""

IN_FILES = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), pa.string()))
        if field.name == "store" or COLUMNS[field.name].startswith("dictionary")
        else field
        for field in MESSAGES
    ]
)
"""The schema that Parquet is given. Parquet knows dictionaries only as an encoding: reading returns MESSAGES."""


class MessagesFile:
    """A file being written, for [start, end) of a log. Nothing is made if there are no rows."""

    def __init__(
        self, storage: Storage, store: str, identity: str, start: int, end: int, plain: tuple[str, ...] = ()
    ) -> None:
        self._storage, self._store, self._plain = storage, store, plain
        self._start, self._end = start, end
        self._path = table_path("messages", identity, start, end)
        self._file: ParquetFile | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._topics: set[str] = set()
        self._bounds: list[tuple[int, int, int, int]] = []
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None and self._file is not None:
            self._file.drop()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the schema IN_FILES."""
        self._held.append(batch)
        self.rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_bytes >= MAX_GROUP_BYTES:
            self._end_group()

    def new_topic(self) -> None:
        """Say that another topic begins."""
        if self._held_bytes >= GROUP_BYTES:
            self._end_group()

    def close(self) -> LakeFile | None:
        """Make the file durable. Return None if there were no rows."""
        self._end_group()
        if self._file is None:
            return None
        written = self._file.close()
        lows_and_highs = list(zip(*self._bounds, strict=True))
        topics = tuple(sorted(self._topics))
        return LakeFile(
            *("messages", self._path, self._store, self._start, self._end, *written),
            *(min(lows_and_highs[0]), max(lows_and_highs[1]), min(lows_and_highs[2]), max(lows_and_highs[3])),
            *(topics[0], topics[-1], topics if len(topics) <= MAX_TOPICS else None),
        )

    def _end_group(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held).unify_dictionaries()
        if len(self._held) > MANY_BATCHES:
            table = table.combine_chunks()
        self._held, self._held_bytes = [], 0
        if self._file is None:
            blooms = {"topic": 64, "keys.list.element": 1 << 14}
            order = ("topic", "physical_offset")
            self._file = ParquetFile(
                self._storage, self._path, IN_FILES, plain=self._plain, sorted_by=order, bloom=blooms
            )
        self._file.write(table)
        self._topics.update(pc.unique(table.column("topic")).to_pylist())
        times = pc.min_max(table.column("store_timestamp").cast(pa.int64()))
        offsets = pc.min_max(table.column("physical_offset"))
        self._bounds.append(
            (times["min"].as_py() // 1000, times["max"].as_py() // 1000, offsets["min"].as_py(), offsets["max"].as_py())
        )
