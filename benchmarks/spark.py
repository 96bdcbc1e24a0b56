"""The Spark source compared with Spark's own Parquet read of the same rows, in one session, in turn.

Run as a program: `python -m benchmarks.spark WORKLOAD DIRECTORY [mib=1024] [body=180] [rounds=3]`. It makes store and
Parquet files in DIRECTORY if they do not exist. Prints one JSON line: the result of `turns.in_turns`, and the log's
GiB.

The workload `column:NAME` reads one column to the noop sink, `columns` reads each column in turn. `archive` is the
archive job without its key index, compared with Spark writing the same rows, all topics together, to Parquet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.result import tell
from benchmarks.spark_store import gib_of, local_session, parquet_of, store_in
from benchmarks.turns import in_turns, put_aside, settings_of
from mqlake.spark import archive
from mqlake.spark.schema import DEFAULT_COLUMNS

NOON = "2040-01-01T12:00:00", "2040-01-01T13:00:00"
Action = Callable[[DataFrame], object]


def to_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


WORKLOADS: dict[str, tuple[dict[str, str], Callable[[DataFrame], DataFrame], Action]] = {
    "full": ({}, lambda rows: rows, to_noop),
    "count": ({"columns": "size"}, lambda rows: rows.select("size"), lambda rows: rows.count()),
    "group": (
        {"columns": "topic"},
        lambda rows: rows.select("topic"),
        lambda rows: rows.groupBy("topic").count().collect(),
    ),
    "topic": ({"topics": "topic-7"}, lambda rows: rows.where("topic = 'topic-7'"), to_noop),
    "hour": (
        {"startTime": NOON[0], "endTime": NOON[1]},
        lambda rows: rows.where(f"store_timestamp >= '{NOON[0]}' and store_timestamp < '{NOON[1]}'"),
        to_noop,
    ),
    "key": ({"keys": "k777"}, lambda rows: rows.where("array_contains(keys, 'k777')"), to_noop),
}
"""By name: options of our side, the same selection on Parquet, and what is done with the rows."""


def run(spark: SparkSession, workload: str, store: Path, rounds: int) -> dict[str, Any]:
    if workload == "columns":
        return {name: run(spark, f"column:{name}", store, rounds) for name in DEFAULT_COLUMNS}
    parquet = parquet_of(spark, store)
    column = workload.removeprefix("column:")
    one_column = {"columns": column}, lambda rows: rows.select(column), to_noop
    options, select, act = WORKLOADS[workload] if column == workload else one_column

    def ours() -> None:
        act(spark.read.format("mqlake").options(**options).load(str(store)))

    def theirs() -> None:
        act(select(spark.read.parquet(str(parquet))))

    return {**in_turns({"ours": ours, "theirs": theirs}, rounds)}


def run_archive(spark: SparkSession, store: Path, rounds: int) -> dict[str, Any]:
    target = store.with_suffix(".target")

    def ours() -> None:
        archive(spark, str(store), str(target), index=False)

    def theirs() -> None:
        rows = spark.read.format("mqlake").option("includeInternal", "true").load(str(store))
        rows.write.option("compression", "zstd").parquet(str(target))

    with put_aside(target) as before:
        return {**in_turns({"ours": ours, "theirs": theirs}, rounds, before)}


def main(arguments: list[str]) -> None:
    workload, directory, *rest = arguments
    settings = settings_of(rest)
    store = store_in(Path(directory), settings)
    spark = local_session(spark_sql_session_timeZone="UTC")
    if workload == "archive":
        figures = run_archive(spark, store, settings["rounds"])
    else:
        figures = run(spark, workload, store, settings["rounds"])
    tell({**figures, "gib": gib_of(store)})
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
