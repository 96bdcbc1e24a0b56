"""What `mqlake bench store` measures: each operation of a store for a few seconds, on files of 256 MiB."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqlake import CommitLogConfig, FlushConfig, IndexConfig, Message, MessageStore
from mqlake.cli import show

TOPIC = "bench"
QUEUE_COUNT = 4
BATCH_BYTES = 256 * 1024
READ_LIMIT = 32
KEY_EVERY = 16
"""One message in so many has a key: each key costs an index entry."""
WARM_UP_S = 0.1

Call = Callable[[], int]
"""Runs one operation; returns how many messages it handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one operation."""

    operation: str
    message_count: int
    message_bytes: int
    took_s: float
    latencies_ns: list[int]

    def quantile_us(self, share: float) -> float:
        return self.latencies_ns[min(len(self.latencies_ns) - 1, int(len(self.latencies_ns) * share))] / 1000

    def as_row(self) -> tuple[str, ...]:
        per_second = self.message_count / self.took_s
        return (
            self.operation,
            show.count(round(per_second)),
            f"{per_second * self.message_bytes / (1 << 20):,.1f}" if self.message_bytes else "",
            show.count(round(len(self.latencies_ns) / self.took_s)),
            *(_microseconds(self.quantile_us(share)) for share in (0.5, 0.99, 1)),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "messagesPerSecond": round(self.message_count / self.took_s),
            "callsPerSecond": round(len(self.latencies_ns) / self.took_s),
            "bodyBytes": self.message_bytes,
            "p50Microseconds": self.quantile_us(0.5),
            "p99Microseconds": self.quantile_us(0.99),
            "maxMicroseconds": self.quantile_us(1),
        }


class StoreBench:
    """Puts messages first, then reads them."""

    def __init__(self, path: Path, seconds: float, body_bytes: int, threads: int, *, sync: bool) -> None:
        self._path = path
        self._seconds = seconds
        self._body = random.Random(1).randbytes(body_bytes)
        self._threads = threads
        self._sync = sync
        self._key_count = 0
        self._end_ns = 0
        """When the calls that are being measured end. Threads read it, so that an interrupt can end them at once."""

    def run(self) -> list[Result]:
        size = max(256 << 20, 4 * len(self._body))
        with MessageStore.open(
            self._path,
            commit_log=CommitLogConfig(file_size_bytes=size, max_message_bytes=max(4 << 20, len(self._body))),
            index=IndexConfig(slot_count=1_000_000, entry_count=4_000_000),
            flush=FlushConfig(sync=self._sync),
        ) as store:
            results = self._puts(store)
            store.wait_dispatched()
            return results + self._reads(store)

    def _puts(self, store: MessageStore) -> list[Result]:
        batch_count = max(2, min(256, BATCH_BYTES // (len(self._body) + 100)))

        def put() -> int:
            store.put(self._message())
            return 1

        def put_many() -> int:
            store.put_many([self._message() for _ in range(batch_count)])
            return batch_count

        return [
            self._measure("put", put, len(self._body), self._threads),
            self._measure(f"put_many of {batch_count}", put_many, len(self._body), self._threads),
        ]

    def _message(self) -> Message:
        self._key_count += 1
        keys = f"k{self._key_count // KEY_EVERY}" if self._key_count % KEY_EVERY == 0 else ()
        return Message(TOPIC, self._body, tags="bench", keys=keys)

    def _reads(self, store: MessageStore) -> list[Result]:
        chosen = random.Random(2)
        queue = store.queues(TOPIC)[0]
        first, last = (store.read(TOPIC, start=at, limit=1)[0] for at in (queue.first_offset, queue.end_offset - 1))
        position = queue.first_offset

        def read() -> int:
            nonlocal position
            messages = store.read(TOPIC, start=position, limit=READ_LIMIT)
            position = position + len(messages) if messages else queue.first_offset
            return len(messages)

        def find() -> int:
            return len(store.find(TOPIC, f"k{chosen.randrange(1, max(2, self._key_count // KEY_EVERY))}"))

        def seek_time() -> int:
            store.seek_time(TOPIC, chosen.randint(first.store_timestamp, last.store_timestamp))
            return 1

        return [
            self._measure(f"read of {READ_LIMIT}", read, len(self._body)),
            self._measure("find by key", find, 0),
            self._measure("seek_time", seek_time, 0),
        ]

    def _measure(self, operation: str, call: Call, message_bytes: int, threads: int = 1) -> Result:
        """Call the operation from several threads for the given time, and record the duration of each call.

        The threads have ended when this returns or raises: the store and its folder go next.
        """
        self._end_after(min(WARM_UP_S, self._seconds / 10))
        self._repeat(call)
        with show.progress(f"measuring {operation}", None), ThreadPoolExecutor(threads) as pool:
            try:
                began = time.perf_counter()
                self._end_after(self._seconds)
                workers = [pool.submit(self._repeat, call) for _ in range(threads)]
                done = [worker.result() for worker in workers]
                took = time.perf_counter() - began
            finally:
                self._end_ns = 0
        return Result(
            operation=operation,
            message_count=sum(messages for messages, _ in done),
            message_bytes=message_bytes,
            took_s=took,
            latencies_ns=sorted(latency for _, latencies in done for latency in latencies),
        )

    def _end_after(self, seconds: float) -> None:
        self._end_ns = time.perf_counter_ns() + int(seconds * 1e9)

    def _repeat(self, call: Call) -> tuple[int, list[int]]:
        messages = 0
        latencies = []
        now = time.perf_counter_ns()
        while now < self._end_ns:
            messages += call()
            after = time.perf_counter_ns()
            latencies.append(after - now)
            now = after
        return messages, latencies


def _microseconds(number: float) -> str:
    return f"{number:,.1f} µs" if number < 1_000 else f"{number / 1_000:,.2f} ms"
