"""Take one byte range of a log through all stages of the pipeline, one after the other. Runs in a worker.

From the second stage on, the log's pages are in memory. Each stage writes its file of the lake under a name that
follows from the range, so processing a range twice leaves the same files. Nothing counts before the driver's commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from mqlake.errors import StageFailed, StoreError
from mqlake.lake import DONE, LakeFile, done
from mqlake.lake.parquet import write_table
from mqlake.lake.paths import table_path
from mqlake.lake.storage import storage_at
from mqlake.lake.stores import Member
from mqlake.spark.jobs.archive_split import archive_split
from mqlake.spark.jobs.check_split import check_split
from mqlake.spark.jobs.index_split import index_split
from mqlake.spark.jobs.stats_lake import keep_stats
from mqlake.spark.split import Split


class Work(NamedTuple):
    """A range and the store it belongs to."""

    member: Member
    split: Split
    queues: bool
    """Whether the store's queues and index are valid, so that the range can be checked against them."""


class Failure(NamedTuple):
    """A range that could not be processed."""

    store: str
    path: str
    start: int
    stage: str
    split: str
    cause: str

    @property
    def error(self) -> StageFailed:
        return StageFailed(self.stage, self.split, self.cause)


def run_stages(lake: str, work: Work) -> pa.Table:
    """Return what the stages wrote, as `lake.entries.done` does, and how long each took; or what failed.

    An error is an answer, not a failed task: other stores are in the same batch, and theirs is committed.
    """
    tables, took = [], {}
    for name, stage in STAGES.items():
        began = time.perf_counter()
        try:
            tables.append(stage(lake, work))
        except (StoreError, OSError) as error:
            cause = f"{type(error).__name__}: {error}"
            member, split = work.member, work.split
            failed = Failure(member.name, str(member.path), split.start, name, repr(split), cause)
            return pa.table([[json.dumps({"failed": failed})]], schema=DONE)
        took[name] = time.perf_counter() - began
    return pa.concat_tables([*tables, pa.table([[json.dumps({"took": took})]], schema=DONE)])


def failures_of(results: pa.Table) -> list[Failure]:
    """Return the ranges that could not be processed."""
    found = [json.loads(text) for text in results.column("done").to_pylist()]
    return [Failure(*entry["failed"]) for entry in found if "failed" in entry]


def seconds_of(results: pa.Table) -> dict[str, float]:
    """Return the worker time of each stage."""
    found = [json.loads(text).get("took", {}) for text in results.column("done").to_pylist()]
    return {name: sum(took.get(name, 0.0) for took in found) for name in STAGES}


def _check(lake: str, work: Work) -> pa.Table:
    """Write the findings of the range to the lake. Damage stops nothing: the archive lists it as gaps.

    A table without rows is written too: a range without a file counts as not checked.
    """
    member, split = work.member, work.split
    found = check_split(split, queues=work.queues)
    found = found.set_column(0, found.schema.field(0), pa.repeat(member.name, found.num_rows))
    path = table_path("findings", member.identity, split.start, split.end)
    written = write_table(storage_at(lake), path, found)
    return done([LakeFile("findings", path, member.name, split.start, split.end, *written)])


def _archive(lake: str, work: Work) -> pa.Table:
    return archive_split(lake, work.member, work.split)


def _index(lake: str, work: Work) -> pa.Table:
    return index_split(lake, work.member, work.split)


def _stats(lake: str, work: Work) -> pa.Table:
    return keep_stats(lake, work.member, work.split)


STAGES: dict[str, Callable[[str, Work], pa.Table]] = {
    "check": _check,
    "archive": _archive,
    "index": _index,
    "stats": _stats,
}
