"""The Nth sync fails, once or for ever, with EIO or ENOSPC: what is not durable must not be acknowledged as durable.

The writer runs under both shims: failsync fails the sync, powercut keeps what the others made durable. Every message
that was acknowledged as DISK must be in the state without any unsynced page. A put that begins after a failed sync of
the log must be refused, even if the next sync would succeed: the pages of the failed one may be lost. Reads still work.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from mqlake import Durability
from mqlake.torture.faults.failsync import failing_env
from mqlake.torture.faults.powercut import crash_state, watch_env
from mqlake.torture.judge import Served, open_and_read
from mqlake.torture.ledger import Ledger
from mqlake.torture.row import Outcome, Row
from mqlake.torture.writer import Plan, running_writer

LAST_N = 200
ERRORS = ("EIO", "ENOSPC")
RUN_S = 120.0


class Syncs(Row):
    name = "syncs"
    title = f"Nth sync fails, N = 1…{LAST_N}, EIO and ENOSPC"
    allowed = "0 false acknowledgements"
    applies = ("false_acks",)
    share = 3
    cases = LAST_N * len(ERRORS)

    def run(self, case: int, folder: Path) -> Outcome:
        rng = self.random(case)
        n, error = case // len(ERRORS) + 1, ERRORS[case % len(ERRORS)]
        times = rng.choice((0, 1))
        plan = Plan(mode=rng.choice(("sync", "sync", "async")), disk_every=3, messages=40 + 3 * n, closes=True)
        live, shadow, noted = folder / "live", folder / "shadow", folder / "ledger"
        live.mkdir()
        failing = failing_env(
            "fsync", "fdatasync", "msync", path=str(live), errno=error, after=n, times=times, log=noted
        )
        env = watch_env(live, shadow, base=failing)
        outcome = Outcome()
        with running_writer(live, noted, plan, env, errors=folder / "writer.txt") as writer:
            try:
                writer.wait(RUN_S)
            except subprocess.TimeoutExpired:
                outcome.count("errors", [f"{RUN_S:.0f} s"], "the writer did not end within")
        ledger = Ledger.read(noted)
        outcome.faults = int(bool(ledger.failed_syncs))
        if not ledger.failed_syncs:
            outcome.count("errors", [n], "the writer ended before its sync number")
        if writer.returncode != 0:
            outcome.count(
                "errors", [(folder / "writer.txt").read_text()[-300:]], f"the writer left with {writer.returncode}"
            )
        self._judge(outcome, ledger, folder, plan, rng.getrandbits(32))
        outcome.note(f"N={n} {error} {'once' if times else 'for ever'}, {plan.mode}: {ledger.failed_syncs[:1]}")
        return outcome

    def _judge(self, outcome: Outcome, ledger: Ledger, folder: Path, plan: Plan, state: int) -> None:
        durable = [ack for ack in ledger.acks if ack.durability >= Durability.DISK]
        outcome.acknowledged = len(durable)
        outcome.count("false_acks", ledger.false_acks, "promised after a sync of the log had failed")
        outcome.count("errors", ledger.complaints, "the writer reported")
        if _log_failed(ledger) and not ledger.refusals:
            outcome.count("errors", [ledger.failed_syncs[0]], "no put was refused after the failed sync of")
        crash_state(folder / "live", folder / "shadow", folder / "store", 0)
        served = open_and_read(folder / "store", plan.config(), self.random(state))
        outcome.count("refused", [served.refused] if served.refused else [], "did not open")
        if served.refused is None:
            outcome.count("false_acks", served.lost(durable), "promised, and not on the disk")
            outcome.count("errors", served.errors, "failed")
        self._judge_live(outcome, open_and_read(folder / "live", plan.config(), self.random(state)), ledger)

    @staticmethod
    def _judge_live(outcome: Outcome, served: Served, ledger: Ledger) -> None:
        """Check that without a power cut everything acknowledged is there."""
        outcome.judge(served, [ack for ack in ledger.acks if ack.durability >= Durability.PAGE_CACHE], ledger.put)


def _log_failed(ledger: Ledger) -> bool:
    return any("/commitlog/" in file for file in ledger.failed_syncs)
