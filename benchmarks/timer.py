"""A million timed messages. Run as a program: `python -m benchmarks.timer WORKLOAD STORE [name=value …]`.

Each run is a separate process and prints one JSON line.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import resident_mb
from benchmarks.result import tell
from mqlake import Message, MessageStore

BODY = bytes(200)
PUTS = 20_000
ROUNDS = 21
HOUR_MS = 3_600_000


def pending(path: Path, count: int) -> dict[str, Any]:
    """Measure a put with `count` timed messages pending and with none; also their own put rate and their memory."""
    with MessageStore.open(path.with_name("beside")) as other, MessageStore.open(path) as store:
        before = resident_mb()
        base_ms = time.time_ns() // 1_000_000 + HOUR_MS
        began, began_cpu = time.perf_counter(), time.thread_time()
        for number in range(count):
            store.put(Message("timed", BODY, queue_id=0, deliver_at=base_ms + number * 7_919 % HOUR_MS))
        took, cpu = time.perf_counter() - began, time.thread_time() - began_cpu
        while len(store.delivery.require_scheduler().timer()) < count:
            time.sleep(0.05)
        memory = resident_mb() - before
        costs = [(_put_cost(other), _put_cost(store)) for _ in range(ROUNDS)]
        free, beside = (statistics.median(column) for column in zip(*costs[1:], strict=True))
        began = time.perf_counter()
        store.close()
        closed = time.perf_counter() - began
    return {
        "putUs": 1e6 * free,
        "putUsBeside": 1e6 * beside,
        "rate": beside / free,
        "timedPutRate": count / took,
        "timedPutUs": 1e6 * cpu / count,
        "memoryMb": memory,
        "closeSeconds": closed,
    }


def _put_cost(store: MessageStore) -> float:
    """Return the CPU seconds per put of the calling thread. Other load on the machine does not count."""
    began = time.thread_time()
    for _ in range(PUTS):
        store.put(Message("plain", BODY, queue_id=0))
    return (time.thread_time() - began) / PUTS


def reopen(path: Path, count: int) -> dict[str, Any]:
    """Return the seconds until the store is open and knows its pending messages, and the memory that takes."""
    before = resident_mb()
    began, began_cpu = time.perf_counter(), time.process_time()
    store = MessageStore.open(path)
    assert len(store.delivery.require_scheduler().timer()) == count
    took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    memory = resident_mb() - before
    store.close()
    return {"rate": took, "cpuSeconds": cpu, "memoryMb": memory}


def late(path: Path, count: int, rate: int, seconds: int) -> dict[str, Any]:
    """Return how late messages are: `rate` are due in each second, and `count` are pending in total."""
    with MessageStore.open(path) as store:
        due = rate * seconds
        far_ms = time.time_ns() // 1_000_000 + 24 * HOUR_MS
        for number in range(count - due):
            store.put(Message("timed", BODY, queue_id=0, deliver_at=far_ms + number))
        start_ms = time.time_ns() // 1_000_000 + 5_000 + due // 4
        draw = random.Random(7)
        moments = [start_ms + draw.randrange(1000 * seconds) for _ in range(due)]
        for moment in moments:
            store.put(Message("due", BODY, queue_id=0, deliver_at=moment))
        assert time.time_ns() // 1_000_000 < start_ms, "the machine is too slow to put them before they are due"
        began_cpu = time.process_time()
        lateness: list[int] = []
        while len(lateness) < due:
            time.sleep(0.2)
            for message in store.read("due", start=len(lateness), limit=50_000) if "due" in store.topics() else ():
                lateness.append(message.store_timestamp - int(message.properties["TIMER_DELIVER_MS"]))
        cpu = time.process_time() - began_cpu
    lateness.sort()
    assert lateness[0] >= 0, "delivered too early"
    return {"rate": lateness[-1], "p99Ms": lateness[len(lateness) * 99 // 100], "cpuShare": cpu / seconds}


WORKLOADS: dict[str, Callable[..., dict[str, Any]]] = {"pending": pending, "reopen": reopen, "late": late}


def main(arguments: list[str]) -> None:
    workload, path, *options = arguments
    numbers = {name: int(value) for name, value in (option.split("=") for option in options)}
    tell(WORKLOADS[workload](Path(path), **numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
