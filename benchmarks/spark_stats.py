"""Statistics of a store beside the same figures from Parquet files of the same rows, in one session, taking turns.

Run as a program: `python -m benchmarks.spark_stats stats DIRECTORY [mib=1024] [body=180] [rounds=3]`. The store is that
of `benchmarks.spark`. With `split` in the place of `stats` the splits are counted in this process, without Spark, and
the CPU seconds are told. Prints one JSON line: medians in seconds of both, GiB of the log.

The other side counts traffic by topic, queue, tag and minute and the different keys of each topic; it leaves out
histograms, the bytes of bodies and the most frequent keys.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.spark import write
from mqlake.spark import session, stats
from mqlake.spark.jobs.stats import plans_of
from mqlake.spark.jobs.stats_split import stats_split

TRAFFIC = (
    "select topic, queue_id, tags, date_trunc('minute', store_timestamp), count(*), sum(size), min(size), max(size), "
    "sum(unix_millis(store_timestamp) - unix_millis(born_timestamp)) from parquet group by 1, 2, 3, 4"
)
KEYS = "select topic, approx_count_distinct(k, 0.016) from (select topic, explode(keys) k from parquet) group by topic"


def in_turns(rounds: int, sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(rounds + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if round_number:
                took[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in took.items()}


def on_spark(spark: SparkSession, store: Path, parquet: Path, rounds: int) -> dict[str, float]:
    if not parquet.exists():
        spark.read.format("mqlake").load(str(store)).write.parquet(str(parquet))
    spark.read.parquet(str(parquet)).createOrReplaceTempView("parquet")
    theirs = [TRAFFIC, KEYS]
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: stats(spark, str(store)),
        "theirs": lambda: [spark.sql(query).collect() for query in theirs],
    }
    return in_turns(rounds, sides)


def in_process(store: Path, rounds: int) -> dict[str, float]:
    """CPU seconds of one process, the best of some rounds: what a busy machine adds is left out."""
    (made,) = plans_of(str(store), None)
    spent = []
    for _ in range(rounds + 1):
        before = resource.getrusage(resource.RUSAGE_SELF)
        for split in made.splits:
            stats_split(split)
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"cpu": min(spent[1:]), "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}


def main(arguments: list[str]) -> None:
    workload, directory, *rest = arguments
    settings = {"mib": 1024, "body": 180, "rounds": 3, **{k: int(v) for k, v in (item.split("=") for item in rest)}}
    store = Path(directory) / f"spark-{settings['mib']}-{settings['body']}"
    if not store.exists():
        write(store, settings["mib"], settings["body"])
    (made,) = plans_of(str(store), None)
    gib = (made.end - made.first) / 2**30
    if workload == "split":
        print(json.dumps({**in_process(store, settings["rounds"]), "gib": gib}))
        return
    spark = session("local[2]", spark_ui_enabled="false", spark_driver_memory="2g", spark_sql_shuffle_partitions=2)
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({**on_spark(spark, store, store.with_suffix(".parquet"), settings["rounds"]), "gib": gib}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
