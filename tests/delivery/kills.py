"""A process that uses delay levels, timed messages, retries and transactions until it is killed. Run it as a module:

    python -m tests.delivery.kills STORE SEED

It prints one line before and after each step, so that the test that kills it knows what must be in the store. `put N`
is printed before a put, `ok N DUE` after it; N is the body. A transaction puts several messages: `begin N M`,
`commit N M`, `done N M`, or `abort N M`. A consumed message is processed after `took N`, or it fails: `failed N DUE`.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from mqlake import MessageStore, StoreConfig
from tests.delivery.later import order
from tests.helpers import open_small

LEVELS = StoreConfig(delay_levels="1s 1s 1s 2s")
RETRY_MS = 1_000
"""The delay of level 3, which is that of the first retry."""
SPREAD_MS = 400
GROUP = "workers"


def open_store(path: Path) -> MessageStore:
    return open_small(path, config=LEVELS)


def report(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())  # one call for each line, so that a kill leaves whole lines


class Worker:
    """Runs random steps, one after the other."""

    def __init__(self, store: MessageStore, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._number = seed * 100_000

    def _next(self) -> int:
        self._number += 1
        return self._number

    def step(self) -> None:
        getattr(self, self._random.choice(["time", "time", "level", "transact", "fail", "cancel"]))()

    def time(self) -> None:
        number, due_ms = self._next(), time.time_ns() // 1_000_000 + self._random.randrange(SPREAD_MS)
        report("put", number)
        self._store.put(order(b"%d" % number, deliver_at=due_ms))
        report("ok", number, due_ms)

    def cancel(self) -> None:
        number = self._next()
        report("put", number)
        receipt = self._store.put(order(b"%d" % number, deliver_at=time.time_ns() // 1_000_000 + 60_000))
        report("try", number)
        self._store.cancel(receipt)
        report("cancelled", number)

    def level(self) -> None:
        number = self._next()
        report("put", number)
        receipt = self._store.put(order(b"%d" % number, delay_level=1))
        report("ok", number, receipt.store_timestamp + 1_000)

    def fail(self) -> None:
        """Consume, and fail some messages. After a kill, uncommitted ones are delivered again, and may fail again."""
        with self._store.consumer(GROUP, "orders", idle_s=0) as consumer:
            for message in consumer.poll(0, limit=3):
                if message.reconsume_times == 0 and self._random.random() < 0.5:
                    began_ms = time.time_ns() // 1_000_000
                    consumer.fail(message)
                    report("failed", int(message.body), began_ms + RETRY_MS)
                report("took", int(message.body))

    def transact(self) -> None:
        numbers = [self._next() for _ in range(self._random.randrange(1, 4))]
        report("begin", *numbers)
        with self._store.transaction() as transaction:
            for number in numbers:
                transaction.put(order(b"%d" % number))
            if self._random.random() < 0.3:
                report("abort", *numbers)
                transaction.rollback()
                return
            report("commit", *numbers)
        report("done", *numbers)


def main(path: str, seed: str) -> None:
    with open_store(Path(path)) as store:
        worker = Worker(store, int(seed))
        report("opened")
        while True:
            worker.step()
            time.sleep(0.002)


if __name__ == "__main__":
    main(*sys.argv[1:])
