"""Run the lake's jobs in this process, for tests without a JVM; and read what a lake holds."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqlake.lake import Lake
from mqlake.lake.parquet import read_table
from mqlake.lake.tables import SCHEMAS
from mqlake.lake.verify import verify

NO_SPARK: Any = None


def run_here(spark: Any, items: Sequence[Any], work: Callable[[Any], pa.Table], schema: pa.Schema) -> pa.Table:
    """Do what `run_tasks` does, without Spark. Everything is pickled, as it is there."""
    results = [pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(item))) for item in items]
    return pa.concat_tables([schema.empty_table(), *results])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs in this process."""
    run_jobs_here(monkeypatch)


def run_jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mqlake.spark.jobs.archive", "mqlake.spark.jobs.compact"):
        monkeypatch.setattr(importlib.import_module(name), "run_tasks", run_here)


def rows_in(lake: Path | str, table: Any = "messages") -> list[dict[str, Any]]:
    """Return all rows of a table in log order."""
    opened = Lake.open(lake)
    tables = [read_table(opened.storage, file, SCHEMAS[file.table]) for file in opened.snapshot().files(table)]
    rows = [row for part in tables for row in part.to_pylist(maps_as_pydicts="strict")]
    return sorted(rows, key=lambda row: (row.get("store", ""), row["physical_offset"]))


def assert_holds(lake: Path, *, after_kill: bool = False) -> None:
    """Check a lake. After a kill its Delta tables may lack the newest commit, which the next job adds."""
    found = [each for each in verify(Lake.open(lake)) if not (after_kill and each.what == "delta")]
    assert not found, found
