"""Archive logs into the lake, step by step. Each step is one commit, after which the gate moves.

A run continues where the lake ends, up to what can be read when the run begins. Workers write the files, one commit
makes them count, and then the store's retention may delete what is archived. A kill at any point costs at most the
running step: no commit names its files, and the next run writes them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from mqlake.errors import OffsetOutOfRange, WrongLake
from mqlake.lake import DONE, Lake, LakeFile, LakeRange, harvest
from mqlake.lake.gate import hold_new, move
from mqlake.lake.stores import Member, admit, first_offset
from mqlake.lake.vacuum import vacuum
from mqlake.spark.bodies import OneSchema
from mqlake.spark.jobs.archive_split import archive_split
from mqlake.spark.jobs.index_split import index_split
from mqlake.spark.jobs.tasks import run_tasks
from mqlake.spark.jobs.typed import type_bodies
from mqlake.spark.options import parse_options
from mqlake.spark.plan import expand, plan
from mqlake.spark.reach import reach
from mqlake.spark.split import Split

STEP_BYTES = 1 << 30
Item = tuple[Member, Split]
Progress = Callable[[int, int], object]
"""Called with the bytes archived so far and the total."""


@dataclass(frozen=True)
class Archived:
    """What a run did for one store. The lake had the log up to `start` before, and has it up to `end` now."""

    store: str
    start: int
    end: int
    rows: int = 0
    file_count: int = 0
    file_bytes: int = 0
    gap_bytes: int = 0

    def and_then(self, next_part: Archived) -> Archived:
        sums = {name: getattr(self, name) + getattr(next_part, name) for name in ("rows", "file_count", "file_bytes")}
        return replace(self, end=next_part.end, gap_bytes=self.gap_bytes + next_part.gap_bytes, **sums)


def archive(
    spark: SparkSession,
    stores: str | Sequence[str],
    lake: str,
    *,
    index: bool = True,
    split_size: str = "256m",
    step_bytes: int = STEP_BYTES,
    add_store: bool = False,
    accept_gap: bool = False,
    schema: Mapping[str, OneSchema] | None = None,
    progress: Progress | None = None,
) -> list[Archived]:
    """Archive everything that can be read of the stores. Creates the lake if there is none.

    With a `schema` by topic, the typed tables of these topics get what is new too (`typed.py`).
    """
    paths = expand((stores,) if isinstance(stores, str) else tuple(stores))
    reach(spark, lake)
    opened = Lake.open(lake, create=True)
    with opened.lock():
        vacuum(opened)
        members = [
            prepare(opened, member) for member in admit(opened, paths, add_store=add_store, accept_gap=accept_gap)
        ]
        move(opened)
        items = [(member, split) for member in members for split in plan_splits(opened, member, split_size)]
        results = {member.name: Archived(member.name, member.start, member.start) for member in members}
        total, done_bytes = sum(split.end - split.start for _, split in items), 0
        for step in steps(items, step_bytes):
            for part in archive_step(spark, opened, step, index):
                results[part.store] = results[part.store].and_then(part)
                done_bytes += part.end - part.start
            if progress is not None:
                progress(done_bytes, total)
    if schema:
        type_bodies(spark, lake, schema)
    return list(results.values())


def prepare(lake: Lake, member: Member) -> Member:
    """Make the store's retention keep what the lake does not have, from now on."""
    if member.name in lake.snapshot().stores:
        if member.lost is not None:
            lost = member.range(member.lost.start, member.lost.end, (member.lost,), None)
            lake.commit([lost], [])
        return member
    hold_new(lake, member)
    return replace(member, start=first_offset(member.path))  # files may have been deleted before the gate was set


def plan_splits(lake: Lake, member: Member, split_size: str) -> list[Split]:
    """Return contiguous splits of the part of the log that the lake does not have."""
    options = {"path": str(member.path), "via": "scan", "includeInternal": "true", "startOffset": str(member.start)}
    options |= {"splitSize": split_size, "minPartitions": str(os.cpu_count() or 1)}  # fewer, larger files
    try:
        [planned] = plan(parse_options(options))
    except OffsetOutOfRange as error:
        found = f"its log ends at {error.end_offset}, the lake ends at {member.start}: the log was truncated"
        raise WrongLake(lake.place, str(member.path), found, "archive it into a new lake") from None
    splits = planned.splits
    if splits:  # a marker or damage between the lake's end and the next record is a gap to be listed
        splits[0] = replace(splits[0], start=member.start)
    return splits


def steps(items: Sequence[Item], step_bytes: int) -> Iterator[list[Item]]:
    """Yield the items of each commit."""
    step: list[Item] = []
    for item in items:
        step.append(item)
        if sum(split.end - split.start for _, split in step) >= step_bytes:
            yield step
            step = []
    if step:
        yield step


def archive_step(spark: SparkSession, lake: Lake, step: Sequence[Item], index: bool) -> list[Archived]:
    """Write the files, commit them, and move the gates. Return what was archived of each split."""
    ranges, files = harvest(run_tasks(spark, step, partial(archive_task, lake.place, index), DONE))
    lake.commit(ranges, files)
    move(lake)
    return [archived(part, [file for file in files if file.table == "messages"]) for part in ranges]


def archived(part: LakeRange, messages: Sequence[LakeFile]) -> Archived:
    files = [file for file in messages if (file.store, file.start) == (part.store, part.start)]
    gap_bytes = sum(gap.end - gap.start for gap in part.gaps)
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return Archived(part.store, part.start, part.end, rows, len(files), size, gap_bytes)


def archive_task(lake: str, index: bool, item: Item) -> pa.Table:
    """Process one split. Runs in a worker."""
    tables = [archive_split(lake, *item)]
    if index:
        tables.append(index_split(lake, *item))
    return pa.concat_tables(tables)
