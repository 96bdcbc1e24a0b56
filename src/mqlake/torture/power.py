"""Power cuts: everything that was synced, plus any choice of the pages, sizes and names that were not.

The writer runs under the powercut shim, which keeps a copy of what was synced and kills the writer when a sync begins.
Many states are then built from that run, each one that a disk might be in. Every message that was acknowledged as DISK
must be in all of them. Runs differ in their settings. Some cut the power a second time, while a writer recovers or
writes to the state that an earlier cut left.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from mqlake import Durability
from mqlake.torture.faults.powercut import crash_state, watch_env
from mqlake.torture.judge import open_and_read
from mqlake.torture.ledger import Ledger
from mqlake.torture.row import Outcome, Row
from mqlake.torture.writer import Plan, running_writer

STATES = 25
"""States built from one run."""
TEAR = 512
RUN_S = 120.0
MESSAGES = 120

SETTINGS = (
    ("sync", Plan(mode="sync")),
    ("async with waits for the disk", Plan(mode="async", disk_every=5)),
    ("pool with waits for the disk", Plan(mode="pool", disk_every=5)),
    ("closed in between", Plan(mode="sync", sessions=3, checkpoint_ms=5)),
    ("closed at the end", Plan(mode="async", disk_every=9, closes=True, log_bytes=65536)),
)
"""Settings of the runs, in turn. In every second round the power is also cut in a second life."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that ended in a power cut."""

    live: Path
    shadow: Path
    plan: Plan
    ledger: Ledger


class Power(Row):
    name = "power"
    title = f"power cut (synced pages + any subset of unsynced pages, {TEAR} B tearing)"
    allowed = "0 acknowledged-durable lost, 0 invented"
    share = 5
    in_order = True
    cases = 2000

    def __init__(self, folder: Path, seed: int, *, keep: bool = False) -> None:
        super().__init__(folder, seed, keep=keep)
        self._number = -1
        self._run: Run | None = None
        self._run_is_needed = keep

    def run(self, case: int, folder: Path) -> Outcome:
        number, state = divmod(case, STATES)
        if self._run is None or number != self._number:
            self.close()
            self._number, self._run = number, self._cut(number)
        run = self._run
        report = crash_state(run.live, run.shadow, folder / "store", state, tear=TEAR)
        served = open_and_read(folder / "store", run.plan.config(), self.random(case))
        promised = [ack for ack in run.ledger.acks if ack.durability >= Durability.DISK]
        outcome = Outcome(faults=1, acknowledged=len(promised))
        outcome.judge(served, promised, run.ledger.put)
        outcome.count("errors", run.ledger.complaints, "the writer reported")
        if outcome.broken or self.keep:
            self._run_is_needed = True
            crash_state(run.live, run.shadow, folder / "before", state, tear=TEAR)
            (folder / "state.txt").write_text(f"{report}\nmade of {run.live.parent}\n")
            outcome.note(SETTINGS[number % len(SETTINGS)][0])
        return outcome

    def close(self) -> None:
        """Remove the last run, unless one of its states broke a promise."""
        if self._run is not None and not self._run_is_needed:
            shutil.rmtree(self.folder / f"run-{self._number}")
        self._run_is_needed = self.keep

    def _cut(self, number: int) -> Run:
        """Run a writer until a power cut. In every second round, run another on what it left until the next cut."""
        folder = self.folder / f"run-{number}"
        folder.mkdir()
        run = self._live_and_die(folder, 0, number)
        if number // len(SETTINGS) % 2:
            second = folder / "second"
            second.mkdir()
            state = self.random(f"state {number}").randrange(1_000)
            crash_state(run.live, run.shadow, second / "live", state, tear=TEAR)
            (second / "ledger").write_bytes((folder / "ledger").read_bytes())
            run = self._live_and_die(second, 1, number)
        return run

    def _live_and_die(self, folder: Path, life: int, number: int) -> Run:
        rng = self.random(f"run {number} life {life}")
        plan = replace(SETTINGS[number % len(SETTINGS)][1], life=life, messages=MESSAGES)
        last_sync = 0 if plan.closes and not life else rng.choice((rng.randrange(1, 40), rng.randrange(1, 250)))
        live, shadow, noted = folder / "live", folder / "shadow", folder / "ledger"
        env = watch_env(live, shadow, kill_at_sync=last_sync)
        with (
            running_writer(live, noted, plan, env, errors=folder / "writer.txt") as writer,
            contextlib.suppress(subprocess.TimeoutExpired),
        ):
            writer.wait(RUN_S)
        return Run(live, shadow, plan, Ledger.read(noted))
