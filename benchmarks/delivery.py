"""The workloads of delivery. Run as a program: `python -m benchmarks.delivery WORKLOAD STORE [name=value …]`.

Each run is a separate process and prints one JSON line.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import resident_mb
from benchmarks.result import tell
from mqlake import CommitLogConfig, Message, MessageStore

TOPIC = "bench"
COMMIT_EVERY = 32


def prepare(path: Path, count: int, body: int) -> dict[str, Any]:
    """Write messages to four queues. One in a hundred has the tag `hot`."""
    with MessageStore.open(path) as store:
        store.create_topic(TOPIC, 4)
        content = random.randbytes(body)
        tags = ["hot", *["cold"] * 99]
        for _ in range(0, count, 100):
            store.put_many([Message(TOPIC, content, tags=tag) for tag in tags])
    return {}


def consume(path: Path, count: int) -> dict[str, Any]:
    """Consume with one group and one consumer, message by message, with a commit after every 32."""
    with MessageStore.open(path) as store:
        _consume(store, "warm", count)
        began, began_cpu = time.perf_counter(), time.process_time()
        done = _consume(store, "bench", count)
        took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        return {"rate": done / took, "perCpuSecond": done / cpu}


def _consume(store: MessageStore, group: str, count: int) -> int:
    done = 0
    with store.consumer(group, TOPIC, auto_commit=False, idle_s=0) as consumer:
        consumer.reset("first")
        for _ in consumer:
            done += 1
            if done % COMMIT_EVERY == 0:
                consumer.commit()
                if done >= count:
                    break
    return done


def tag_filter(path: Path, count: int) -> dict[str, Any]:
    """Return how many queue entries per second the filter examines; it selects and reads one in a hundred."""
    with MessageStore.open(path) as store:
        seen, entries = 0, 0
        began, began_cpu = time.perf_counter(), time.process_time()
        while entries < count:
            with store.consumer("bench", TOPIC, filter="hot", progress="memory", idle_s=0) as consumer:
                seen += sum(1 for _ in consumer)
            entries += sum(queue.message_count for queue in store.queues(TOPIC))
        took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        assert seen * 100 == entries, f"{seen} of {entries}"
        return {"rate": entries / took, "perCpuSecond": entries / cpu}


def make_topics(path: Path, topics: int, queues: int, step: int = 250) -> dict[str, Any]:
    """Make many topics with a message in every queue, in steps: a process can open only so many files."""
    for first in range(0, topics, step):
        with MessageStore.open(path, commit_log=CommitLogConfig(file_size_bytes=64 << 20)) as store:
            for number in range(first, min(first + step, topics)):
                name = f"topic-{number:05d}"
                store.put_many([Message(name, b"x", queue_id=queue_id) for queue_id in range(queues)])
            store.wait_dispatched(600)
    return {}


def open_topics(path: Path, queues: int) -> dict[str, Any]:
    """Return the seconds until a store of many topics is open, and the memory per queue, with no queue touched."""
    MessageStore.open(path.with_name("empty")).close()  # so that the cost of a first store is not counted
    gc.collect()
    before = resident_mb()
    began, began_cpu = time.perf_counter(), time.process_time()
    store = MessageStore.open(path)
    took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    gc.collect()
    each = (resident_mb() - before) * 1e6 / queues
    store.close()
    return {"rate": took, "cpuSeconds": cpu, "bytesPerQueue": each}


WORKLOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": prepare,
    "consume": consume,
    "tag_filter": tag_filter,
    "make_topics": make_topics,
    "open_topics": open_topics,
}


def main(arguments: list[str]) -> None:
    workload, path, *options = arguments
    numbers = {name: int(value) for name, value in (option.split("=") for option in options)}
    tell(WORKLOADS[workload](Path(path), **numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
