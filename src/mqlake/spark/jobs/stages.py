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
from mqlake.spark.jobs.ranges import Range
from mqlake.spark.jobs.stats_lake import keep_stats
from mqlake.spark.split import Split


class Work(NamedTuple):
    """A range and the store it belongs to."""

    member: Member
    range: Range


def run_stages(lake: str, work: Work) -> pa.Table:
    """Return what the stages wrote, as `lake.entries.done` does, and how long each took."""
    tables, took = [], {}
    for name, stage in STAGES.items():
        began = time.perf_counter()
        try:
            tables.append(stage(lake, work))
        except (StoreError, OSError) as error:
            raise StageFailed(name, repr(work.range.split), f"{type(error).__name__}: {error}") from error
        took[name] = time.perf_counter() - began
    return pa.concat_tables([*tables, pa.table([[json.dumps({"took": took})]], schema=DONE)])


def seconds_of(results: pa.Table) -> dict[str, float]:
    """Return the worker time of each stage."""
    found = [json.loads(text).get("took", {}) for text in results.column("done").to_pylist()]
    return {name: sum(took.get(name, 0.0) for took in found) for name in STAGES}


def _check(lake: str, work: Work) -> pa.Table:
    """Write the findings of the range to the lake. Damage stops nothing: the archive lists it as gaps.

    A table without rows is written too: a range without a file counts as not checked.
    """
    member, split = work.member, work.range.split
    found = check_split(split, queues=work.range.queues)
    found = found.set_column(0, found.schema.field(0), pa.repeat(member.name, found.num_rows))
    path = table_path("findings", member.identity, split.start, split.end)
    written = write_table(storage_at(lake), path, found)
    return done([LakeFile("findings", path, member.name, split.start, split.end, *written)])


def _archive(lake: str, work: Work) -> pa.Table:
    return archive_split(lake, work.member, work.range.split)


def _index(lake: str, work: Work) -> pa.Table:
    return index_split(lake, work.member, work.range.split)


def _stats(lake: str, work: Work) -> pa.Table:
    return keep_stats(lake, work.member, work.range.split)


STAGES: dict[str, Callable[[str, Work], pa.Table]] = {
    "check": _check,
    "archive": _archive,
    "index": _index,
    "stats": _stats,
}


def part_of(work: Work, start: int) -> Work:
    """Return the rest of a range from a record boundary on."""
    split = work.range.split
    rest = Split(split.store, split.file_size, split.queue_file_size, start, split.end, split.readable)
    return work._replace(range=work.range._replace(split=rest))
