"""The workloads on mqlake's own store. Run as a program: `python -m benchmarks.ours WORKLOAD STORE [name=value …]`.

Each run is a separate process, like the JVM, and prints one JSON line. Each message has a tag and a key of its own and
goes to one of four queues of one topic. Every message is a new object, as in a real service.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from benchmarks.machine import resident_mb
from benchmarks.result import tell
from mqlake import FlushConfig, Message, MessageStore
from mqlake.store.writer import Writer

TOPIC = "bench"
SYNC = FlushConfig(sync=True)


def key(number: int) -> str:
    return f"key-{number:010d}"


def timed(count: int, work: Callable[[], None]) -> float:
    """Return how many times per second the work was done."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def warm_up(work: Callable[[], None], seconds: float = 2.0) -> None:
    """Repeat the work for as long as the other side warms up: its pages are mapped and its code is compiled then."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        work()


class LagWatch:
    """Track the largest dispatch lag, in bytes, while a workload runs."""

    def __init__(self, store: MessageStore) -> None:
        self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(store,), daemon=True)

    def _run(self, store: MessageStore) -> None:
        while not self._stop.wait(0.02):
            self.most = max(self.most, store.stats().dispatch_lag_bytes)

    def __enter__(self) -> LagWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def put(path: Path, count: int, body: int) -> dict[str, Any]:
    """Put one message per call, with one thread and async flush."""
    content = random.randbytes(body)
    with MessageStore.open(path) as store:

        def work(number: int) -> None:
            for i in range(number):
                store.put(Message(TOPIC, content, tags="TagA", keys=key(i)))

        work(min(count, 50_000))
        with LagWatch(store) as lag:
            rate = timed(count, lambda: work(count))
        return {
            "rate": rate,
            "residentMb": resident_mb(),
            "maxLagBytes": lag.most,
            "bytesPerSecond": rate * (body + 130),
        }


def put_many(path: Path, count: int, body: int, batch: int) -> dict[str, Any]:
    """Put batches, with one thread and async flush."""
    content = random.randbytes(body)
    with MessageStore.open(path) as store:

        def work() -> None:
            for start in range(0, count, batch):
                store.put_many([Message(TOPIC, content, tags="TagA", keys=key(start + i)) for i in range(batch)])

        return {"rate": timed(count, work)}


def put_sync(path: Path, count: int, body: int, threads: int) -> dict[str, Any]:
    """Put with many threads and sync flush: every put waits for its sync."""
    content = random.randbytes(body)
    with MessageStore.open(path, flush=SYNC) as store:

        def producer() -> None:
            for i in range(count // threads):
                store.put(Message(TOPIC, content, tags="TagA", keys=key(i)))

        def work() -> None:
            producers = [threading.Thread(target=producer) for _ in range(threads)]
            for thread in producers:
                thread.start()
            for thread in producers:
                thread.join()

        return {"rate": timed(count, producer if threads == 1 else work)}


def put_tasks(path: Path, count: int, body: int, tasks: int) -> dict[str, Any]:
    """Put with asyncio tasks and sync flush."""
    content = random.randbytes(body)
    with MessageStore.open(path, flush=SYNC) as store:

        async def producer() -> None:
            for i in range(count // tasks):
                await store.put_async(Message(TOPIC, content, tags="TagA", keys=key(i)))

        async def main() -> None:
            await asyncio.gather(*[producer() for _ in range(tasks)])

        return {"rate": timed(count, lambda: asyncio.run(main()))}


def sqlite(path: Path, count: int, body: int) -> dict[str, Any]:
    """Insert into SQLite, WAL, synchronous=FULL, one insert per commit."""
    path.mkdir(parents=True)
    content = random.randbytes(body)
    base = sqlite3.connect(path / "queue.db", isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table q (id integer primary key, key text, tag text, body blob)")

    def work() -> None:
        for i in range(count):
            base.execute("insert into q (key, tag, body) values (?, 'TagA', ?)", (key(i), content))

    rate = timed(count, work)
    base.close()
    return {"rate": rate}


def prepare(path: Path, count: int, body: int) -> dict[str, Any]:
    """Write a store to read from."""
    with MessageStore.open(path) as store:
        content = random.randbytes(body)
        for start in range(0, count, 100):
            store.put_many([Message(TOPIC, content, tags="TagA", keys=key(start + i)) for i in range(100)])
    return {}


def crash(path: Path, mib: int, since: int) -> dict[str, Any]:
    """Grow a store to this many MiB, write a checkpoint, append `since` MiB more, and die."""
    content = random.randbytes(1024)
    store = MessageStore.open(path)

    def grow(end: int) -> None:
        while store.end_offset < end:
            start = store.end_offset
            store.put_many([Message(TOPIC, content, tags="TagA", keys=key(start + i)) for i in range(1000)])

    grow(mib << 20)
    store.wait_dispatched(600)
    cast(Writer, store._writing).write_checkpoint()
    grow(store.end_offset + (since << 20))
    store.wait_dispatched(600)
    tell({})
    os._exit(0)


def reopen(path: Path) -> dict[str, Any]:
    """Return the seconds to open a store that was not closed. This call does not close it either."""
    began = time.perf_counter()
    store = MessageStore.open(path)
    took = time.perf_counter() - began
    found = store.recovery
    assert found is not None
    report = {"rate": took, "walked": found.walked_count, "reason": found.reason}
    tell(report)
    os._exit(0)


def read(path: Path, count: int) -> dict[str, Any]:
    """Read batches of 32 as Python objects, over all queues from the start, again and again."""
    with MessageStore.open(path) as store:
        ends = {queue.queue_id: queue.end_offset for queue in store.queues(TOPIC)}

        def work() -> None:
            done = 0
            while done < count:
                for queue_id, end in ends.items():
                    start = 0
                    while start < end and done < count:
                        batch = store.read(TOPIC, queue_id=queue_id, start=start, limit=32)
                        start += len(batch)
                        done += len(batch)

        work()
        return {"rate": timed(count, work)}


def query(path: Path, count: int) -> dict[str, Any]:
    """Look up random keys, each of one message."""
    with MessageStore.open(path) as store:
        messages = sum(queue.message_count for queue in store.queues(TOPIC))

        def some_keys() -> list[str]:
            return [key(random.randrange(messages)) for _ in range(count)]

        def work(keys: list[str]) -> None:
            for wanted in keys:
                found = store.find(TOPIC, wanted, limit=32)
                assert found, "every key was written"

        warm_up(lambda: work(some_keys()))
        keys = some_keys()
        return {"rate": timed(count, lambda: work(keys))}


def seek(path: Path, count: int) -> dict[str, Any]:
    """Look up random times of the store's life."""
    with MessageStore.open(path) as store:
        end = store.queues(TOPIC)[0].end_offset
        first = store.read(TOPIC, start=0, limit=1)[0].store_timestamp
        last = store.read(TOPIC, start=end - 1, limit=1)[0].store_timestamp

        def work() -> None:
            for i in range(count):
                store.seek_time(TOPIC, random.randint(first, last), queue_id=i % 4)

        return {"rate": timed(count, work)}


def scan(path: Path, count: int) -> dict[str, Any]:
    """Return the MB per second of a scan of the whole log into Arrow: all columns, CRC checked, one core."""
    with MessageStore.open(path, read_only=True) as store:
        size = store.end_offset - store.first_offset
        for _ in store.scan(columns=["size"]):
            pass  # so that the pages are in memory, as in the other workloads
        rows = 0
        began = time.perf_counter()
        for _ in range(count):
            for batch in store.scan():
                rows += batch.num_rows
        return {"rate": count * size / 1e6 / (time.perf_counter() - began), "rows": rows}


def first_put(path: Path) -> dict[str, Any]:
    """Return the seconds that a fresh interpreter takes to import, open an empty store and make one durable put.

    Modules are compiled before, as they are for everyone who has imported mqlake once.
    """
    program = (
        "import sys, time; began = time.perf_counter()\n"
        "from mqlake import Durability, Message, MessageStore\n"
        "store = MessageStore.open(sys.argv[1])\n"
        "store.put(Message('t', b'first'), durability=Durability.DISK)\n"
        "print(time.perf_counter() - began)\n"
        "store.close()"
    )
    command = [sys.executable, "-c", program]
    subprocess.run([*command, f"{path}-0"], capture_output=True, check=True)
    result = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
    shutil.rmtree(f"{path}-0")
    return {"rate": float(result.stdout)}


WORKLOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "put": put,
    "put_many": put_many,
    "put_sync": put_sync,
    "put_tasks": put_tasks,
    "sqlite": sqlite,
    "prepare": prepare,
    "crash": crash,
    "reopen": reopen,
    "read": read,
    "query": query,
    "seek": seek,
    "scan": scan,
    "first_put": first_put,
}


def main(arguments: list[str]) -> None:
    workload, path, *options = arguments
    numbers = {name: int(value) for name, value in (option.split("=") for option in options)}
    tell(WORKLOADS[workload](Path(path), **numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
