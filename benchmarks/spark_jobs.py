"""Rebuild and audit on Spark beside the same work in one process, taking turns.

Run as a program: `python -m benchmarks.spark_jobs rebuild|audit DIRECTORY [mib=1024] [body=180] [rounds=3]`. The store
is the one of `benchmarks.spark`, made where it is not there. Prints one JSON line: medians in seconds of both, their
processor time, and GiB of the log.

Rebuild is held against an opening of the same log without queues and index, which walks it and builds them; audit
against `mqlake.check`. Both sides run once before they are timed.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import mqlake
from benchmarks.processes import processor_s
from benchmarks.spark import write
from mqlake import MessageStore
from mqlake.spark import audit, rebuild, session

Side = Callable[[], object]


def rebuild_sides(spark: SparkSession, store: Path) -> tuple[Side, Side]:
    out, bare = store.with_suffix(".out"), store.with_suffix(".bare")

    def ours() -> None:
        shutil.rmtree(out, ignore_errors=True)
        rebuild(spark, store, out)

    def theirs() -> None:
        shutil.rmtree(bare, ignore_errors=True)
        shutil.copytree(store / "commitlog", bare / "commitlog", copy_function=os.link)
        (bare / "abort").touch()
        MessageStore.open(bare).close()

    return ours, theirs


def audit_sides(spark: SparkSession, store: Path) -> tuple[Side, Side]:
    def ours() -> None:
        assert audit(spark, store).count() == 0

    def theirs() -> None:
        assert not mqlake.check(store).findings

    return ours, theirs


SIDES = {"rebuild": rebuild_sides, "audit": audit_sides}


def main(arguments: list[str]) -> None:
    workload, directory, *rest = arguments
    settings = {"mib": 1024, "body": 180, "rounds": 3, **{k: int(v) for k, v in (item.split("=") for item in rest)}}
    store = Path(directory) / f"spark-{settings['mib']}-{settings['body']}"
    if not store.exists():
        write(store, settings["mib"], settings["body"])
    spark = session(
        "local[2]", spark_ui_enabled="false", spark_driver_memory="2g", spark_ui_showConsoleProgress="false"
    )
    spark.sparkContext.setLogLevel("ERROR")
    with MessageStore.open(store, read_only=True) as opened:
        gib = (opened.end_offset - opened.first_offset) / 2**30
    sides = dict(zip(("ours", "theirs"), SIDES[workload](spark, store), strict=True))
    took: dict[str, list[float]] = {name: [] for side in sides for name in (side, f"{side}_processor")}
    for round_number in range(settings["rounds"] + 1):
        for name, side in sides.items():
            began, before = time.perf_counter(), processor_s()
            side()
            if round_number:
                took[name].append(time.perf_counter() - began)
                took[f"{name}_processor"].append(processor_s() - before)
    print(json.dumps({**{name: statistics.median(times) for name, times in took.items()}, "gib": gib}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
