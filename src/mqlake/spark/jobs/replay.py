"""Replay an archive into a new store, in the order of the archived log.

A task takes the files of a byte range of the old log, sorts their rows by their old offset, packs them and stages them.
Files are ordered by topic, so a task first distributes the rows to windows of the log, in files next to the new store,
and then sorts each window in memory. The driver appends what was staged, step by step. The archive holds bodies
decompressed, so the compression flag is cleared. A record does not contain its place in the log; that is new.

The store is built next to its target under another name and renamed when it is complete. So a kill leaves no partial
store, and the next replay to the same target starts over.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from mqlake.config import RECORD_OVERHEAD, StoreConfig
from mqlake.errors import InvalidConfig, InvalidMessage
from mqlake.files.layout import Layout
from mqlake.files.place import local_path
from mqlake.ingest.batches import append_parts, open_when_free
from mqlake.ingest.pack import Packer
from mqlake.ingest.staging import Part, Staging
from mqlake.kernel.types import KEEP_NUMBERS, KEEP_TIMES
from mqlake.lake import MARKER, Lake, LakeFile, LakeSnapshot, StoreState
from mqlake.lake.messages import rows_between
from mqlake.lake.storage import storage_at
from mqlake.message import WAITING_TOPICS
from mqlake.spark.archived import may_have
from mqlake.spark.jobs.replay_place import making
from mqlake.spark.jobs.tasks import run_tasks
from mqlake.spark.options import SourceOptions, parse_options
from mqlake.spark.reach import reach
from mqlake.spark.selection import Selection
from mqlake.store.opening import begin_behind_first_file, find_store, resolve
from mqlake.store.scan import schema as scanned_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_BYTES = 32 << 20
"""Bytes of the old log whose rows are sorted in memory."""
STEP_BYTES = 4 << 30
"""Bytes of the old log between two appends. This bounds what is staged."""
INNER_BATCH = 0x80
ROLLED_BACK = 0xC
SCAR_TOPIC = "MQLAKE_SCAR"
"""A rolled-back record of this topic stands for what was lost: see `inspect/fillers.py`."""
TAKEN = (
    *("topic", "queue_id", "queue_offset", "physical_offset", "flag", "sys_flag", "body_crc", "born_timestamp"),
    *("store_timestamp", "born_host", "reconsume_times", "prepared_offset", "tags", "keys", "properties", "body"),
)
"""Columns that a replay reads. Keys and tags are also in the properties; the selection needs them as columns."""
PARTS = pa.schema([pa.field("part", pa.string(), nullable=False)])
SELECTION = ("topics", "topicsPattern", "queues", "tags", "keys", "startTime", "endTime", "startOffset", "endOffset")
Progress = Callable[[int, int], object]
"""Called with the bytes of the old log processed so far and the total."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

    path: Path
    store: str
    """The store of the lake that was replayed."""
    start: int
    end: int
    """The end of the replayed range of the old log."""
    rows: int
    log_bytes: int


@dataclass(frozen=True)
class Range:
    """What one task replays."""

    number: int
    start: int
    end: int
    files: tuple[LakeFile, ...]
    lost: tuple[int, ...]
    """Offsets at which the log was damaged when it was archived."""


@dataclass(frozen=True)
class Job:
    """What all tasks of a replay share."""

    lake: str
    target: str
    config: StoreConfig
    options: SourceOptions
    keep: int
    """Which fields records keep (`kernel.types`)."""


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
    """Build a new store from the archived messages of a store, or from those that a selection names.

    `selection` takes options of the source: topics, topicsPattern, queues, tags, keys, startTime, endTime, startOffset,
    endOffset. Queue ids stay. With `keep_queue_offsets` queue offsets stay too: each queue begins at its first replayed
    queue offset, and missing queue offsets have no message. Without it each queue counts from 0.
    """
    options = _options(lake, selection, include_internal=include_internal)
    reach(spark, lake)
    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    state = _state(opened, snapshot, store)
    ranges = _ranges(snapshot, state, options)
    place = local_path(to, "to")
    keep = (KEEP_NUMBERS if keep_queue_offsets else 0) | (KEEP_TIMES if keep_store_times else 0)
    with making(place) as path:
        job = Job(opened.place, str(path), _begin(path, config or StoreConfig()), options, keep)
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
        expected = "other topics: messages waiting there name offsets of the old log, and would be delivered again"
        raise InvalidConfig("topics", ", ".join(sorted(waiting)), expected)
    return options


def _state(lake: Lake, snapshot: LakeSnapshot, store: str | None) -> StoreState:
    names = sorted(snapshot.stores)
    name = names[0] if store is None and len(names) == 1 else store
    if name is None or name not in snapshot.stores:
        raise InvalidConfig("store", store, f"one of those in {lake.place}: {', '.join(names) or 'none yet'}")
    return snapshot.stores[name]


def _ranges(snapshot: LakeSnapshot, state: StoreState, options: SourceOptions) -> list[Range]:
    """Cut the old log where files begin, and return each part with the files that may have rows of it."""
    start = max(state.start, options.start_offset or 0)
    end = min(state.end, options.end_offset if options.end_offset is not None else state.end)
    files = [file for file in snapshot.files("messages", state.name) if may_have(options, options.topics, file)]
    found: list[Range] = []
    cuts = sorted({start, *(file.start for file in files if start < file.start < end), end}) if start < end else []
    for place, stop in itertools.pairwise(cuts):
        inside = tuple(file for file in files if file.start < stop and file.end > place)
        lost = tuple(gap.start for gap in state.gaps if place <= gap.start < stop and gap.reason != MARKER)
        if inside:
            found.append(Range(len(found), place, stop, inside, lost))
    return found


def _begin(path: Path, config: StoreConfig) -> StoreConfig:
    """Create the store without messages and return its configuration."""
    layout = find_store(path, read_only=False, create=True)
    resolved = resolve(layout, config)
    assert resolved.commit_log.file_size_bytes is not None
    limit = max(resolved.commit_log.max_message_bytes, resolved.commit_log.file_size_bytes - RECORD_OVERHEAD)
    resolved = replace(resolved, commit_log=replace(resolved.commit_log, max_message_bytes=limit))
    begin_behind_first_file(layout, resolved)  # queues may begin above 0, light queues even with new queue offsets
    return resolved


def _append(spark: SparkSession, job: Job, ranges: Sequence[Range], progress: Progress | None) -> tuple[int, int]:
    """Stage and append, step by step. Return the rows, and the bytes of the new log."""
    target, staging = Path(job.target), _staging(job)
    rows = size = done = 0
    total = sum(part.end - part.start for part in ranges)
    for step in _steps(ranges):
        found = run_tasks(spark, step, partial(replay_range, job), PARTS)
        parts = [Part(**json.loads(text)) for text in found.column("part").to_pylist()]
        with open_when_free(target, job.config, 0) as store:
            rows += append_parts(store, staging, parts, job.keep)
            store.catch_up(store.ends.promised, 3600, patient=True)
            _require_whole(target, store.stats().damage)
            size = store.ends.visible - store.log.first_offset
        done += sum(part.end - part.start for part in step)
        if progress is not None:
            progress(done, total)
    if not ranges:
        with open_when_free(target, job.config, 0):
            pass
    shutil.rmtree(Layout(target).staging, ignore_errors=True)
    return rows, size


def _steps(ranges: Sequence[Range]) -> Iterator[Sequence[Range]]:
    step: list[Range] = []
    for part in ranges:
        step.append(part)
        if sum(one.end - one.start for one in step) >= STEP_BYTES:
            yield step
            step = []
    if step:
        yield step


def _require_whole(target: Path, damage: Sequence[tuple[int, int]]) -> None:
    if damage:
        found = f"a queue offset too far after the one before it, at offset {damage[0][0]} of {target.name}"
        raise InvalidMessage("queue_offset", found, "fewer missing queue offsets: replay with keep_queue_offsets=False")


def _staging(job: Job) -> Staging:
    return Staging(Layout(Path(job.target)), "replay")


def replay_range(job: Job, part: Range) -> pa.Table:
    """Pack the messages that begin in a range, in their old order. Runs in a worker."""
    packer = Packer(job.config.commit_log, f"[{part.start}, {part.end}) of the archived log", lights=True)
    staged = _staging(job).write(part.number, _messages(job, part), packer, durable=False)
    return pa.table([[json.dumps(asdict(staged))]], schema=PARTS)


def _messages(job: Job, part: Range) -> Iterator[pa.RecordBatch]:
    selection = Selection(job.options, None)
    for start, rows in _windows(job, part):
        table = _as_scanned(rows)
        chosen = pa.Table.from_batches(map(selection.of, table.to_batches()), table.schema)
        _require_single(chosen)
        if job.keep & KEEP_NUMBERS:
            lost = [offset for offset in part.lost if start <= offset < start + WINDOW_BYTES]
            chosen = _in_order(pa.concat_tables([chosen, _fillers(table, chosen, lost)]))
        yield from chosen.drop_columns(["tags", "keys", "physical_offset"]).combine_chunks().to_batches()


def _windows(job: Job, part: Range) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each window of the range that has some, and where it begins."""
    folder = Layout(Path(job.target)).staging
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"sort-{part.number}-") as scratch, ExitStack() as writers:
        windows: dict[int, pa.RecordBatchFileWriter] = {}
        for rows in _rows(job, part):
            numbers = (rows.column("physical_offset").to_numpy() - part.start) // WINDOW_BYTES
            for number in np.unique(numbers).tolist():
                if number not in windows:
                    made = pa.ipc.new_file(Path(scratch, str(number)), rows.schema)
                    windows[number] = writers.enter_context(made)
                windows[number].write_table(rows.filter(pa.array(numbers == number)))
        writers.close()
        for number in sorted(windows):
            with pa.ipc.open_file(pa.memory_map(str(Path(scratch, str(number))))) as written:
                yield part.start + number * WINDOW_BYTES, written.read_all()


def _rows(job: Job, part: Range) -> Iterator[pa.Table]:
    """Yield the rows of the range in the order of its files, without those of unwanted topics."""
    storage, topics = storage_at(job.lake), job.options.topics
    for file in part.files:
        for table in rows_between(storage, file, part.start, part.end, TAKEN, topics):
            names = sorted(WAITING_TOPICS) if topics is None else topics
            among = pc.is_in(table.column("topic"), value_set=pa.array(names, pa.string()))
            table = table.filter(among if topics is not None else pc.invert(among))
            if table.num_rows:
                yield table


def _as_scanned(table: pa.Table) -> pa.Table:
    """Return rows of the archive as a scan would, in log order."""
    wanted = scanned_schema(TAKEN)
    return _in_order(pa.table([table.column(field.name).cast(field.type) for field in wanted], schema=wanted))


def _in_order(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table.column("physical_offset"))).unify_dictionaries().combine_chunks()


def _fillers(table: pa.Table, chosen: pa.Table, lost: Sequence[int]) -> pa.Table:
    """Return a filler record for each run of rows that were not chosen, and for each damaged range of the old log.

    Fillers say why queue offsets are missing there, as `mqlake repair` does.
    """
    offsets = table.column("physical_offset").to_numpy()
    missing = ~np.isin(offsets, chosen.column("physical_offset").to_numpy())
    missing[1:] &= ~missing[:-1]  # the first of each run
    after = np.searchsorted(offsets, np.array(lost, np.int64)).clip(max=len(offsets) - 1)
    rows = table.take(np.concatenate([np.flatnonzero(missing), after]))
    places = np.concatenate([offsets[missing], np.array(lost, np.int64)])
    filler: dict[str, Any] = {
        "topic": SCAR_TOPIC,
        "queue_id": 0,
        "queue_offset": 0,
        "flag": 0,
        "sys_flag": ROLLED_BACK,
    }
    filler |= {"reconsume_times": 0, "prepared_offset": 0, "tags": None, "keys": [], "properties": [], "body": b""}
    columns = [
        pa.array(places)
        if field.name == "physical_offset"
        else pa.array([filler[field.name]] * len(places), field.type)
        if field.name in filler
        else rows.column(field.name)
        for field in table.schema
    ]
    return pa.table(columns, schema=table.schema)


def _require_single(rows: pa.Table) -> None:
    """Raise InvalidMessage for batch records of RocketMQ 5: they take several offsets, in queues that are read-only."""
    inner = pc.index(pc.not_equal(pc.bit_wise_and(rows.column("sys_flag"), INNER_BATCH), 0), True).as_py()
    if inner >= 0:
        topic = rows.column("topic")[inner].as_py()
        raise InvalidMessage("topic", repr(topic), "a topic without batch records: use topics to name only others")
