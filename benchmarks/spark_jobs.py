"""Rebuild and audit on Spark compared with the same work in one process, in turn.

Run as a program: `python -m benchmarks.spark_jobs rebuild|audit DIRECTORY [mib=1024] [body=180] [rounds=3]`. It makes
the store if it does not exist. Prints one JSON line: the result of `turns.in_turns`, and the log's GiB.

Rebuild is compared with opening the same log without queues and index, which walks it and builds them; audit is
compared with `mqlake.check`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import mqlake
from benchmarks.result import tell
from benchmarks.spark_store import gib_of, local_session, store_in
from benchmarks.turns import Side, in_turns, settings_of
from mqlake import MessageStore
from mqlake.spark import audit, rebuild


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
    settings = settings_of(rest)
    store = store_in(Path(directory), settings)
    spark = local_session()
    sides = dict(zip(("ours", "theirs"), SIDES[workload](spark, store), strict=True))
    tell({**in_turns(sides, settings["rounds"]), "gib": gib_of(store)})
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
