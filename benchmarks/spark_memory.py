"""Memory of a large read: many stores, all columns, in a driver of 1 GiB.

Run as a program: `python -m benchmarks.spark_memory DIRECTORY [mib=8192] [body=180]`. It reads one store of 1 GiB and
as many hard-linked copies as `mib` needs, so that every byte comes from a different store. Prints one JSON line: the
peak resident MB of the JVM and of the largest worker, pages of mapped files included, and the seconds.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path

import psutil

from benchmarks.result import tell
from benchmarks.spark import to_noop
from benchmarks.spark_store import local_session, store_in
from benchmarks.turns import settings_of

SAMPLE_S = 0.1


class Peaks(threading.Thread):
    """Sample the memory of the processes below this one until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stopped = threading.Event()
        self.jvm = self.worker = 0

    def run(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            for process in psutil.Process().children(recursive=True):
                try:
                    resident, is_jvm = process.memory_info().rss, process.name() == "java"
                except psutil.Error:  # it has just ended
                    continue
                if is_jvm:
                    self.jvm = max(self.jvm, resident)
                else:
                    self.worker = max(self.worker, resident)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def fleet(directory: Path, mib: int, body: int) -> list[str]:
    first = store_in(directory, {"mib": min(mib, 1024), "body": body})
    stores = [str(first)]
    for number in range(1, max(1, mib // 1024)):
        copy = directory / f"linked-{body}-{number}"
        if not copy.exists():
            shutil.copytree(first, copy, copy_function=os.link)
        stores.append(str(copy))
    return stores


def main(arguments: list[str]) -> None:
    directory, *rest = arguments
    settings = settings_of(rest, mib=8192)
    stores = fleet(Path(directory), settings["mib"], settings["body"])
    spark = local_session(spark_driver_memory="1g")
    peaks = Peaks()
    peaks.start()
    began = time.perf_counter()
    to_noop(spark.read.format("mqlake").load(stores))
    took = time.perf_counter() - began
    peaks.stop()
    spark.stop()
    tell({"jvmMb": peaks.jvm / 1e6, "workerMb": peaks.worker / 1e6, "seconds": took})


if __name__ == "__main__":
    main(sys.argv[1:])
