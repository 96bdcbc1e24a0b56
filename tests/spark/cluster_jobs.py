"""Results of jobs as short digests that are equal only if every row and byte is: on a session, and without one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import mqlake
import mqlake.spark
from mqlake.spark.jobs.audit import findings_table
from tests.helpers import LOG_FILE
from tests.inspect.rebuilding import index_files, queue_files, rebuild_here
from tests.lake.jobs import NO_SPARK, assert_holds, rows_in, run_jobs_here
from tests.spark.cluster import digest_while_killed
from tests.spark.tables import stats_here

SPLIT = 30 << 10


def read_and_work(
    spark: SparkSession, store: str, options: dict[str, str], workers: list[int], folder: str
) -> tuple[str, list[str], dict[str, str], list[int]]:
    """Return a read in which a worker's executor is killed, what was killed, the jobs that run after it, and how many
    rows a write and a stream of the store add to another one."""
    found, *killed = digest_while_killed(spark, store, options, workers)
    return found, killed, job_digests(spark, store, folder), write_and_stream(spark, store, folder)


def write_and_stream(spark: SparkSession, store: str, folder: str) -> list[int]:
    """Write the store's rows into FOLDER/copy, as a batch and as a stream. Return how many rows it has after each."""
    copy, columns = f"{folder}/copy", ("topic", "body", "flag")

    def count() -> int:
        return spark.read.format("mqlake").option("columns", "size").load(copy).count()

    spark.read.format("mqlake").load(store).select(*columns).write.format("mqlake").mode("append").save(copy)
    written = count()
    stream = spark.readStream.format("mqlake").load(store).select(*columns).writeStream.format("mqlake")
    query = stream.option("checkpointLocation", f"{folder}/copying").trigger(availableNow=True).start(copy)
    query.awaitTermination()
    return [written, count()]


def job_digests(spark: SparkSession, store: str, folder: str) -> dict[str, str]:
    """Run archive, rebuild, audit and stats on a session, in several tasks each."""
    lake, built = Path(folder, "lake"), Path(folder, "built")
    mqlake.spark.archive(spark, store, str(lake), split_size=str(SPLIT), step_bytes=4 * SPLIT)
    mqlake.spark.rebuild(spark, store, built, part_size=LOG_FILE)
    findings = mqlake.spark.audit(spark, store, part_size=LOG_FILE).toArrow()
    counted = mqlake.spark.stats(spark, store, split_size=SPLIT)
    return _digests(lake, built, findings, [counted.rows, counted.queues, counted.lag])


def job_digests_here(store: Path, folder: Path) -> dict[str, str]:
    """Run the same without Spark. The audit is a check."""
    lake, built = folder / "lake", folder / "built"
    with pytest.MonkeyPatch.context() as patch:
        run_jobs_here(patch)
        mqlake.spark.archive(NO_SPARK, str(store), str(lake), split_size=str(SPLIT))
    rebuild_here(store, built)
    counted = stats_here(str(store), split_size=SPLIT)
    findings = findings_table(mqlake.check(store))
    return _digests(lake, built, findings, [counted.rows, counted.queues, counted.lag])


def _digests(lake: Path, built: Path, findings: pa.Table, counted: list[pa.Table]) -> dict[str, str]:
    assert_holds(lake)
    return {
        "archive": _digest(rows_in(lake)),
        "index": _digest(sorted(map(repr, rows_in(lake, "index")))),
        "queues": _digest(sorted(queue_files(built).items())),
        "keys": _digest(index_files(built)),
        "audit": _digest(findings.to_pylist()),
        "stats": _digest([row for table in counted for row in table.to_pylist()]),
    }


def _digest(values: list[Any]) -> str:
    return f"{len(values)}, {hashlib.sha256(repr(values).encode()).hexdigest()}"
