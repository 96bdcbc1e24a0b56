"""Statistics of a store beside the same figures from Parquet files of the same rows, in one session, taking turns.

Run as a program: `python -m benchmarks.spark_stats stats DIRECTORY [mib=1024] [body=180] [rounds=3]`. The store is
made where it is not there. With `split` in the place of `stats` the splits are counted in this process, without
Spark, and the CPU seconds are told. Prints one JSON line: what `turns.in_turns` says, GiB of the log.

The other side counts traffic by topic, queue, tag and minute and the different keys of each topic; it leaves out
histograms, the bytes of bodies and the most frequent keys.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.spark_store import local_session, parquet_of, store_in
from benchmarks.turns import Side, in_turns, settings_of
from mqlake.spark import stats
from mqlake.spark.jobs.stats import plans_of
from mqlake.spark.jobs.stats_split import stats_split

TRAFFIC = (
    "select topic, queue_id, tags, date_trunc('minute', store_timestamp), count(*), sum(size), min(size), max(size), "
    "sum(unix_millis(store_timestamp) - unix_millis(born_timestamp)) from parquet group by 1, 2, 3, 4"
)
KEYS = "select topic, approx_count_distinct(k, 0.016) from (select topic, explode(keys) k from parquet) group by topic"


def on_spark(spark: SparkSession, store: Path, rounds: int) -> dict[str, float]:
    spark.read.parquet(str(parquet_of(spark, store))).createOrReplaceTempView("parquet")
    theirs = [TRAFFIC, KEYS]
    sides: dict[str, Side] = {
        "ours": lambda: stats(spark, str(store)),
        "theirs": lambda: [spark.sql(query).collect() for query in theirs],
    }
    return in_turns(sides, rounds)


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
    settings = settings_of(rest)
    store = store_in(Path(directory), settings)
    (made,) = plans_of(str(store), None)
    gib = (made.end - made.first) / 2**30
    if workload == "split":
        print(json.dumps({**in_process(store, settings["rounds"]), "gib": gib}))
        return
    spark = local_session()
    print(json.dumps({**on_spark(spark, store, settings["rounds"]), "gib": gib}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
