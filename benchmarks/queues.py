"""Very many queues in a process of few descriptors. Run as `python -m benchmarks.queues WORKLOAD STORE [name=value …]`.

Each run is a process of its own, under `ulimit -n 1024`, and prints one JSON line. The store has small files, so that
figures are those of the queues: each queue's first file is made, and it holds a few messages.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import resident_mb
from benchmarks.result import tell
from mqlake import CommitLogConfig, ConsumeQueueConfig, IndexConfig, Message, MessageStore
from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.files.layout import Layout
from mqlake.files.names import file_name
from mqlake.files.positions import APPENDED, DISPATCHED, Positions
from mqlake.kernel import write_to_files

DESCRIPTORS = 1024
BODY = bytes(100)
BATCH = 1000
QUEUES_PER_TOPIC = 4
SETTINGS: dict[str, Any] = {
    "commit_log": CommitLogConfig(file_size_bytes=64 << 20),
    "consume_queue": ConsumeQueueConfig(file_size_bytes=20_000, queues_per_topic=QUEUES_PER_TOPIC),
    "index": IndexConfig(enabled=False),
}


def fill(path: Path, queues: int, count: int) -> dict[str, Any]:
    """Make a store: `count` messages over `queues` queues, one queue after the other, round after round."""
    with MessageStore.open(path, **SETTINGS) as store:
        began = time.perf_counter()
        _put(store, queues, count)
        put = time.perf_counter() - began
        _settle(store)
        dispatched = time.perf_counter() - began
        most, began = _descriptors(), time.perf_counter()
    return {
        "rate": count / dispatched,
        "putRate": count / put,
        "closeSeconds": time.perf_counter() - began,
        "descriptors": most,
    }


def again(path: Path, queues: int, count: int) -> dict[str, Any]:
    """Put `count` messages to `queues` queues of a store that has them; messages a second, put and dispatched.

    A round before that has the writer learn of the topics, which reads their set-up once.
    """
    with MessageStore.open(path, **SETTINGS) as store:
        _put(store, queues, queues)
        _settle(store)
        began = time.perf_counter()
        _put(store, queues, count)
        put = time.perf_counter() - began
        _settle(store)
        return {"rate": count / (time.perf_counter() - began), "putRate": count / put, "descriptors": _descriptors()}


def bare(path: Path, queues: int, count: int) -> dict[str, Any]:
    """Only open, write and close the queue file of each message, in the kernel: what a file for each queue costs.

    Writes where the files hold zeros, so the store stays as it is.
    """
    folder = Layout(path).consume_queues
    files = [f"{folder}/{topic}/{queue_id}/{file_name(0)}".encode() for topic, queue_id in map(_queue, range(queues))]
    at, zeros = SETTINGS["consume_queue"].file_size_bytes - ENTRY_SIZE, bytes(ENTRY_SIZE)
    began = time.perf_counter()
    for _ in range(count // queues):
        assert write_to_files(files, [at] * queues, [zeros] * queues) == (queues, 0), "each has its first file"
    return {"rate": count / (time.perf_counter() - began)}


def reopen(path: Path, queues: int) -> dict[str, Any]:
    """Seconds until a store that was closed cleanly is open; memory a queue, before and after each was read once."""
    before = resident_mb()
    began = time.perf_counter()
    with MessageStore.open(path, **SETTINGS) as store:
        took = time.perf_counter() - began
        opened = resident_mb()
        _read_all(store, queues)
        return {
            "rate": took,
            "bytesPerQueueOpened": (opened - before) * (1 << 20) / queues,
            "bytesPerQueueRead": (resident_mb() - before) * (1 << 20) / queues,
            "descriptors": _descriptors(),
        }


def follow(path: Path, queues: int) -> dict[str, Any]:
    """The same for a reader: seconds to open, to list all ranges, and to read a message of each queue."""
    before = resident_mb()
    began = time.perf_counter()
    with MessageStore.open(path, read_only=True, **SETTINGS) as store:
        took = time.perf_counter() - began
        began = time.perf_counter()
        ranges = [found for topic in store.topics() for found in store.queues(topic)]
        listed = time.perf_counter() - began
        assert len(ranges) == queues, f"{len(ranges)} queues"
        began = time.perf_counter()
        _read_all(store, queues)
        return {
            "rate": took,
            "listSeconds": listed,
            "readSeconds": time.perf_counter() - began,
            "bytesPerQueueRead": (resident_mb() - before) * (1 << 20) / queues,
            "descriptors": _descriptors(),
        }


def _queue(number: int) -> tuple[str, int]:
    return f"topic-{number // QUEUES_PER_TOPIC:06d}", number % QUEUES_PER_TOPIC


def _put(store: MessageStore, queues: int, count: int) -> None:
    for start in range(0, count, BATCH):
        numbers = (number % queues for number in range(start, min(count, start + BATCH)))
        store.put_many([Message(topic, BODY, queue_id=queue_id) for topic, queue_id in map(_queue, numbers)])


def _settle(store: MessageStore) -> None:
    """Wait until all is dispatched, by a look that costs nothing: statistics have a line a topic."""
    positions = Positions.open(Layout(store.path).positions)
    assert positions is not None, "the writer keeps them"
    while positions.words[DISPATCHED] < positions.words[APPENDED]:
        time.sleep(0.002)


def _read_all(store: MessageStore, queues: int) -> None:
    for number in range(queues):
        topic, queue_id = _queue(number)
        assert store.read(topic, queue_id=queue_id, start=0, limit=1), f"{topic}, queue {queue_id} is empty"


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


WORKLOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "fill": fill,
    "again": again,
    "bare": bare,
    "reopen": reopen,
    "follow": follow,
}


def main(arguments: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    workload, path, *options = arguments
    numbers = {name: int(value) for name, value in (option.split("=") for option in options)}
    tell(WORKLOADS[workload](Path(path), **numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
