"""Processes that write, archive and compact until killed: `python -m tests.lake.storm ROLE STORE LAKE LEDGER`.

The writer also runs retention. Each line of the ledger is a physical offset that was acknowledged and dispatched.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from mqlake.errors import StoreError
from mqlake.store.gates import Gates
from tests.helpers import message, open_small
from tests.lake.jobs import NO_SPARK, run_here

GRACE_S = 5
"""How long files replaced by a compaction are kept."""


def write(store: Path, lake: Path, ledger: Path) -> None:
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with open_small(store) as opened:
        for _ in range(10**6):
            receipts = opened.put_many([message(n, topic=f"t{n % 3}", body=b"x" * 300) for n in range(30)])
            opened.wait_dispatched()
            os.write(descriptor, b"".join(b"%d\n" % receipt.physical_offset for receipt in receipts))
            if Gates(store / "mqlake" / "gates").offsets():  # without a gate, unarchived messages would be deleted
                opened.retain(keep_bytes=0)
            time.sleep(0.02)


def archive(store: Path, lake: Path, ledger: Path, rounds: int = 10**6, split_size: str = "40k") -> None:
    """Run driver and workers in one process."""
    for name in ("mqlake.spark.jobs.archive", "mqlake.spark.jobs.compact"):
        importlib.import_module(name).run_tasks = run_here  # type: ignore[attr-defined]
    run(NO_SPARK, store, lake, rounds, split_size)


def spark(store: Path, lake: Path, ledger: Path) -> None:
    """Run a real driver with its JVM, and workers whose tasks are retried."""
    from mqlake.spark import session

    started = session("local[2,4]", spark_ui_enabled="false", spark_driver_memory="1g")
    started.sparkContext.setLogLevel("OFF")
    run(started, store, lake, 10**6, "200k")


def run(started: Any, store: Path, lake: Path, rounds: int, split_size: str) -> None:
    from mqlake.spark import archive, compact

    for number in range(rounds):
        try:
            archive(started, str(store), str(lake), split_size=split_size, step_bytes=400_000)
            if number % 3 == 2:
                compact(started, str(lake), target_bytes=1 << 20, grace_s=GRACE_S)
        except StoreError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            time.sleep(0.05)


def finish(store: Path, lake: Path, ledger: Path) -> None:
    """Close the store cleanly and archive the rest."""
    open_small(store).close()
    archive(store, lake, ledger, rounds=1, split_size="4m")


if __name__ == "__main__":
    role, *paths = sys.argv[1:]
    {"write": write, "archive": archive, "spark": spark, "finish": finish}[role](*map(Path, paths))
