"""The Spark source beside Spark's own Parquet read of the same rows, in one session, taking turns.

Run as a program: `python -m benchmarks.spark WORKLOAD DIRECTORY [mib=1024] [body=180] [rounds=3]`. Store and Parquet
files are made in DIRECTORY when they are not there. Prints one JSON line: medians in seconds of both, CPU-seconds of
JVM and workers, GiB of the log.

A hundred topics take turns, every message has a tag and a key of its own, and their times are those of one whole day.
Both sides run three times before they are timed: Java compiles what it runs often. The workload `column:NAME` is one
column to the noop sink, `columns` all of them, one after the other.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

from mqlake import Message, MessageStore
from mqlake.spark import archive, session
from mqlake.spark.schema import DEFAULT_COLUMNS

WARM_UPS = 3
TOPICS = 100
OVERHEAD = 128
"""Bytes of a record beside its body, here."""
DAY_MS = 24 * 3600 * 1000
MIDNIGHT_MS = 2_208_988_800_000
"""2040-01-01: store times never run back, so a day that is to be written now must lie ahead."""
NOON = "2040-01-01T12:00:00", "2040-01-01T13:00:00"
Action = Callable[[DataFrame], object]


def write(path: Path, mib: int, body: int) -> None:
    count = (mib << 20) // (body + OVERHEAD)
    contents = random.Random(2026)
    with MessageStore.open(path) as store:
        clock: Any = store._side.log._appender  # type: ignore[attr-defined]
        for start in range(0, count, 100):
            # every body another: a few that return would be a dictionary to Parquet
            block = contents.randbytes(100 * body)
            clock.last_timestamp = MIDNIGHT_MS + start * DAY_MS // count
            store.put_many(
                [
                    Message(f"topic-{i % TOPICS}", block[i * body : (i + 1) * body], tags="TagA", keys=f"k{start + i}")
                    for i in range(100)
                ]
            )


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
"""By name: options of our side, the same selection of Parquet's, and what is done with the rows."""


def run(spark: SparkSession, workload: str, store: Path, parquet: Path, rounds: int) -> dict[str, Any]:
    if workload == "columns":
        return {name: run(spark, f"column:{name}", store, parquet, rounds) for name in DEFAULT_COLUMNS}
    column = workload.removeprefix("column:")
    one_column = {"columns": column}, lambda rows: rows.select(column), to_noop
    options, select, act = WORKLOADS[workload] if column == workload else one_column

    def ours() -> None:
        act(spark.read.format("mqlake").options(**options).load(str(store)))

    def theirs() -> None:
        act(select(spark.read.parquet(str(parquet))))

    took: dict[str, list[float]] = {"ours": [], "theirs": [], "jvmCpu": [], "workerCpu": [], "theirsCpu": []}
    for round_number in range(WARM_UPS + rounds):
        for name, side in (("ours", ours), ("theirs", theirs)):
            before, began = cpu_seconds(), time.perf_counter()
            side()
            seconds = time.perf_counter() - began
            jvm, workers = (now - then for now, then in zip(cpu_seconds(), before, strict=True))
            if round_number >= WARM_UPS:
                took[name].append(seconds)
                took["jvmCpu" if side is ours else "theirsCpu"].append(jvm)
                took["workerCpu"] += [workers] if side is ours else []
    return {name: statistics.median(times) for name, times in took.items()}


def run_archive(spark: SparkSession, store: Path, rounds: int) -> dict[str, Any]:
    """The archive job, without its key index; and Spark writing the same rows to Parquet itself, topics together."""
    took: dict[str, list[float]] = {"ours": [], "theirs": []}
    for round_number in range(rounds + 1):
        for name, side in (("ours", _archive), ("theirs", _write_parquet)):
            target = store.with_suffix(f".{name}")
            shutil.rmtree(target, ignore_errors=True)
            began = time.perf_counter()
            side(spark, store, target)
            if round_number:
                took[name].append(time.perf_counter() - began)
            shutil.rmtree(target)
    return {name: statistics.median(times) for name, times in took.items()}


def _archive(spark: SparkSession, store: Path, target: Path) -> None:
    archive(spark, str(store), str(target), index=False)


def _write_parquet(spark: SparkSession, store: Path, target: Path) -> None:
    rows = spark.read.format("mqlake").option("includeInternal", "true").load(str(store))
    rows.write.option("compression", "zstd").parquet(str(target))


def cpu_seconds() -> tuple[float, float]:
    """What the JVM and the Python workers below this process have used so far."""
    jvm = workers = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times, is_jvm = process.cpu_times(), process.name() == "java"
        except psutil.Error:  # it has just ended
            continue
        if is_jvm:
            jvm += times.user + times.system
        else:
            workers += times.user + times.system + times.children_user + times.children_system
    return jvm, workers


def main(arguments: list[str]) -> None:
    workload, directory, *rest = arguments
    settings = {"mib": 1024, "body": 180, "rounds": 3, **{k: int(v) for k, v in (item.split("=") for item in rest)}}
    store = Path(directory) / f"spark-{settings['mib']}-{settings['body']}"
    parquet = store.with_suffix(".parquet")
    if not store.exists():
        write(store, settings["mib"], settings["body"])
    spark = session("local[2]", spark_ui_enabled="false", spark_driver_memory="2g", spark_sql_shuffle_partitions=2)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.sparkContext.setLogLevel("ERROR")
    if workload != "archive" and not parquet.exists():
        spark.read.format("mqlake").load(str(store)).write.parquet(str(parquet))
    with MessageStore.open(store, read_only=True) as opened:
        gib = (opened.end_offset - opened.first_offset) / 2**30
    if workload == "archive":
        figures = run_archive(spark, store, settings["rounds"])
    else:
        figures = run(spark, workload, store, parquet, settings["rounds"])
    print(json.dumps({**figures, "gib": gib}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
