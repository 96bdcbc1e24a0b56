"""The pipeline: check -> archive -> index -> stats, as one streaming query over the logs of any number of stores.

A batch is a byte range of each log. Workers take their ranges through all stages. Then one commit of the lake's
manifest makes everything count at once, and the stores' gates move. The manifest alone decides what is done. A batch
that Spark repeats finds its ranges in the manifest and writes nothing. A checkpoint that contradicts the lake is
replaced by a new one that begins where the lake ends. So no kill, of the driver or of a worker, loses a record or
archives it twice. The lake is locked while the pipeline runs.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.errors import InvalidConfig, LakeGap, StoreError
from mqlake.files.layout import Layout
from mqlake.files.names import list_files
from mqlake.lake import DONE, Lake, harvest
from mqlake.lake.gate import move
from mqlake.lake.notes import Notes, now_ms, rows_of
from mqlake.lake.stores import Member, admit, check_seam
from mqlake.lake.vacuum import vacuum
from mqlake.spark.jobs.archive import prepare
from mqlake.spark.jobs.ranges import MqlakeRanges, ranges_of
from mqlake.spark.jobs.stages import STAGES, Work, part_of, run_stages, seconds_of
from mqlake.spark.jobs.tasks import run_tasks
from mqlake.spark.offsets import reported_positions
from mqlake.spark.options import size_of
from mqlake.spark.plan import expand
from mqlake.store.opening import find_store

BATCH_BYTES = "1g"
POLL_S = 0.2
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


@dataclass(frozen=True)
class Batch:
    """The result of one batch."""

    number: int
    bytes: int
    rows: int
    files: int
    seconds: float
    findings: int


Told = Callable[[Batch, Notes], object]
"""Called after each batch that processed something."""


def pipeline(
    spark: SparkSession,
    stores: str | Sequence[str],
    lake: str,
    *,
    once: bool = False,
    every: str = "10s",
    split_size: str = "128m",
    batch_bytes: str = BATCH_BYTES,
    add_store: bool = False,
    accept_gap: bool = False,
    told: Told | None = None,
    stop: threading.Event | None = None,
) -> Notes:
    """Run until everything that exists now is in the lake (`once`), or until `stop` is set. Return the run's notes.

    The pipeline stops between two batches. If a batch fails, the error is noted in the lake and raised.
    """
    pause_ms = milliseconds(every)
    sizes = {"splitSize": size_of("split_size", split_size), "maxBytesPerTrigger": size_of("batch_bytes", batch_bytes)}
    paths = (stores,) if isinstance(stores, str) else tuple(stores)
    with_log = [find_store(path, read_only=True, create=False).root for path in expand(paths) if has_log(path)]
    opened = Lake.open(lake, create=True)
    with opened.lock():
        vacuum(opened)
        admitted = admit(opened, with_log, add_store=add_store, accept_gap=accept_gap) if with_log else []
        members = {str(member.path): prepare(opened, member) for member in admitted}
        move(opened)
        run = Pipeline(spark, opened, members, told or (lambda batch, notes: None))
        run.notes.every = "once" if once else every
        options = {"paths": json.dumps(paths), **{name: str(size) for name, size in sizes.items()}}
        return run.until(run.start(options, None if once else pause_ms), stop or threading.Event())


def milliseconds(every: str) -> int:
    match = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h)", every.strip())
    if match is None:
        raise InvalidConfig("every", every, "a time like 500ms, 10s, 1m or 1h")
    return int(match[1]) * UNITS[match[2]]


def has_log(path: Path) -> bool:
    """Return whether a store has a log. A new store has none; it joins with its first message."""
    folder = Layout(path).commit_log
    return not folder.is_dir() or bool(list_files(folder))


class Pipeline:
    """One run. Spark calls it on a thread of its own, one batch after the other."""

    def __init__(self, spark: SparkSession, lake: Lake, members: dict[str, Member], told: Told) -> None:
        self._spark, self._lake, self._members, self._told = spark, lake, members, told
        self._between_batches = threading.Lock()
        self._ends = False
        self._noting = threading.Lock()
        self.notes = Notes(started=now_ms())

    def start(self, options: Mapping[str, str], pause_ms: int | None) -> StreamingQuery:
        """Begin where the lake ends. Spark's own notes of what was read are not kept: the manifest decides."""
        starts = {path: member.start for path, member in self._members.items()}
        self._note()
        self._spark.dataSource.register(MqlakeRanges)
        source = self._spark.readStream.format("mqlake_ranges").options(**options).option("via", "scan")
        source = source.option("includeInternal", "true").option("startingOffsets", json.dumps(starts))
        self._checkpoint = tempfile.TemporaryDirectory(prefix="mqlake-pipeline-")
        writer = source.load().writeStream.foreachBatch(self.batch)
        writer = writer.option("checkpointLocation", f"file://{self._checkpoint.name}")
        writer = writer.queryName("mqlake pipeline")
        if pause_ms is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{pause_ms} milliseconds").start()

    def until(self, query: StreamingQuery, stop: threading.Event) -> Notes:
        """Wait for the end of the query, and note its progress meanwhile."""
        seen = None
        try:
            while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # fractions of a second work too
                progress = query.lastProgress
                if progress is not None and (progress["batchId"], progress["timestamp"]) != seen:
                    seen = progress["batchId"], progress["timestamp"]
                    self._look_at(progress)
                if stop.is_set():
                    with self._between_batches:
                        self._ends = True
                    query.stop()
                    self.notes.state = "stopped"
                    break
            else:
                self.notes.state = "done"
        except PySparkException as error:
            reason = self._refusal()
            if reason is None:
                self.notes.failed(*failure(str(error)))
                raise
            self.notes.failed(None, f"{type(reason).__name__}: {reason}")
            raise reason from error
        except BaseException as error:
            self.notes.failed(None, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._note()
            if query.isActive:
                self._ends = True
                query.stop()
            self._checkpoint.cleanup()
        return self.notes

    def _refusal(self) -> StoreError | None:
        """Return why the next run would be refused: a store is gone, replaced, or was cleaned too early.

        This error says what to do, unlike the error of the first task that noticed.
        """
        try:
            admit(self._lake, [Path(path) for path in self._members], add_store=True)
        except StoreError as reason:
            return reason
        return None

    def _look_at(self, progress: Any) -> None:
        latest = reported_positions(progress["sources"][0]["latestOffset"])
        self._note({self._members[path].name: end for path, end in latest.items() if path in self._members})

    def _note(self, latest: Mapping[str, int] | None = None) -> None:
        with self._noting:
            self.notes.latest |= latest or {}
            self.notes.settle(self._lake.snapshot())
            self.notes.save(self._lake)

    # ---- batches

    def batch(self, rows: DataFrame, batch_id: int) -> None:
        """Take the ranges of a batch through all stages and commit them."""
        with self._between_batches:
            if self._ends:
                raise InterruptedError("the pipeline is stopping")
            works = self._not_done(ranges_of(rows))
            if works:
                self._take(works, batch_id)

    def _not_done(self, ranges: Iterable[Any]) -> list[Work]:
        """Return what the lake lacks of these ranges. Nothing if a batch is repeated after its commit."""
        found: list[Work] = []
        ends: dict[str, int] = {}
        for part in ranges:
            path = part.split.store
            if path not in ends:
                ends[path] = self._end_of(path)
            if part.split.end <= ends[path]:
                continue
            if part.split.start > ends[path]:
                raise LakeGap(self._lake.place, path, ends[path], part.split.start)
            found.append(part_of(Work(self._members[path], part), ends[path]))
            ends[path] = part.split.end
        return found

    def _end_of(self, path: str) -> int:
        """Return the end of what the lake has of a store. Raises WrongLake if the store is no longer the same."""
        if path not in self._members:
            [member] = admit(self._lake, [Path(path)], add_store=True)
            self._members[path] = prepare(self._lake, member)
        state = self._lake.snapshot().stores.get(self._members[path].name)
        if state is None:
            return self._members[path].start
        check_seam(self._lake.place, state, Path(path))
        return state.end

    def _take(self, works: Sequence[Work], batch_id: int) -> None:
        began = time.perf_counter()
        results = run_tasks(self._spark, works, partial(run_stages, self._lake.place), DONE)
        ranges, files = harvest(results)
        self._lake.commit(ranges, files)
        move(self._lake)
        rows, size = rows_of(files), sum(part.end - part.start for part in ranges)
        for name, seconds in seconds_of(results).items():
            self.notes.took(name, rows, size, seconds)
        self.notes.batches += 1
        self._note({work.member.name: work.range.split.readable for work in works})
        findings = sum(file.rows for file in files if file.table == "findings")
        self._told(Batch(batch_id, size, rows, len(files), time.perf_counter() - began, findings), self.notes)


def failure(text: str) -> tuple[str | None, str]:
    """Return the stage that failed, if any, and the relevant sentence of Spark's error."""
    found = re.findall(r"^(?:mqlake\.errors\.)?(\w+: .+)$", text, re.MULTILINE)
    sentence = found[-1] if found else text.strip().split("\n")[0]
    stage = re.match(rf"StageFailed: ({'|'.join(STAGES)}) of ", sentence)
    return (stage[1] if stage else None), sentence
