"""A master and its slave, each in a process: `python -m benchmarks.pair WORKLOAD STORE [name=value …]`.

Each run prints one JSON line. The slave's process follows the master over loopback, on the same machine and disk.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.result import tell
from mqlake import CommitLogConfig, Message, MessageStore, ReplicationConfig, RetentionConfig, Role, StoreConfig
from mqlake.kernel.types import REPLICATED
from mqlake.replication import follow
from mqlake.replication.master import Master

BODY = bytes(range(256)) * 4
SIZES = CommitLogConfig(file_size_bytes=256 << 20)
CONFIG = StoreConfig(commit_log=SIZES, retention=RetentionConfig(enabled=False))
TICK_S = 0.01
LATE_NS = 30 * 10**9


@contextmanager
def pair(path: Path, role: Role) -> Iterator[MessageStore]:
    """Open a master whose slave is attached."""
    copy = path.with_name(f"{path.name}-slave")
    replication = ReplicationConfig(role=role, listen_port=0)
    with MessageStore.open(path, config=CONFIG, replication=replication) as store, Master(store.port) as master:
        command = [sys.executable, "-m", "benchmarks.pair", "slave", str(copy), f"port={master.address[1]}"]
        slave = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            while not store.stats().slaves:
                time.sleep(0.01)
            yield store
        finally:
            slave.communicate(timeout=60)
            shutil.rmtree(copy, ignore_errors=True)


def slave(path: Path, port: int) -> dict[str, Any]:
    """Follow until the input ends."""
    with follow(path, f"127.0.0.1:{port}", config=CONFIG):
        sys.stdin.read()
    return {}


def sync(path: Path, producers: int, seconds: int) -> dict[str, Any]:
    """Messages a second that producers put, each waiting for disk and slave."""
    counts = [0] * producers
    with pair(path, Role.SYNC_MASTER) as store:
        stop_at = time.perf_counter() + seconds

        def produce(number: int) -> None:
            while time.perf_counter() < stop_at:
                store.put(Message("orders", BODY, keys=str(counts[number]), queue_id=number % 4))
                counts[number] += 1

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
        began = time.perf_counter()
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return {"rate": sum(counts) / (time.perf_counter() - began)}


def lag(path: Path, rate: int, seconds: int) -> dict[str, Any]:
    """How long after its put the slave's confirmation of a message is there, at a steady rate; milliseconds."""
    marks: SimpleQueue[tuple[int, float] | None] = SimpleQueue()
    lags: list[float] = []
    with pair(path, Role.ASYNC_MASTER) as store:
        ends = store.port.ends

        def watch() -> None:
            while (mark := marks.get()) is not None:
                ends.wait(REPLICATED, mark[0], LATE_NS)
                lags.append(1000 * (time.perf_counter() - mark[1]))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began, done = time.perf_counter(), 0
        while (now := time.perf_counter() - began) < seconds:
            while done < now * rate:
                end = store.put(Message("orders", BODY, queue_id=done % 4)).end
                done += 1
            marks.put((end, time.perf_counter()))
            time.sleep(TICK_S)
        reached = done / (time.perf_counter() - began)
        marks.put(None)
        watcher.join()
    cuts = statistics.quantiles(lags, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "rate": reached}


WORKLOADS: dict[str, Callable[..., dict[str, Any]]] = {"sync": sync, "lag": lag, "slave": slave}


def main(arguments: list[str]) -> None:
    workload, path, *options = arguments
    numbers = {name: int(value) for name, value in (option.split("=") for option in options)}
    tell(WORKLOADS[workload](Path(path), **numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
