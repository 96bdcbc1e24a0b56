"""Statistics of a store compared with the same figures from Parquet files of the same rows, in one session, in turn.

Run as a program: `python -m benchmarks.spark_stats stats DIRECTORY [mib=1024] [body=180] [rounds=3]`. It makes the
store if it does not exist. With `split` instead of `stats`, this process counts the splits without Spark and prints
the CPU seconds. Prints one JSON line: the result of `turns.in_turns`, and the log's GiB.

The other side counts traffic by topic, queue, tag and minute, and the distinct keys of each topic. It omits
histograms, the bytes of bodies and the most frequent keys.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.result import tell
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
    """Return the CPU seconds of one process, the best of some rounds, to exclude what a busy machine adds."""
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
        tell({**in_process(store, settings["rounds"]), "gib": gib})
        return
    spark = local_session()
    tell({**on_spark(spark, store, settings["rounds"]), "gib": gib})
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
