"""Streams of the log: how fast one catches up, and how soon a message that is appended has been processed.

Run as a program: `python -m benchmarks.spark_stream catchup|tail DIRECTORY [mib=1024] [body=180] [rounds=3]
[messages=300]`. Prints one JSON line: rows a second, or seconds from append to processed, and CPU-seconds of driver,
JVM and workers.

Catching up is a query that takes what is available now, all columns, to the noop sink, in batches of 256 MiB; it runs
three times before it is timed, and its time has its start and end in it. The tail is a writer in a process of its own
that appends a message with the time in it every 50 ms; it is processed once foreachBatch has its row in Python.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.processes import processor_s
from benchmarks.spark import WARM_UPS, write
from mqlake import MessageStore
from mqlake.spark import session

SETTLING = 100
"""Messages of the tail that are not counted: Java compiles meanwhile."""

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
    with MessageStore.open(store, read_only=True) as opened:
        gib = (opened.end_offset - opened.first_offset) / 2**30
    took, used, count = [], [], 0
    for number in range(WARM_UPS + rounds):
        checkpoint = store.with_name(f"checkpoint-{number}")
        shutil.rmtree(checkpoint, ignore_errors=True)
        began, cpu = time.perf_counter(), processor_s()
        rows = spark.readStream.format("mqlake").option("maxBytesPerTrigger", "256m").load(str(store))
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        if number >= WARM_UPS:
            took.append(time.perf_counter() - began)
            used.append(processor_s() - cpu)
        count = sum(progress["numInputRows"] for progress in query.recentProgress)
    seconds = statistics.median(took)
    return {"rate": count / seconds, "seconds": seconds, "cpu": statistics.median(used), "rows": count, "gib": gib}


def tail(spark: SparkSession, store: Path, messages: int) -> dict[str, Any]:
    shutil.rmtree(store, ignore_errors=True)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store)], stdout=subprocess.PIPE, text=True)
    delays: list[float] = []
    cpu = processor_s()

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
    return {"rate": statistics.median(counted), "p99": counted[int(len(counted) * 0.99)], "cpu": processor_s() - cpu}


def main(arguments: list[str]) -> None:
    workload, directory, *rest = arguments
    settings = {"mib": 1024, "body": 180, "rounds": 3, "messages": 300}
    settings |= {name: int(value) for name, value in (item.split("=") for item in rest)}
    spark = session("local[2]", spark_ui_enabled="false", spark_driver_memory="2g", spark_sql_shuffle_partitions=2)
    spark.sparkContext.setLogLevel("ERROR")
    if workload == "tail":
        result = tail(spark, Path(directory) / "tail", settings["messages"])
    else:
        store = Path(directory) / f"spark-{settings['mib']}-{settings['body']}"
        if not store.exists():
            write(store, settings["mib"], settings["body"])
        result = catch_up(spark, store, settings["rounds"])
    print(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
