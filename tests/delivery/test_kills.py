"""kill -9 at random moments: nothing is lost, nothing comes early or twice, and no half message is seen."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from mqlake import MessageStore, check
from tests.delivery.kills import LEVELS, open_store
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
    process.wait()
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


def kill_again_and_again(path: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    said = Said()
    for number in range(rounds):
        for line in run_and_kill(path, seed * 1000 + number, rng.randrange(10, 120), rng.uniform(0, 0.1)):
            said.hear(line)
    with open_store(path) as store:
        while store.transactions.undecided():
            store.transactions.resolve(store.transactions.undecided()[0].id, commit=rng.random() < 0.5)
        time.sleep(max(0, max(said.due.values(), default=0) - now_ms()) / 1000)
        step(store, now_ms())
        judge(store, said)
        step(store, now_ms() + 70_000)
        assert not said.never & {int(message.body) for message in arrived(store)}, "cancelled, and delivered"
        assert store.delivery.require_scheduler().deliveries.failed == {}
    assert len(said.due) + len(said.done) > 5 * rounds, "the test is about processes that work"
    assert check(path, config=LEVELS).holds


def test_nothing_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path / "s", 3, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_nothing_is_lost_or_doubled_by_many_kills(tmp_path: Path, seed: int) -> None:
    kill_again_and_again(tmp_path / "s", 10, seed=seed)
