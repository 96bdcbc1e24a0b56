"""What a writer put and what it was promised: a file outside the store, one line per event.

    P number                                                      a put begins
    A number queue_offset physical_offset durability at_ms        it was acknowledged, with this durability
    F number error                                                it was refused
    S word                                                        a step of the writer: opening, open, closing, closed
    X text                                                        the writer saw a broken promise
    n call ok|FAIL path                                           a sync, which the failsync shim notes in the same file

A message follows from its number: body, topic, queue, key and tag. So the ledger need not hold it, and the judge can
recognise what a store serves without any record of it. Each line is appended by a single write: lines are in the order
of the events, and they survive the writer.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mqlake import Durability, Message, PutReceipt, RetentionConfig, StoredMessage, StoreError

if TYPE_CHECKING:
    from mqlake.client.sending import SendReceipt

TOPICS = ("orders", "clicks")
QUEUES = 2
NEVER = RetentionConfig(enabled=False)
"""Deletes nothing, however full the disk gets: a missing message is a lost one."""
LIFE = 100_000_000
"""Numbers per writer process; each thread takes a part of them."""


@functools.lru_cache(maxsize=4096)
def message_of(number: int) -> Message:
    """Return the one message with this number."""
    rng = random.Random(number)
    topic, queue_id = rng.choice(TOPICS), rng.randrange(QUEUES)
    size = rng.choice((0, 40, 200, 200, 900, 3000))
    body = b"%d:" % number + rng.randbytes(rng.randint(size // 2, size))
    return Message(topic, body, queue_id=queue_id, keys=f"k{number}", tags=f"t{number % 3}")


def number_of(message: StoredMessage) -> int | None:
    """Return the number of a served message, or None if no writer put such a body."""
    try:
        body = message.body
        number = int(body[: body.index(b":")])
    except (StoreError, ValueError):
        return None
    return number if body == message_of(number).body else None


def is_as_put(message: StoredMessage, number: int) -> bool:
    """Return whether topic, queue, key and tag are also those of the number."""
    put = message_of(number)
    return (message.topic, message.queue_id, message.keys, message.tags) == (
        put.topic,
        put.queue_id,
        put.keys,
        put.tags,
    )


@dataclass(frozen=True, slots=True)
class Ack:
    """One acknowledged message."""

    number: int
    queue_offset: int
    physical_offset: int
    durability: int
    at_ms: int

    def __str__(self) -> str:
        where = f"queue offset {self.queue_offset}, physical offset {self.physical_offset}"
        return f"number {self.number} at {where}, promised {Durability(self.durability).name}"

    @property
    def life(self) -> int:
        return self.number // LIFE


class LedgerWriter:
    """The writer's side of the ledger. Threads share it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _append(self, lines: Iterator[str]) -> None:
        os.write(self._descriptor, "".join(f"{line}\n" for line in lines).encode())

    def begin(self, numbers: Sequence[int]) -> None:
        self._append(f"P {number}" for number in numbers)

    def acknowledge(self, numbers: Sequence[int], receipts: Sequence[PutReceipt]) -> None:
        now = _now_ms()
        self._append(
            f"A {number} {receipt.queue_offset} {receipt.physical_offset} {int(receipt.durability)} {now}"
            for number, receipt in zip(numbers, receipts, strict=True)
        )

    def acknowledge_sent(self, number: int, receipt: SendReceipt, durability: Durability) -> None:
        """Note the answer of a broker, and what it promises."""
        where = f"{receipt.queue_offset} {receipt.physical_offset}"
        self._append(iter([f"A {number} {where} {int(durability)} {_now_ms()}"]))

    def refuse(self, number: int, error: Exception) -> None:
        self._append(iter([f"F {number} {type(error).__name__}"]))

    def step(self, word: str) -> None:
        self._append(iter([f"S {word}"]))

    def complain(self, text: str) -> None:
        self._append(iter([f"X {' '.join(text.split())}"]))


@dataclass(slots=True)
class Ledger:
    """The judge's side of the ledger: the whole file, read after the writer's death."""

    put: set[int] = field(default_factory=set)
    acks: list[Ack] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    failed_syncs: list[str] = field(default_factory=list)
    """The files whose sync failed."""
    false_acks: list[int] = field(default_factory=list)
    """Acknowledged as durable, although their put began after a sync of the log had failed."""

    @classmethod
    def read(cls, path: Path) -> Ledger:
        ledger = cls()
        begun_late: set[int] = set()
        opened = 0
        for line in lines_of(path):
            kind, *words = line.split()
            if kind == "P":
                ledger.put.add(int(words[0]))
                if any("/commitlog/" in file for file in ledger.failed_syncs):
                    begun_late.add(int(words[0]))
            elif kind == "A":
                ack = Ack(*map(int, words))
                ledger.acks.append(ack)
                if ack.number in begun_late and ack.durability >= Durability.DISK:
                    ledger.false_acks.append(ack.number)
            elif kind == "F":
                ledger.refusals.append((int(words[0]), words[1]))
            elif words == ["opening"]:
                opened = len(ledger.acks)
            elif words == ["closed"]:  # close has synced everything acknowledged since the store was opened
                ledger.acks[opened:] = [
                    replace(ack, durability=max(ack.durability, Durability.DISK)) for ack in ledger.acks[opened:]
                ]
            elif kind == "X":
                ledger.complaints.append(line[2:])
            elif words[1:2] == ["FAIL"]:
                ledger.failed_syncs.append(words[2])
        return ledger


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def lines_of(path: Path) -> list[str]:
    """Return the whole lines so far, none if the file does not exist yet."""
    try:
        return path.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
