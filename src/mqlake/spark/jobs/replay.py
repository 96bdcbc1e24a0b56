"""Replay: an archive -> a new store, in the order of the log that was archived.

A task takes a byte range of the old log, reads the rows that began in it from whatever files have them, sorts them by
their old offset, packs and stages them; the driver appends what was staged, step by step. Compressed bodies are in the
archive as they were before, so their flag goes. What a record does not know, its place, is new.

The store is made beside its place, under another name, and gets its own when it is whole: a kill leaves no half store,
and the next replay to the same place begins anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.config import RECORD_OVERHEAD, StoreConfig
from mqlake.errors import InvalidConfig, InvalidMessage
from mqlake.files.layout import Layout
from mqlake.kernel.types import KEEP_NUMBERS, KEEP_TIMES
from mqlake.lake import MARKER, Lake, LakeFile, LakeSnapshot, StoreState
from mqlake.lake.messages import rows_between
from mqlake.message import WAITING_TOPICS
from mqlake.spark.jobs.replay_place import making
from mqlake.spark.jobs.tasks import run_tasks
from mqlake.spark.options import SourceOptions, parse_options
from mqlake.spark.selection import Selection
from mqlake.store.batches import append_parts, open_when_free
from mqlake.store.opening import begin_behind_first_file, find_store, resolve
from mqlake.store.pack import Packer
from mqlake.store.scan import schema as scanned_schema
from mqlake.store.staging import Part, Staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE_BYTES = 32 << 20
"""Of the old log, for one task: its rows are sorted in memory."""
STEP_BYTES = 4 << 30
"""Of the old log, between two appends: so much is staged at most."""
INNER_BATCH = 0x80
ROLLED_BACK = 0xC
SCAR_TOPIC = "MQLAKE_SCAR"
"""With this state a record on this topic stands for what was lost: see `store/fillers.py`."""
TAKEN = (
    *("topic", "queue_id", "queue_offset", "physical_offset", "flag", "sys_flag", "body_crc", "born_timestamp"),
    *("store_timestamp", "born_host", "reconsume_times", "prepared_offset", "tags", "keys", "properties", "body"),
)
"""Columns of the archive that a replay reads; keys and tags are among the properties, and here for the selection."""
PARTS = pa.schema([pa.field("part", pa.string(), nullable=False)])
SELECTION = ("topics", "topicsPattern", "queues", "tags", "keys", "startTime", "endTime", "startOffset", "endOffset")
Progress = Callable[[int, int], object]
"""Called with the bytes of the old log that are done and those that are to be."""


@dataclass(frozen=True)
class Replayed:
    """What a replay made."""

    path: Path
    store: str
    """Which store of the lake it is from."""
    start: int
    end: int
    """The range of the old log that was replayed."""
    rows: int
    log_bytes: int


@dataclass(frozen=True)
class Range:
    """What one task does."""

    number: int
    start: int
    end: int
    files: tuple[LakeFile, ...]
    lost: tuple[int, ...]
    """Where the log was damaged when it was archived."""


@dataclass(frozen=True)
class Job:
    """What all tasks of a replay know."""

    lake: str
    target: str
    config: StoreConfig
    options: SourceOptions
    keep: int
    """What records keep of their own (`kernel.types`)."""


def replay(
    spark: SparkSession,
    lake: str,
    to: str,
    *,
    store: str | None = None,
    config: StoreConfig | None = None,
    keep_queue_offsets: bool = False,
    keep_store_times: bool = False,
    include_internal: bool = True,
    progress: Progress | None = None,
    **selection: object,
) -> Replayed:
    """Make a new store of the archived messages of a store, or of those that a selection names.

    `selection` are options of the source: topics, topicsPattern, queues, tags, keys, startTime, endTime, startOffset,
    endOffset. Queue ids stay; numbers too with `keep_queue_offsets`: queues then begin at the first number that was
    replayed, and numbers that are missing have no message. Without it each queue counts from 0.
    """
    options = _options(lake, selection, include_internal=include_internal)
    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    state = _state(opened, snapshot, store)
    ranges = _ranges(snapshot, state, options)
    place = Path(to).absolute()
    keep = (KEEP_NUMBERS if keep_queue_offsets else 0) | (KEEP_TIMES if keep_store_times else 0)
    with making(place) as path:
        job = Job(str(opened.root), str(path), _begin(path, config or StoreConfig()), options, keep)
        rows, size = _append(spark, job, ranges, progress)
    start = ranges[0].start if ranges else state.end
    return Replayed(place, state.name, start, ranges[-1].end if ranges else state.end, rows, size)


def _options(lake: str, selection: dict[str, object], *, include_internal: bool) -> SourceOptions:
    for name in selection:
        if name not in SELECTION:
            raise InvalidConfig(
                name, selection[name], f"there is no such argument; a selection has {', '.join(SELECTION)}"
            )
    texts = {
        name: json.dumps(value) if isinstance(value, list | tuple) else str(value) for name, value in selection.items()
    }
    options = parse_options({"path": lake, "includeInternal": str(include_internal).lower(), **texts})
    if waiting := WAITING_TOPICS.intersection(options.topics or ()):
        expected = "other topics: what waits there names places of the old log, and would be delivered again"
        raise InvalidConfig("topics", ", ".join(sorted(waiting)), expected)
    return options


def _state(lake: Lake, snapshot: LakeSnapshot, store: str | None) -> StoreState:
    names = sorted(snapshot.stores)
    name = names[0] if store is None and len(names) == 1 else store
    if name is None or name not in snapshot.stores:
        raise InvalidConfig("store", store, f"one of those in {lake.root}: {', '.join(names) or 'none yet'}")
    return snapshot.stores[name]


def _ranges(snapshot: LakeSnapshot, state: StoreState, options: SourceOptions) -> list[Range]:
    """The old log, cut anywhere, each part with the files that may have a row of it."""
    start = max(state.start, options.start_offset or 0)
    end = min(state.end, options.end_offset if options.end_offset is not None else state.end)
    files = [file for file in snapshot.files("messages", state.name) if _may_have(options, file)]
    found: list[Range] = []
    for place in range(start, end, RANGE_BYTES):
        stop = min(place + RANGE_BYTES, end)
        inside = tuple(file for file in files if file.start < stop and file.end > place)
        lost = tuple(gap.start for gap in state.gaps if place <= gap.start < stop and gap.reason != MARKER)
        if inside:
            found.append(Range(len(found), place, stop, inside, lost))
    return found


def _may_have(options: SourceOptions, file: LakeFile) -> bool:
    by_topic = options.topics is None or file.topic is None or file.topic in options.topics
    since = options.start_time is None or file.max_time is None or file.max_time >= options.start_time
    until = options.end_time is None or file.min_time is None or file.min_time < options.end_time
    return by_topic and since and until


def _begin(path: Path, config: StoreConfig) -> StoreConfig:
    """The store before its first message, and its configuration."""
    layout = find_store(path, read_only=False, create=True)
    resolved = resolve(layout, config)
    assert resolved.commit_log.file_size_bytes is not None
    limit = max(resolved.commit_log.max_message_bytes, resolved.commit_log.file_size_bytes - RECORD_OVERHEAD)
    resolved = replace(resolved, commit_log=replace(resolved.commit_log, max_message_bytes=limit))
    begin_behind_first_file(layout, resolved)  # queues, light ones in any case, may begin above 0
    return resolved


def _append(spark: SparkSession, job: Job, ranges: Sequence[Range], progress: Progress | None) -> tuple[int, int]:
    """Stage and append, step by step; rows, and bytes of the new log."""
    target, staging = Path(job.target), _staging(job)
    rows = size = done = 0
    total = sum(part.end - part.start for part in ranges)
    for step in _steps(ranges):
        found = run_tasks(spark, step, partial(replay_range, job), PARTS)
        parts = [Part(**json.loads(text)) for text in found.column("part").to_pylist()]
        with open_when_free(target, job.config, 0) as store:
            rows += append_parts(store, staging, parts, job.keep)
            store.wait_dispatched(3600)
            _require_whole(target, store.stats().damage)
            size = store.end_offset - store.first_offset
        done += sum(part.end - part.start for part in step)
        if progress is not None:
            progress(done, total)
    if not ranges:
        open_when_free(target, job.config, 0).close()
    shutil.rmtree(Layout(target).staging, ignore_errors=True)
    return rows, size


def _steps(ranges: Sequence[Range]) -> Iterator[Sequence[Range]]:
    count = max(1, STEP_BYTES // RANGE_BYTES)
    for first in range(0, len(ranges), count):
        yield ranges[first : first + count]


def _require_whole(target: Path, damage: Sequence[tuple[int, int]]) -> None:
    if damage:
        found = f"a number too far behind the one before it, at offset {damage[0][0]} of {target.name}"
        raise InvalidMessage("queue_offset", found, "fewer missing numbers: replay with keep_queue_offsets=False")


def _staging(job: Job) -> Staging:
    return Staging(Layout(Path(job.target)), "replay")


def replay_range(job: Job, part: Range) -> pa.Table:
    """In a worker: the messages that began in a range, packed in their old order."""
    packer = Packer(job.config.commit_log, f"[{part.start}, {part.end}) of the archived log", lights=True)
    staged = _staging(job).write(part.number, _messages(job, part), packer, durable=False)
    return pa.table([[json.dumps(asdict(staged))]], schema=PARTS)


def _messages(job: Job, part: Range) -> Iterator[pa.RecordBatch]:
    selection = Selection(job.options, None)
    found = [table for file in part.files for table in rows_between(Path(job.lake), file, part.start, part.end, TAKEN)]
    table = pa.concat_tables(found) if found else pa.table([])
    if job.options.topics is not None and found:
        table = table.filter(pc.is_in(table.column("topic"), value_set=pa.array(job.options.topics, pa.string())))
    elif found:
        waits = pc.is_in(table.column("topic"), value_set=pa.array(sorted(WAITING_TOPICS), pa.string()))
        table = table.filter(pc.invert(waits))
    if not table.num_rows:
        return
    table = _as_scanned(table)
    chosen = pa.Table.from_batches(map(selection.of, table.to_batches()), table.schema)
    _require_single(chosen)
    if job.keep & KEEP_NUMBERS:
        chosen = _in_order(pa.concat_tables([chosen, _fillers(table, chosen, part.lost)]))
    yield from chosen.drop_columns(["tags", "keys", "physical_offset"]).combine_chunks().to_batches()


def _as_scanned(table: pa.Table) -> pa.Table:
    """Rows of the archive as a scan gives them, in the order of the log."""
    wanted = scanned_schema(TAKEN)
    return _in_order(pa.table([table.column(field.name).cast(field.type) for field in wanted], schema=wanted))


def _in_order(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table.column("physical_offset"))).unify_dictionaries().combine_chunks()


def _fillers(table: pa.Table, chosen: pa.Table, lost: Sequence[int]) -> pa.Table:
    """A record of no message for each run of rows that were not chosen, and for what the log had lost: it says why
    numbers are missing there, as `mqlake repair` says it.
    """
    offsets = table.column("physical_offset").to_numpy()
    missing = ~np.isin(offsets, chosen.column("physical_offset").to_numpy())
    missing[1:] &= ~missing[:-1]  # the first of each run
    behind = np.searchsorted(offsets, np.array(lost, np.int64)).clip(max=len(offsets) - 1)
    rows = table.take(np.concatenate([np.flatnonzero(missing), behind]))
    places = np.concatenate([offsets[missing], np.array(lost, np.int64)])
    of_none: dict[str, Any] = {
        "topic": SCAR_TOPIC,
        "queue_id": 0,
        "queue_offset": 0,
        "flag": 0,
        "sys_flag": ROLLED_BACK,
    }
    of_none |= {"reconsume_times": 0, "prepared_offset": 0, "tags": None, "keys": [], "properties": [], "body": b""}
    columns = [
        pa.array(places)
        if field.name == "physical_offset"
        else pa.array([of_none[field.name]] * len(places), field.type)
        if field.name in of_none
        else rows.column(field.name)
        for field in table.schema
    ]
    return pa.table(columns, schema=table.schema)


def _require_single(rows: pa.Table) -> None:
    """Batch records of RocketMQ 5 take several numbers, in queues that are only read here."""
    inner = pc.index(pc.not_equal(pc.bit_wise_and(rows.column("sys_flag"), INNER_BATCH), 0), True).as_py()
    if inner >= 0:
        topic = rows.column("topic")[inner].as_py()
        raise InvalidMessage("topic", repr(topic), "a topic without batch records: name the others with topics")
