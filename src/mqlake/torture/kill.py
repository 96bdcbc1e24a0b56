"""kill -9 at a random moment: while four threads write, while the store closes, or while it reopens after a kill.

The page cache outlives the process, so nothing acknowledged may be lost. With the transient pool a receipt may say
MEMORY. Such a message may be lost, but only if it is among the newest of its life, which no commit had taken yet.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

from mqlake import Durability
from mqlake.torture.judge import Served, open_and_read
from mqlake.torture.ledger import Ledger, lines_of
from mqlake.torture.row import Outcome, Row
from mqlake.torture.writer import MODES, Plan, running_writer

KILLS = 2
"""Kills per case, on one store."""
WINDOW_MS = 5_000
"""Commits are 20 ms apart, but on a busy machine a thread may wait this long for the processor or the disk."""
START_S = 30.0


class Kill(Row):
    name = "kill"
    title = "kill -9 at a random moment, 4 writers, sync, async and pool"
    allowed = "0 acknowledged lost (pool: only what was not yet committed, and the receipt said so), 0 gaps"
    applies = ("gaps",)
    share = 5
    cases = 270  # at least 500 kills: sometimes the writer has closed its store and exited before

    def run(self, case: int, folder: Path) -> Outcome:
        rng = self.random(case)
        store, noted = folder / "store", folder / "ledger"
        mode, log_bytes = MODES[case % len(MODES)], rng.choice((16384, 65536))
        outcome = Outcome()
        for life in range(KILLS):
            moment = rng.choice(("writing", "closing", "opening") if life else ("writing", "writing", "closing"))
            plan = Plan(
                mode=mode,
                life=life,
                log_bytes=log_bytes,
                checkpoint_ms=rng.choice((5, 30, 1000)),
                disk_every=rng.choice((0, 7)),
                close_after_ms=rng.randrange(60) if moment == "closing" else None,
            )
            with running_writer(store, noted, plan, errors=folder / "writer.txt") as writer:
                outcome.faults += kill_at(writer, noted, moment, rng)
        shutil.copytree(store, folder / "before")
        served = open_and_read(store, plan.config(), rng)
        self._judge(outcome, served, Ledger.read(noted))
        return outcome

    def _judge(self, outcome: Outcome, served: Served, ledger: Ledger) -> None:
        outcome.acknowledged = len(ledger.acks)
        promised = [ack for ack in ledger.acks if ack.durability >= Durability.PAGE_CACHE]
        outcome.judge(served, promised, ledger.put)
        outcome.count("gaps", served.gaps, "gap in a queue")
        outcome.count("errors", ledger.complaints, "the writer reported")
        if served.refused is None:
            outcome.count("lost", lost_too_early(served, ledger), "lost from memory before the last commit")


def lost_too_early(served: Served, ledger: Ledger) -> list[str]:
    """Return lost messages that were only in memory, but are too old: a newer one survived, or a commit was due."""
    found = []
    for life in {ack.life for ack in ledger.acks}:
        acks = [ack for ack in ledger.acks if ack.life == life]
        in_memory = [ack for ack in acks if ack.durability < Durability.PAGE_CACHE]
        lost = served.lost(in_memory)
        kept_end = max((ack.physical_offset for ack in acks if ack.number in served.places), default=-1)
        newest_ms = max(ack.at_ms for ack in acks)
        found += [f"{ack}" for ack in lost if ack.physical_offset < kept_end or newest_ms - ack.at_ms > WINDOW_MS]
    return found


def kill_at(writer: subprocess.Popen[bytes], noted: Path, moment: str, rng: random.Random) -> int:
    """Wait for the moment and kill the writer. Return 0 if it had already exited."""
    before = len(lines_of(noted))
    wanted = ("A", rng.randrange(1, 400)) if moment == "writing" else (f"S {moment}", 1)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and writer.poll() is None:
        if sum(line.startswith(wanted[0]) for line in lines_of(noted)[before:]) >= wanted[1]:
            break
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.02))
    alive = writer.poll() is None
    writer.kill()
    writer.wait()
    return int(alive)
