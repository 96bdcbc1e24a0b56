"""The program that is killed, cut off and starved: four threads put messages and note what they were promised.

    python -m mqlake.torture.writer STORE LEDGER PLAN        PLAN: the fields of `Plan` as JSON

It notes each put before it begins and each acknowledgement when it gets it (`ledger.py`). So whatever happens to this
process, the ledger holds every promise and names every put. It exits without closing the store, as in a crash, unless
the plan says otherwise.
"""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mqlake import (
    CommitLogConfig,
    ConsumeQueueConfig,
    DiskFull,
    Durability,
    FileFailed,
    FlushConfig,
    FlushTimeout,
    IndexConfig,
    MessageStore,
    PoolConfig,
    PutReceipt,
    StoreClosed,
    StoreConfig,
    StoreError,
    StoreFailed,
)
from mqlake.torture.ledger import LIFE, NEVER, LedgerWriter, message_of, number_of

THREADS = 4
BATCH = 3
MODES = ("sync", "async", "pool")
RETRY_S = 0.02
PR_SET_PDEATHSIG = 1
TRIES_AFTER_FAILURE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one writer process does."""

    mode: str = "sync"
    life: int = 0
    """Which writer of this store this is: each life has its own numbers."""
    messages: int = 1_000_000
    """At most this many for each thread and session."""
    sessions: int = 1
    """How often it opens the store. It closes the store between two sessions."""
    close_after_ms: int | None = None
    """Close the last session after this long, while the threads put. None: put all messages, and do not close."""
    closes: bool = False
    """Also close the last session, after all puts."""
    disk_every: int = 0
    """Every Nth put waits for the disk, whatever the mode. 0: none does."""
    log_bytes: int = 16384
    checkpoint_ms: int = 30
    pause_ms: int = 0
    patient: bool = False
    """Retry for as long as the disk is full."""

    def config(self) -> StoreConfig:
        """Return settings with small files, so that rolls, checkpoints and commits happen all the time."""
        return StoreConfig(
            commit_log=CommitLogConfig(file_size_bytes=self.log_bytes),
            consume_queue=ConsumeQueueConfig(file_size_bytes=2000),
            index=IndexConfig(slot_count=100, entry_count=400),
            flush=FlushConfig(
                sync=self.mode == "sync",
                interval_ms=20,
                thorough_interval_ms=100,
                queue_interval_ms=min(10, self.checkpoint_ms),
                queue_thorough_interval_ms=self.checkpoint_ms,
            ),
            pool=PoolConfig(enabled=self.mode == "pool", commit_interval_ms=20, commit_thorough_interval_ms=20),
        )


@contextmanager
def running_writer(
    store: Path, ledger: Path, plan: Plan, env: dict[str, str] | None = None, *, errors: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a writer that is killed when the block ends. Its standard error goes to a file."""
    command = [sys.executable, "-m", "mqlake.torture.writer", str(store), str(ledger)]
    with errors.open("ab") as file:
        writer = subprocess.Popen([*command, json.dumps(dataclasses.asdict(plan))], env=env, stdout=file, stderr=file)
    try:
        yield writer
    finally:
        writer.kill()
        writer.wait()


class Session:
    """One opening of the store, with the threads that put into it."""

    def __init__(self, store: MessageStore, ledger: LedgerWriter, plan: Plan, session: int) -> None:
        self._store = store
        self._ledger = ledger
        self._plan = plan
        self._first = plan.life * LIFE + session * (LIFE // 10)
        self.failed = False

    def run(self) -> None:
        threads = [threading.Thread(target=self._write, args=(index,), daemon=True) for index in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _write(self, index: int) -> None:
        """Put the numbers of one thread: sometimes a batch, sometimes one that waits for the disk."""
        number = self._first + index * (LIFE // 100)
        last = number + self._plan.messages
        tries = 0
        while number < last and tries < TRIES_AFTER_FAILURE:
            numbers = [number, number + 1, number + 2] if number % 16 == 15 else [number]
            tries += not self._put(numbers, index)
            number += len(numbers)
            if self._plan.pause_ms:
                time.sleep(self._plan.pause_ms / 1000)

    def _put(self, numbers: list[int], index: int) -> bool:
        """Put one message or a batch. Return False if the store accepts no more."""
        self._ledger.begin(numbers)
        while True:
            try:
                self._ledger.acknowledge(numbers, self._receipts(numbers, index))
                return True
            except DiskFull as error:
                self._ledger.refuse(numbers[0], error)
                if not self._plan.patient:
                    return False
                time.sleep(RETRY_S)
            except FileFailed as error:  # the next log file could not be made: typed, and nothing was promised
                self._ledger.refuse(numbers[0], error)
                return False
            except StoreClosed:
                return False
            except FlushTimeout as error:  # a slow disk: the put promised nothing
                self._ledger.refuse(numbers[0], error)
                return True
            except StoreFailed as error:
                self.failed = True
                self._ledger.refuse(numbers[0], error)
                return False
            except Exception as error:
                self._ledger.complain(f"put raised {type(error).__name__}: {error}")
                return False

    def _receipts(self, numbers: list[int], index: int) -> list[PutReceipt]:
        messages = [message_of(number) for number in numbers]
        every = self._plan.disk_every
        durability = Durability.DISK if every and numbers[0] % every == 0 else None
        if len(messages) > 1:
            return self._store.put_many(messages, durability=durability)
        if index == 0:
            return [asyncio.run(self._store.put_async(messages[0], durability=durability))]
        return [self._store.put(messages[0], durability=durability)]

    def read_back(self) -> None:
        """Check that a store that accepts no more messages still serves those it has."""
        try:
            for topic in self._store.topics():
                for queue in self._store.queues(topic):
                    for message in self._store.read(topic, queue_id=queue.queue_id, start=queue.first_offset):
                        if number_of(message) is None:
                            self._ledger.complain(f"served a body that nobody put: {message!r}")
        except StoreError as error:
            self._ledger.complain(f"a read after the failure raised {type(error).__name__}: {error}")


def work(path: Path, ledger: LedgerWriter, plan: Plan) -> None:
    """Run all sessions of a plan."""
    for number in range(plan.sessions):
        is_last = number == plan.sessions - 1
        ledger.step("opening")
        store = MessageStore.open(path, config=plan.config(), retention=NEVER)
        ledger.step("open")
        session = Session(store, ledger, plan, number)
        if is_last and plan.close_after_ms is not None:
            threading.Thread(target=session.run, daemon=True).start()
            time.sleep(plan.close_after_ms / 1000)
        else:
            session.run()
        if session.failed:
            session.read_back()
        if is_last and not plan.closes and plan.close_after_ms is None:
            os._exit(0)
        ledger.step("closing")
        store.close()
        if not session.failed:
            ledger.step("closed")


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without the parent, nobody judges this writer
    path, ledger, plan = sys.argv[1:]
    noted = LedgerWriter(Path(ledger))
    try:
        work(Path(path), noted, Plan(**json.loads(plan)))
    except StoreError as error:
        noted.step(f"refused {type(error).__name__}")
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    os._exit(main())
