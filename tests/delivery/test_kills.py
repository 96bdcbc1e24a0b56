"""After kill -9 at random moments no message is lost, early or repeated, and no half message is visible."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from mqlake import MessageStore, check
from mqlake.delivery.registry.system_topics import retry_topic
from tests.delivery.kills import GROUP, LEVELS, open_store
from tests.delivery.later import arrived, now_ms, step

ROOT = Path(__file__).parents[2]


class Expected:
    """What a killed process printed, and what must therefore be in the store."""

    def __init__(self) -> None:
        self.due: dict[int, int] = {}
        """Acknowledged puts, and the earliest time at which each is due."""
        self.maybe: set[int] = set()
        """Puts that were interrupted: each is stored once or not at all."""
        self.never: set[int] = set()
        self.done: set[int] = set()
        self.together: list[tuple[int, ...]] = []
        self.taken: set[int] = set()
        """Messages that the group received and reported."""
        self.failed: dict[int, int] = {}
        """Messages that must be on the group's retry topic, and the earliest time at which each is due."""

    def add(self, line: str) -> None:
        word, *rest = line.split()
        numbers = tuple(map(int, rest))
        if word in ("put", "begin"):
            self.maybe |= {*numbers}
        if word == "ok":
            self.maybe.discard(numbers[0])
            self.due[numbers[0]] = numbers[1]
        if word == "begin":
            self.together.append(numbers)
        if word in ("abort", "cancelled"):
            self.maybe -= {*numbers}
            self.never |= {*numbers}
        if word == "took":
            self.taken.add(numbers[0])
        if word == "failed":
            self.failed.setdefault(*numbers)
        if word == "done":
            self.maybe -= {*numbers}
            self.done |= {*numbers}


def run_and_kill(store: Path, seed: int, line_count: int, after_s: float) -> list[str]:
    """Start a process, kill it `after_s` seconds after it printed `line_count` lines, and return all its lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.delivery.kills", str(store), str(seed)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(line_count)]
        time.sleep(after_s)
    finally:
        process.kill()
    lines += process.stdout.read().splitlines()
    assert process.wait() == -signal.SIGKILL, "the process failed before it was killed"
    assert lines[0] == "opened\n"
    return lines[1:]


def judge(store: MessageStore, expected: Expected) -> None:
    """Assert that every acknowledged message was delivered once, not early, and transactions as a whole."""
    messages = arrived(store)
    counts = Counter(int(message.body) for message in messages)
    assert {n: count for n, count in counts.items() if count > 1} == {}, "delivered twice"
    assert set(counts) & expected.never == set(), "rolled back or cancelled, and delivered"
    assert (set(expected.due) | expected.done) - set(counts) == set(), "lost"
    assert set(counts) <= {*expected.due, *expected.done, *expected.maybe}
    early = {
        n: expected.due[n]
        for m in messages
        if (n := int(m.body)) in expected.due and m.store_timestamp < expected.due[n]
    }
    assert early == {}, "delivered before its time"
    for numbers in expected.together:
        assert len({number in counts for number in numbers}) == 1, "only a part of a transaction"
    again = {int(message.body): message.store_timestamp for message in reversed(arrived(store, retry_topic(GROUP)))}
    assert set(expected.failed) <= set(again), "a retry is lost"
    assert {n: due for n, due in expected.failed.items() if again[n] < due} == {}, "retried before its time"
    with store.consumer(GROUP, "orders", idle_s=0) as consumer:
        left = {int(message.body) for message in consumer}
    assert set(counts) - expected.taken - left == set(), "skipped by the group"


def kill_repeatedly(path: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    expected = Expected()
    for number in range(rounds):
        for line in run_and_kill(path, seed * 1000 + number, rng.randrange(10, 120), rng.uniform(0, 0.1)):
            expected.add(line)
    with open_store(path) as store:
        while store.transactions.undecided():
            store.transactions.resolve(store.transactions.undecided()[0].id, commit=rng.random() < 0.5)
        last_ms = now_ms() + 10_000  # cancelled messages are due later than this
        while any(waiting.due_ms < last_ms for waiting in store.waiting(100_000)):
            time.sleep(0.02)
        judge(store, expected)
        step(store, now_ms() + 70_000)
        assert not expected.never & {int(message.body) for message in arrived(store)}, "cancelled, and delivered"
        assert store.delivery.require_scheduler().deliveries.failed == {}
    assert len(expected.due) + len(expected.done) > rounds and expected.failed, (
        "the killed processes did too little for this test"
    )
    assert check(path, config=LEVELS).holds


def test_kills_neither_lose_nor_repeat_messages(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path / "s", 3, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_kills_neither_lose_nor_repeat_messages(tmp_path: Path, seed: int) -> None:
    kill_repeatedly(tmp_path / "s", 10, seed=seed)
