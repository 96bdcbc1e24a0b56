"""kill -9 at random moments: nothing is lost, nothing comes early or twice, and no half message is seen."""

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
from mqlake.delivery.system_topics import retry_topic
from tests.delivery.kills import GROUP, LEVELS, open_store
from tests.delivery.later import arrived, now_ms, step

ROOT = Path(__file__).parents[2]


class Said:
    """What a killed process said, and what must therefore be true."""

    def __init__(self) -> None:
        self.due: dict[int, int] = {}
        """Acknowledged puts: when each is due at the earliest."""
        self.maybe: set[int] = set()
        """Puts that were under way: there or not, at most once."""
        self.never: set[int] = set()
        self.done: set[int] = set()
        self.together: list[tuple[int, ...]] = []
        self.taken: set[int] = set()
        """What the group was given, as far as it could say so."""
        self.failed: dict[int, int] = {}
        """What comes again on the group's retry topic: when it is due at the earliest."""

    def hear(self, line: str) -> None:
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
    """What a process said until it was killed, so long after so many lines."""
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
    assert process.wait() == -signal.SIGKILL, "it failed by itself"
    assert lines[0] == "opened\n"
    return lines[1:]


def judge(store: MessageStore, said: Said) -> None:
    """Everything that was acknowledged is there, when and as often as it may be."""
    messages = arrived(store)
    counts = Counter(int(message.body) for message in messages)
    assert {n: count for n, count in counts.items() if count > 1} == {}, "delivered twice"
    assert set(counts) & said.never == set(), "rolled back or cancelled, and delivered"
    assert (set(said.due) | said.done) - set(counts) == set(), "lost"
    assert set(counts) <= {*said.due, *said.done, *said.maybe}
    early = {n: said.due[n] for m in messages if (n := int(m.body)) in said.due and m.store_timestamp < said.due[n]}
    assert early == {}, "delivered before its time"
    for numbers in said.together:
        assert len({number in counts for number in numbers}) == 1, "a part of a transaction"
    again = {int(message.body): message.store_timestamp for message in reversed(arrived(store, retry_topic(GROUP)))}
    assert set(said.failed) <= set(again), "a retry is lost"
    assert {n: due for n, due in said.failed.items() if again[n] < due} == {}, "retried before its time"
    with store.consumer(GROUP, "orders", idle_s=0) as consumer:
        left = {int(message.body) for message in consumer}
    assert set(counts) - said.taken - left == set(), "passed over by the group"


def kill_again_and_again(path: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    said = Said()
    for number in range(rounds):
        for line in run_and_kill(path, seed * 1000 + number, rng.randrange(10, 120), rng.uniform(0, 0.1)):
            said.hear(line)
    with open_store(path) as store:
        while store.transactions.undecided():
            store.transactions.resolve(store.transactions.undecided()[0].id, commit=rng.random() < 0.5)
        last_ms = now_ms() + 10_000  # what was cancelled waits for longer
        while any(waiting.due_ms < last_ms for waiting in store.waiting(100_000)):
            time.sleep(0.02)
        judge(store, said)
        step(store, now_ms() + 70_000)
        assert not said.never & {int(message.body) for message in arrived(store)}, "cancelled, and delivered"
        assert store.delivery.require_scheduler().deliveries.failed == {}
    assert len(said.due) + len(said.done) > rounds and said.failed, "the test is about processes that work"
    assert check(path, config=LEVELS).holds


def test_nothing_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path / "s", 3, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_nothing_is_lost_or_doubled_by_many_kills(tmp_path: Path, seed: int) -> None:
    kill_again_and_again(tmp_path / "s", 10, seed=seed)
