"""Streams of the log: how fast one catches up, and how soon an appended message is processed.

Run as a program: `python -m benchmarks.spark_stream catchup|tail DIRECTORY [mib=1024] [body=180] [rounds=3]
[messages=300]`. Prints one JSON line: rows per second, or seconds from append to processed; and the result of
`turns.in_turns`, or the processor time.

`catchup` is a query that takes what is available now, all columns, to the noop sink, in batches of 256 MiB. Its time
includes start and end. In `tail`, a separate process appends a message that holds the time every 50 ms. The message
counts as processed once foreachBatch has its row in Python.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.result import tell
from benchmarks.spark_store import gib_of, local_session, store_in
from benchmarks.turns import in_turns, settings_of, used_s

SETTLING = 100
"""Messages of the tail that do not count, because Java still compiles."""

WRITER = """
import sys, time
from mqlake import CommitLogConfig, Message, MessageStore
with MessageStore.open(sys.argv[1], commit_log=CommitLogConfig(file_size_bytes=64 << 20)) as store:
    print("ready", flush=True)
    while True:
        store.put(Message("tail", b"%d" % time.time_ns()))
        time.sleep(0.05)
"""


def catch_up(spark: SparkSession, store: Path, rounds: int) -> dict[str, Any]:
    checkpoint = store.with_suffix(".checkpoint")
    counts: set[int] = set()

    def ours() -> None:
        rows = spark.readStream.format("mqlake").option("maxBytesPerTrigger", "256m").load(str(store))
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        counts.add(sum(progress["numInputRows"] for progress in query.recentProgress))

    figures = in_turns({"ours": ours}, rounds, lambda: shutil.rmtree(checkpoint, ignore_errors=True))
    (count,) = counts
    return {"rate": count / figures["ours"], "rows": count, "gib": gib_of(store), **figures}


def tail(spark: SparkSession, store: Path, messages: int) -> dict[str, Any]:
    shutil.rmtree(store, ignore_errors=True)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store)], stdout=subprocess.PIPE, text=True)
    delays: list[float] = []
    before = used_s()

    def processed(rows: DataFrame, batch_id: int) -> None:
        bodies = [row[0] for row in rows.select("body").collect()]
        now = time.time_ns()
        delays.extend((now - int(bytes(body))) / 1e9 for body in bodies)

    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        rows = spark.readStream.format("mqlake").options(startingOffsets="latest", columns="body").load(str(store))
        checkpoint = store.with_name("tail-checkpoint")
        shutil.rmtree(checkpoint, ignore_errors=True)
        query = rows.writeStream.foreachBatch(processed).option("checkpointLocation", str(checkpoint)).start()
        while len(delays) < SETTLING + messages and query.isActive:
            time.sleep(0.1)
        query.stop()
    finally:
        writer.kill()
        writer.wait()
    counted = sorted(delays[SETTLING:])
    return {
        "rate": statistics.median(counted),
        "p99": counted[int(len(counted) * 0.99)],
        "cpu": sum(used_s().since(before)),
    }


def main(arguments: list[str]) -> None:
    workload, directory, *rest = arguments
    settings = settings_of(rest, messages=300)
    spark = local_session()
    if workload == "tail":
        result = tail(spark, Path(directory) / "tail", settings["messages"])
    else:
        result = catch_up(spark, store_in(Path(directory), settings), settings["rounds"])
    tell(result)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
