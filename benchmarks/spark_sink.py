"""Rows into a store by `df.write.format("mqlake")`, beside the same rows into Parquet by Spark itself, taking turns.

Run as a program: `python -m benchmarks.spark_sink DIRECTORY [mib=1024] [body=180] [rounds=3]`. Both sides read the rows
from the same Parquet files, made in DIRECTORY when they are not there. Prints one JSON line: medians in seconds
of both, the CPU-seconds of all processes, GiB of the log and rows.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.processes import processor_s
from benchmarks.spark import write
from mqlake import MessageStore
from mqlake.spark import session
from mqlake.spark.sink_options import COLUMNS


def main(arguments: list[str]) -> None:
    directory, *rest = arguments
    settings = {"mib": 1024, "body": 180, "rounds": 3, **{k: int(v) for k, v in (item.split("=") for item in rest)}}
    store = Path(directory) / f"spark-{settings['mib']}-{settings['body']}"
    parquet = store.with_suffix(".parquet")
    if not store.exists():
        write(store, settings["mib"], settings["body"])
    spark = session("local[2]", spark_ui_enabled="false", spark_driver_memory="2g", spark_sql_shuffle_partitions=2)
    spark.sparkContext.setLogLevel("ERROR")
    if not parquet.exists():
        spark.read.format("mqlake").load(str(store)).write.parquet(str(parquet))
    rows = spark.read.parquet(str(parquet)).select(*COLUMNS)
    target = Path(directory) / "sink"

    def ours() -> None:
        rows.write.format("mqlake").mode("append").save(str(target))

    def theirs() -> None:
        rows.write.parquet(str(target))

    sides: dict[str, Callable[[], None]] = {"ours": ours, "theirs": theirs}
    took: dict[str, list[float]] = {name: [] for side in sides for name in (side, f"{side}Cpu")}
    for round_number in range(settings["rounds"] + 1):
        for name, side in sides.items():
            shutil.rmtree(target, ignore_errors=True)
            began, cpu = time.perf_counter(), processor_s()
            side()
            if round_number:
                took[name].append(time.perf_counter() - began)
                took[f"{name}Cpu"].append(processor_s() - cpu)
            if name == "ours":
                with MessageStore.open(target, read_only=True) as opened:
                    gib = (opened.end_offset - opened.first_offset) / 2**30
    shutil.rmtree(target, ignore_errors=True)
    medians = {name: statistics.median(times) for name, times in took.items()}
    print(json.dumps({**medians, "gib": gib, "rows": rows.count()}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
