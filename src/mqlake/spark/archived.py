"""What the log no longer has, read from the lake instead (option `lake`).

The plan reads from the lake what lies before the log's first record. And a task whose file was deleted after the plan
was made goes on in the lake, at the offset it came to, and behind the lake's end in the log again: retention deletes
only what a durable commit has. That the lake has a range follows from its manifest: it lies inside of the range that
is claimed for this very store. Else the read fails.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import ChangedUnderRead, CorruptRecord, LakeGap
from mqlake.lake import MARKER, Lake, LakeFile, LakeSnapshot, StoreState, identity_of
from mqlake.lake.messages import rows_between
from mqlake.lake.stores import refuse_strangers
from mqlake.spark.options import SourceOptions
from mqlake.spark.schema import Table
from mqlake.spark.selection import Selection
from mqlake.spark.split import Split
from mqlake.store.scan import schema as scanned_schema


def require_lake_of(lake: str, stores: Sequence[Path]) -> None:
    """WrongLake where a lake has none of the stores, and others."""
    opened = Lake.open(lake)
    refuse_strangers(opened.root, opened.snapshot(), stores, "name its own lake, or none")


def begins_at(options: SourceOptions, store: str, first: int) -> int:
    """The first offset of a store that can be read: the lake's, where there is one that has the store."""
    assert options.lake is not None
    state = state_of(Lake.open(options.lake).snapshot(), store)
    if state is None:
        return first
    if state.end < first:
        raise LakeGap(Path(options.lake), store, state.end, first)
    return min(first, state.start)


def state_of(snapshot: LakeSnapshot, store: str) -> StoreState | None:
    """What a lake has of the store in a folder."""
    identity = identity_of(Path(store))
    return next((state for state in snapshot.stores.values() if state.identity == identity), None)


def cut_archived(split: Split, size: int) -> list[Split]:
    """Splits of a range that only the lake has. A row belongs to where it begins, so cuts may be anywhere."""
    places = range(split.start, split.end, size)
    return [replace(split, start=place, end=min(place + size, split.end), archived=True) for place in places]


def read_archived(
    options: SourceOptions, schema: pa.Schema, split: Split, start: int, found: str
) -> Generator[pa.RecordBatch, None, int]:
    """The wanted messages of a split from `start` on, as `read_split` gives them; returns where the lake ends, or the
    split. `found` says what is wrong with the log."""
    assert split.lake is not None
    lake = Lake.open(split.lake)
    snapshot = lake.snapshot()
    state = state_of(snapshot, split.store)
    if state is None or not state.start <= start < state.end:
        has = "no part of it" if state is None else f"[{state.start}, {state.end})"
        raise ChangedUnderRead(split.store, start, f"{found}, and in {split.lake} {has}", "one of them to have it")
    end = min(split.end, state.end)
    selection = Selection(options, split.topics)
    table = Table(split.store, schema)
    for file in snapshot.files("messages", state.name):
        if file.start < end and file.end > start and may_have(options, split, file):
            for rows in rows_between(lake.root, file, start, end, {*selection.columns, "topic"}):
                for batch in _as_scanned(rows, split.topics, selection.columns):
                    batch = selection.of(batch)
                    if batch.num_rows:
                        yield table.of_messages(batch)
    yield from _damage(options, table, state, start, end)
    return end


def may_have(options: SourceOptions, split: Split, file: LakeFile) -> bool:
    """Whether a file may have a wanted row."""
    by_topic = split.topics is None or file.topic is None or file.topic in split.topics
    since = options.start_time is None or file.max_time is None or file.max_time >= options.start_time
    until = options.end_time is None or file.min_time is None or file.min_time < options.end_time
    return by_topic and since and until


def _as_scanned(rows: pa.Table, topics: tuple[str, ...] | None, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Rows of the lake, as a scan of these topics would give them."""
    if topics is not None:
        rows = rows.filter(pc.is_in(rows.column("topic"), value_set=pa.array(topics, pa.string())))
    wanted = scanned_schema(columns)
    arrays = [rows.column(field.name).cast(field.type) for field in wanted]
    yield from pa.table(arrays, schema=wanted).combine_chunks().to_batches()


def _damage(options: SourceOptions, table: Table, state: StoreState, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """What the lake lists as damaged, told as a scan tells it."""
    gaps = [gap for gap in state.gaps if start <= gap.start < end and gap.reason != MARKER]
    if gaps and options.on_damage == "fail":
        raise CorruptRecord(Path(state.path), gaps[0].start, gaps[0].reason)
    if gaps and options.on_damage == "rows":
        yield table.of_damage([(gap.start, gap.end - gap.start, gap.reason) for gap in gaps])
