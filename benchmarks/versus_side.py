"""One side of `benchmarks.versus`: the pipeline of whichever mqlake is installed, in one session, on command.

A program of its own that imports nothing of this folder, because it runs on older code too. It reads one command in
JSON per line, `{"do": WORKLOAD, …}`, and answers with one line that begins with MARK: what it measured, in seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MARK = "mqlake-side:"
SETTLING, TAILED = 60, 150
WRITER = """
import sys, time
from mqlake import CommitLogConfig, Message, MessageStore
with MessageStore.open(sys.argv[1], commit_log=CommitLogConfig(file_size_bytes=64 << 20)) as store:
    print("ready", flush=True)
    while True:
        store.put(Message("tail", b"%d" % time.time_ns()))
        time.sleep(0.05)
"""


def archive(spark: Any, store: str, target: str, index: bool = False) -> dict[str, float]:
    import mqlake.spark

    began = time.perf_counter()
    mqlake.spark.archive(spark, store, target, index=index)
    took = time.perf_counter() - began
    return {"s": took, "files": sum(1 for _ in Path(target, "messages").rglob("*.parquet"))}


def group(spark: Any, store: str) -> dict[str, float]:
    began = time.perf_counter()
    spark.read.format("mqlake").option("columns", "topic").load(store).groupBy("topic").count().collect()
    return {"s": time.perf_counter() - began}


def count(spark: Any, store: str) -> dict[str, float]:
    began = time.perf_counter()
    spark.read.format("mqlake").option("columns", "size").load(store).count()
    return {"s": time.perf_counter() - began}


def read(spark: Any, store: str, **options: str) -> dict[str, float]:
    """Read what options select from the log, all columns, to the noop sink."""
    began = time.perf_counter()
    spark.read.format("mqlake").options(**options).load(store).write.format("noop").mode("overwrite").save()
    return {"s": time.perf_counter() - began}


def catchup(spark: Any, store: str, checkpoint: str) -> dict[str, float]:
    shutil.rmtree(checkpoint, ignore_errors=True)
    began = time.perf_counter()
    rows = spark.readStream.format("mqlake").option("maxBytesPerTrigger", "256m").load(store)
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    took = time.perf_counter() - began
    return {"s": took, "rows": sum(progress["numInputRows"] for progress in query.recentProgress)}


def first_row(spark: Any, store: str, checkpoint: str) -> dict[str, float]:
    """From the start of a stream to its first row in Python, with small batches."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    seen = threading.Event()

    def processed(rows: Any, batch_id: int) -> None:
        if rows.select("body").head(1):
            seen.set()

    began = time.perf_counter()
    rows = spark.readStream.format("mqlake").options(maxBytesPerTrigger="1m", columns="body").load(store)
    query = rows.writeStream.foreachBatch(processed).option("checkpointLocation", checkpoint).start()
    assert seen.wait(120)
    took = time.perf_counter() - began
    query.stop()
    return {"s": took}


def tail(spark: Any, store: str, checkpoint: str) -> dict[str, float]:
    """From the append of a message to its row in Python: the median."""
    for folder in (store, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    delays: list[float] = []

    def processed(rows: Any, batch_id: int) -> None:
        bodies = [row[0] for row in rows.select("body").collect()]
        now = time.time_ns()
        delays.extend((now - int(bytes(body))) / 1e9 for body in bodies)

    writer = subprocess.Popen([sys.executable, "-c", WRITER, store], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        rows = spark.readStream.format("mqlake").options(startingOffsets="latest", columns="body").load(store)
        query = rows.writeStream.foreachBatch(processed).option("checkpointLocation", checkpoint).start()
        while len(delays) < SETTLING + TAILED and query.isActive:
            time.sleep(0.1)
        query.stop()
    finally:
        writer.kill()
        writer.wait()
    counted = sorted(delays[SETTLING:])
    return {"s": counted[len(counted) // 2]}


def select(spark: Any, store: str | None, lake: str, **options: str) -> dict[str, float]:
    """Read from the lake, and from the log if a store is named, to the noop sink."""
    import mqlake.spark

    began = time.perf_counter()
    rows = mqlake.spark.union(spark, store, lake, **options)
    rows.write.format("noop").mode("overwrite").save()
    return {"s": time.perf_counter() - began}


WORKLOADS = {one.__name__: one for one in (archive, group, count, read, catchup, first_row, tail, select)}


def main() -> None:
    from mqlake.spark import session

    usual = {"spark_ui_enabled": "false", "spark_driver_memory": "2g", "spark_sql_shuffle_partitions": 2}
    spark = session("local[2]", spark_ui_showConsoleProgress="false", spark_sql_session_timeZone="UTC", **usual)
    spark.sparkContext.setLogLevel("ERROR")
    print(f"\n{MARK} {{}}", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = WORKLOADS[command.pop("do")](spark, **command)
        print(f"\n{MARK} {json.dumps(answer)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
