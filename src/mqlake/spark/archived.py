"""Read from the lake what the log no longer has (option `lake`).

The plan takes everything before the log's first record from the lake. A task whose log file was deleted after planning
continues in the lake at the offset it had reached, and after the lake's end in the log again. This works because
retention deletes only what a durable commit holds. The lake holds a range if the manifest claims it for this very
store. Otherwise the read fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import ChangedUnderRead, CorruptRecord, LakeGap
from mqlake.lake import MARKER, Lake, LakeFile, LakeSnapshot, StoreState, identity_of
from mqlake.lake.messages import rows_between
from mqlake.lake.storage import Storage
from mqlake.lake.stores import refuse_strangers
from mqlake.spark.options import SourceOptions
from mqlake.spark.schema import Table
from mqlake.spark.selection import Selection
from mqlake.spark.split import Split
from mqlake.spark.topics import wants
from mqlake.store.scan import schema as scanned_schema


def require_lake_of(lake: str, stores: Sequence[Path]) -> None:
    """Raise WrongLake if the lake has stores but none of these."""
    opened = Lake.open(lake)
    refuse_strangers(opened.place, opened.snapshot(), stores, "name its own lake, or none")


def begins_at(options: SourceOptions, store: str, first: int) -> int:
    """Return the first offset of a store that can be read: the lake's if the lake has the store, else the log's."""
    assert options.lake is not None
    state = state_of(Lake.open(options.lake).snapshot(), store)
    if state is None:
        return first
    if state.end < first:
        raise LakeGap(options.lake, store, state.end, first)
    return min(first, state.start)


def state_of(snapshot: LakeSnapshot, store: str) -> StoreState | None:
    """Return what a lake has of the store in a folder, or None."""
    identity = identity_of(Path(store))
    return next((state for state in snapshot.stores.values() if state.identity == identity), None)


def cut_archived(split: Split) -> list[Split]:
    """Cut a range that only the lake has where its files begin: a file is ordered by topic, so a part of it costs as
    much as all of it. A row belongs to the split in which it begins, so any cut is valid."""
    assert split.lake is not None
    if split.start >= split.end:
        return []
    snapshot = Lake.open(split.lake).snapshot()
    state = state_of(snapshot, split.store)
    starts = [file.start for file in snapshot.files("messages", state.name)] if state is not None else []
    cuts = sorted({split.start, *(start for start in starts if split.start < start < split.end), split.end})
    return [replace(split, start=start, end=end, archived=True) for start, end in itertools.pairwise(cuts)]


def files_between(options: SourceOptions, split: Split) -> str:
    """Describe which files a range that only the lake has is read from."""
    assert split.lake is not None
    snapshot = Lake.open(split.lake).snapshot()
    state = state_of(snapshot, split.store)
    files = snapshot.files("messages", state.name) if state is not None else []
    inside = [file for file in files if file.start < split.end and file.end > split.start]
    wanted = [file for file in inside if may_have(options, split.topics, file)]
    return (
        f"{split.lake}, version {snapshot.version}, [{split.start}, {max(split.start, split.end)}): "
        f"{len(wanted)} of {len(files)} files, {sum(file.bytes for file in wanted):,} bytes"
    )


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
        if file.start < end and file.end > start and may_have(options, split.topics, file):
            yield from read_file(lake.storage, file, start, end, selection, table, split.topics)
    yield from _damage(options, table, state, start, end)
    return end


def read_file(
    storage: Storage,
    file: LakeFile,
    start: int,
    end: int,
    selection: Selection,
    table: Table,
    topics: tuple[str, ...] | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages of a file that begin in [start, end) of the log. None stands for all topics."""
    for rows in rows_between(storage, file, start, end, {*selection.columns, "topic"}, topics):
        for batch in _as_scanned(rows, topics, selection.columns):
            batch = selection.of(batch)
            if batch.num_rows:
                yield table.of_messages(batch)


def may_have(options: SourceOptions, topics: Collection[str] | None, file: LakeFile) -> bool:
    """Return whether a file may have a wanted row of these topics; None stands for all that the options allow."""
    if topics is not None:
        by_topic = any(map(file.may_have, topics))
    else:
        by_topic = file.topics is None or any(wants(options, topic) for topic in file.topics)
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
