"""Read from the lake what the log no longer has (option `lake`).

The plan takes everything before the log's first record from the lake. A task whose log file was deleted after planning
continues in the lake at the offset it had reached, and after the lake's end in the log again. This works because
retention deletes only what a durable commit holds. The lake holds a range if the manifest claims it for this very
store. Otherwise the read fails.
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
    """Raise WrongLake if the lake has stores but none of these."""
    opened = Lake.open(lake)
    refuse_strangers(opened.root, opened.snapshot(), stores, "name its own lake, or none")


def begins_at(options: SourceOptions, store: str, first: int) -> int:
    """Return the first offset of a store that can be read: the lake's if the lake has the store, else the log's."""
    assert options.lake is not None
    state = state_of(Lake.open(options.lake).snapshot(), store)
    if state is None:
        return first
    if state.end < first:
        raise LakeGap(Path(options.lake), store, state.end, first)
    return min(first, state.start)


def state_of(snapshot: LakeSnapshot, store: str) -> StoreState | None:
    """Return what a lake has of the store in a folder, or None."""
    identity = identity_of(Path(store))
    return next((state for state in snapshot.stores.values() if state.identity == identity), None)


def cut_archived(split: Split, size: int) -> list[Split]:
    """Split a range that only the lake has. A row belongs to the split in which it begins, so any cut is valid."""
    places = range(split.start, split.end, size)
    return [replace(split, start=place, end=min(place + size, split.end), archived=True) for place in places]


def read_archived(
    options: SourceOptions, schema: pa.Schema, split: Split, start: int, found: str
) -> Generator[pa.RecordBatch, None, int]:
    """Yield the wanted messages of a split from `start` on, as `read_split` does. Return the end of the lake or of the
    split, whichever comes first. `found` says what is wrong with the log, for the error."""
    assert split.lake is not None
    lake = Lake.open(split.lake)
    snapshot = lake.snapshot()
    state = state_of(snapshot, split.store)
    if state is None or not state.start <= start < state.end:
        has = "no part of it" if state is None else f"[{state.start}, {state.end})"
        raise ChangedUnderRead(split.store, start, f"{found}, and {split.lake} has {has}", "it in one of the two")
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
    """Return whether a file may have a wanted row."""
    by_topic = split.topics is None or file.topic is None or file.topic in split.topics
    since = options.start_time is None or file.max_time is None or file.max_time >= options.start_time
    until = options.end_time is None or file.min_time is None or file.min_time < options.end_time
    return by_topic and since and until


def _as_scanned(rows: pa.Table, topics: tuple[str, ...] | None, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield rows of the lake as a scan of these topics would."""
    if topics is not None:
        rows = rows.filter(pc.is_in(rows.column("topic"), value_set=pa.array(topics, pa.string())))
    wanted = scanned_schema(columns)
    arrays = [rows.column(field.name).cast(field.type) for field in wanted]
    yield from pa.table(arrays, schema=wanted).combine_chunks().to_batches()


def _damage(options: SourceOptions, table: Table, state: StoreState, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Report the damage that the lake lists, as a scan would."""
    gaps = [gap for gap in state.gaps if start <= gap.start < end and gap.reason != MARKER]
    if gaps and options.on_damage == "fail":
        raise CorruptRecord(Path(state.path), gaps[0].start, gaps[0].reason)
    if gaps and options.on_damage == "rows":
        yield table.of_damage([(gap.start, gap.end - gap.start, gap.reason) for gap in gaps])
