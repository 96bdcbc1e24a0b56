"""The pipeline: check -> archive -> index -> stats, over the logs of any number of stores, batch by batch.

A batch is a byte range of each log. Workers take their ranges through all stages. Then one commit of the lake's
manifest makes everything count at once, and the stores' gates move. The manifest alone decides what is done: a batch
begins where the lake ends, and nothing else is remembered. So no kill, of the driver or of a worker, loses a record or
archives it twice. The lake is locked while the pipeline runs.

A store that fails is reported and left out until it can be read again; the others go on, unless `strict` is set.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqlake.errors import InvalidConfig, StageFailed, StoreError
from mqlake.files.place import place_of
from mqlake.lake import DONE, Lake, LakeFile, LakeRange, harvest
from mqlake.lake.gate import move
from mqlake.lake.notes import Notes, now_ms, rows_of
from mqlake.lake.vacuum import vacuum
from mqlake.spark.jobs.logs import Log, Logs, require_one
from mqlake.spark.jobs.stages import STAGES, Failure, failures_of, run_stages, seconds_of
from mqlake.spark.jobs.tasks import run_tasks
from mqlake.spark.options import size_of
from mqlake.spark.reach import reach
from mqlake.spark.registration import require_classic

BATCH_BYTES = "1g"
LOOK_S = 10.0
"""How often the ends of the logs are noted while nothing is processed."""
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
    failed: Mapping[str, str]
    """For each store that could not be read, the reason."""


Told = Callable[[Batch, Notes], object]
"""Called after each batch that processed something, and when other stores fail."""


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
    strict: bool = False,
    told: Told | None = None,
    stop: threading.Event | None = None,
) -> Notes:
    """Run until everything that exists now is in the lake (`once`), or until `stop` is set. Return the run's notes.

    The pipeline stops between two batches. It fails if no store can be read or, with `strict`, if one cannot. The error
    is noted in the lake and raised.
    """
    require_classic(
        spark, "mqlake.spark.pipeline", "use a session of mqlake.spark.session: its batches run in this program"
    )
    pause_ms = milliseconds(every)
    split_bytes, limit = size_of("split_size", split_size), size_of("batch_bytes", batch_bytes)
    paths = (stores,) if isinstance(stores, str) else tuple(stores)
    place_of(lake)
    require_one(paths)
    reach(spark, lake)
    opened = Lake.open(lake, create=True)
    with opened.lock():
        vacuum(opened)
        logs = Logs(opened, paths, split_bytes=split_bytes, add_store=add_store, accept_gap=accept_gap)
        run = Pipeline(spark, opened, logs, limit, strict=strict, told=told or (lambda batch, notes: None))
        run.notes.every = "once" if once else every
        return run.until(None if once else pause_ms / 1000, stop or threading.Event())


def milliseconds(every: str) -> int:
    match = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h)", every.strip())
    if match is None:
        raise InvalidConfig("every", every, "a time like 500ms, 10s, 1m or 1h")
    return int(match[1]) * UNITS[match[2]]


class Pipeline:
    """One run."""

    def __init__(
        self, spark: SparkSession, lake: Lake, logs: Logs, limit: int, *, strict: bool = False, told: Told
    ) -> None:
        self._spark, self._lake, self._logs, self._limit = spark, lake, logs, limit
        self._strict, self._told = strict, told
        self._failed: dict[str, str] = {}
        self._said, self._said_at = "", 0.0
        self.notes = Notes(started=now_ms())

    def until(self, pause_s: float | None, stop: threading.Event) -> Notes:
        """Run batches until `stop` is set or, without a pause, until the logs are processed as far as they are now."""
        try:
            move(self._lake)
            logs = self._look()
            target = {path: log.end for path, log in logs.items()} if pause_s is None else None
            while not stop.is_set():
                began, behind = time.monotonic(), sum(log.end - log.start for log in logs.values())
                size = self.batch(logs, target)
                if pause_s is None and not size:
                    self.notes.state = "done"
                    return self.notes
                if pause_s is not None and size in (0, behind):
                    self._pause(began + pause_s, stop)
                logs = self._look()
            self.notes.state = "stopped"
        except BaseException as error:
            self.notes.failed(*failure(error))
            raise
        finally:
            self._note()
            self._logs.close()
        return self.notes

    def _look(self) -> dict[str, Log]:
        """Return the stores that can be read. Raises an error if there is none, or if all must be readable."""
        logs = self._logs.look()
        self._report(self._logs.failed, left=len(logs))
        self._note({log.member.name: log.end for log in logs.values()})
        return logs

    def _report(self, failed: Mapping[str, StoreError], left: int) -> None:
        """Note the stores that failed, and tell about those that are new. Raise the first error if it ends the run."""
        texts = {path: f"{type(error).__name__}: {error}" for path, error in failed.items()}
        new = {path: texts[path] for path in sorted(texts.keys() - self._failed.keys())}
        self._failed = self.notes.failed_stores = texts
        if failed and (self._strict or not left):
            raise next(iter(failed.values()))
        if new:
            self._told(Batch(self.notes.batches, 0, 0, 0, 0.0, 0, new), self.notes)

    def _pause(self, until: float, stop: threading.Event) -> None:
        while (left := until - time.monotonic()) > 0 and not stop.wait(min(left, LOOK_S)):
            if left > LOOK_S:
                self._look()

    def _note(self, latest: Mapping[str, int] | None = None) -> None:
        """Save the notes if they say something new, and at times to show that the run is alive."""
        notes = self.notes
        notes.latest |= latest or {}
        notes.settle(self._lake.snapshot())
        said = repr((notes.latest, notes.failed_stores, notes.batches, notes.state, notes.last_error))
        if said != self._said or time.monotonic() - self._said_at >= LOOK_S:
            notes.save(self._lake)
            self._said, self._said_at = said, time.monotonic()

    # ---- batches

    def batch(self, logs: Mapping[str, Log], target: Mapping[str, int] | None = None) -> int:
        """Take the next ranges through all stages and commit them. Return how many bytes of log they have."""
        ends = {path: log.end if target is None else min(log.end, target.get(path, 0)) for path, log in logs.items()}
        works = self._logs.plan(dict(logs), ends, self._limit)
        if not works:
            return 0
        began = time.perf_counter()
        results = run_tasks(self._spark, works, partial(run_stages, self._lake.place), DONE)
        ranges, files = self._without(failures_of(results), *harvest(results), stores=len(logs))
        if ranges:
            self._lake.commit(ranges, files)
            move(self._lake)
        rows, size = rows_of(files), sum(part.end - part.start for part in ranges)
        for name, seconds in seconds_of(results).items():
            self.notes.took(name, rows, size, seconds)
        self.notes.batches += 1
        self._note()
        findings = sum(file.rows for file in files if file.table == "findings")
        took = time.perf_counter() - began
        self._told(Batch(self.notes.batches, size, rows, len(files), took, findings, {}), self.notes)
        return size

    def _without(
        self, failures: Sequence[Failure], ranges: list[LakeRange], files: list[LakeFile], *, stores: int
    ) -> tuple[list[LakeRange], list[LakeFile]]:
        """Leave out what follows a failed range in its log. Report the stores that failed."""
        first: dict[str, Failure] = {}
        for failed in sorted(failures, key=lambda failed: failed.start):
            first.setdefault(failed.store, failed)
        whole = [part for part in ranges if part.store not in first or part.end <= first[part.store].start]
        kept = {(part.store, part.start) for part in whole}
        errors = {one.path: self._logs.reason(one.path) or one.error for one in first.values()}
        if errors:
            self._report({**self._logs.failed, **errors}, left=stores - len(first))
        return whole, [file for file in files if (file.store, file.start) in kept]


def failure(error: BaseException) -> tuple[str | None, str]:
    """Return the stage that failed, if any, and the relevant sentence of an error."""
    if isinstance(error, StageFailed):
        return error.stage, f"{type(error).__name__}: {error}"
    if not isinstance(error, PySparkException):
        return None, f"{type(error).__name__}: {error}"
    found = re.findall(r"^(?:mqlake\.errors\.)?(\w+: .+)$", str(error), re.MULTILINE)
    sentence = found[-1] if found else str(error).strip().split("\n")[0]
    stage = re.match(rf"StageFailed: ({'|'.join(STAGES)}) of ", sentence)
    return (stage[1] if stage else None), sentence
