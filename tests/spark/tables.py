"""Read without Spark: plan and read splits in this process, for tests without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqlake import Message, MessageStore
from mqlake.spark.jobs import stats as stats_job
from mqlake.spark.jobs.stats import Stats
from mqlake.spark.options import SourceOptions, parse_options
from mqlake.spark.plan import StorePlan, plan
from mqlake.spark.read_split import read_split
from mqlake.spark.schema import arrow_schema
from mqlake.spark.split import Split
from tests.helpers import open_small

Row = dict[str, Any]


def options_for(path: Path | str, **options: Any) -> SourceOptions:
    return parse_options({"path": str(path), **{name: str(value) for name, value in options.items()}})


def plan_of(path: Path | str, **options: Any) -> StorePlan:
    """Return the plan of one store."""
    (made,) = plan(options_for(path, **options))
    return made


def splits_of(path: Path | str, **options: Any) -> list[Split]:
    return [split for store in plan(options_for(path, **options)) for split in store.splits]


def rows_of(path: Path | str, splits: list[Split] | None = None, **options: Any) -> list[Row]:
    """Return all rows of a read, split by split. Asserts that every batch is valid and has the promised schema."""
    parsed = options_for(path, **options)
    rows: list[Row] = []
    for split in splits if splits is not None else splits_of(path, **options):
        for batch in read_split(parsed, arrow_schema(parsed.columns), split):
            batch.validate(full=True)
            assert batch.schema.equals(arrow_schema(parsed.columns))
            assert batch.num_rows
            rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows


def offsets_of(path: Path | str, **options: Any) -> list[int]:
    return sorted(row["physical_offset"] for row in rows_of(path, **options))


def write_store(path: Path, count: int = 600, topics: int = 5, **settings: Any) -> None:
    """Write messages over several topics and log files: repeated keys, three tags or none, bodies of many sizes."""
    with open_small(path, **settings) as store:
        put_messages(store, 0, count, topics)


def put_messages(store: MessageStore, first: int, count: int, topics: int = 5) -> None:
    for i in range(first, first + count):
        store.put(
            Message(
                f"topic-{i % topics}",
                b"%d:" % i + b"x" * (i * 37 % 900),
                tags=None if i % 4 == 0 else f"tag{i % 3}",
                keys=[f"key-{i}", f"group-{i % 50}"],
                properties={"number": str(i)},
                sys_flag=(0, 0, 0, 0x4, 0x8, 0xC)[i % 6],
            )
        )


def stats_here(stores: str | Sequence[str], **options: Any) -> Stats:
    """Run `mqlake.spark.stats` in this process, without Spark."""

    def run_here(spark: Any, items: Sequence[Any], work: Callable[[Any], pa.Table], schema: pa.Schema) -> pa.Table:
        return pa.concat_tables([schema.empty_table(), *map(work, items)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats_job, "run_tasks", run_here)
        no_spark: Any = None
        return stats_job.stats(no_spark, stores, **options)
