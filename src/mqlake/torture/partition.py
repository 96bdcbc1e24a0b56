"""Partitions, kills and disk faults between a master, its slave and a client, each in a network namespace of its own.

The master is a SYNC_MASTER: what it answers with SEND_OK is also on the slave. At the end the slave is promoted, with
the master dead or out of reach, and must serve every such message as it was sent, at the offsets of its receipt.

Then the old master follows the new one. If its log is the beginning of the new master's, it must become the same, byte
for byte. If it went on by itself, that must be found and reported with the offset where the logs part, and its log must
stay as it is.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from pathlib import Path

from mqlake import Durability
from mqlake.torture.faults.network import CUTS, Network, NotPermitted
from mqlake.torture.judge import open_and_read
from mqlake.torture.ledger import Ledger
from mqlake.torture.pair import CABLES, CLIENT, MASTER, PARTS, REPLICATION, SENDING, SLAVE, Pair
from mqlake.torture.row import NotAllowed, Outcome, Row

FAULTS = (  # each case begins with the next one, and some draw more; a link can be slow only if the kernel has netem
    *("slave is cut off", "master is killed", "slave's disk", "connection is reset", "client is cut off"),
    *("slave is killed", "master's disk", "link flaps", "link is slow"),
)
ENDS = ("master killed", "master out of reach", "slave first", "no load")
"""How the master is lost: in the middle of its work; alive, but the slave does not reach it; after its slave, so that
it went on by itself; after the last message, so that the slave has all."""
START_S, RESUME_S = 60.0, 40.0
ALONE_S = 5.0
EXIT_STORE_ERROR = 3
ALONE = Durability.PAGE_CACHE
"""What a master promises that has no slave."""


class Partition(Row):
    name = "partition"
    title = "partitions, kills and disk faults of a sync master and its slave, which is then promoted"
    allowed = "0 acknowledged as REPLICA lost, 0 diverging logs undetected, 0 merged"
    applies = ("gaps", "undetected")
    share = 4
    stall_s = 400.0  # four times the time to get over a fault, and more
    cases = 100

    def run(self, case: int, folder: Path) -> Outcome:
        rng = self.random(case)
        outcome = Outcome()
        try:
            network = Network.build(PARTS, CABLES)
        except NotPermitted as refusal:
            raise NotAllowed(str(refusal)) from None
        faults = [FAULTS[case % len(FAULTS)], *rng.choices(FAULTS, k=rng.choice((0, 1, 1, 2)))]
        end = ENDS[case // len(FAULTS) % len(ENDS)]
        with network, Pair(folder, network, rng) as pair:
            Trial(pair, outcome, rng).run(faults, end)
        outcome.note(f"{', '.join(faults)}; {end}")
        return outcome


class Trial:
    """One case: load, faults, the loss of the master, the verdict."""

    def __init__(self, pair: Pair, outcome: Outcome, rng: random.Random) -> None:
        self._pair = pair
        self._network = pair.network
        self._outcome = outcome
        self._rng = rng

    def run(self, faults: list[str], end: str) -> None:
        for part in PARTS:
            self._pair.start(part)
        if not self._works("the start", START_S):
            return
        for fault in faults:
            self._outcome.faults += self._break(fault)
            if not self._works(fault, RESUME_S):
                return
        if self._lose_master(end):
            self._judge()

    def _works(self, after: str, timeout_s: float) -> bool:
        """Return whether messages reach the slave again."""
        if self._pair.await_more(self._rng.randrange(10, 120), timeout_s, Durability.REPLICA):
            return True
        said = " | ".join(f"{part} said: {self._pair.said(part)[-300:]}" for part in PARTS)
        self._outcome.count("errors", [said], f"no message reached the slave within {timeout_s:.0f} s after: {after}")
        return False

    # ---- faults

    def _break(self, fault: str) -> bool:
        """Break something and mend it again; return whether anything noticed."""
        part = SLAVE if fault.startswith("slave") else MASTER
        if fault.endswith("disk"):
            return self._break_disk(part)
        if not fault.endswith("killed"):
            return self._break_cable(fault)
        self._pair.kill(part)
        self._rest(0.2)
        self._pair.start(part)
        return True

    def _break_disk(self, part: str) -> bool:
        failed = self._pair.break_disk(part)
        self._rest(0.4)
        self._pair.mend_disk(part)
        if not self._pair.bad_disks[part].passes:
            self._pair.kill(part)
            self._pair.start(part)
        return failed

    def _break_cable(self, fault: str) -> bool:
        network, rng = self._network, self._rng
        cable = SENDING if fault.startswith("client") else REPLICATION
        if fault == "connection is reset":
            found = False
            for _ in range(rng.randrange(1, 5)):
                found |= network.abort(*cable)
                self._rest(0.15)
            return found
        if fault == "link flaps":
            for _ in range(rng.randrange(2, 6)):
                network.cut(*cable, rng.choice(CUTS))
                self._rest(0.1)
                network.join(*cable)
                self._rest(0.1)
        elif fault == "link is slow" and network.slow(*cable, rng.randrange(1, 60), rng.randrange(30)):
            self._rest(1.0)
            network.join(*cable)
        else:
            network.cut(*cable, rng.choice(CUTS))
            self._rest(rng.choice((0.3, 0.8, 2.0)))
            network.join(*cable)
        return True

    def _rest(self, most_s: float) -> None:
        time.sleep(self._rng.uniform(0, most_s))

    # ---- the end of the master

    def _lose_master(self, end: str) -> bool:
        """Lose the master and promote the slave; return whether that worked."""
        pair = self._pair
        if end == "no load":
            pair.kill(CLIENT)
            time.sleep(0.5)
        elif end == "master out of reach":
            self._network.cut(*REPLICATION, "down there")
            pair.await_more(self._rng.randrange(1, 60), ALONE_S, ALONE)
        elif end == "slave first":
            pair.kill(SLAVE)
            pair.await_more(self._rng.randrange(1, 400), ALONE_S, ALONE)
        if end != "master out of reach":
            pair.kill(MASTER)
        pair.kill(SLAVE)
        code = pair.promote(is_cut_off=end == "master out of reach")
        pair.kill(MASTER)
        pair.kill(CLIENT)
        self._network.join(*REPLICATION)
        self._outcome.faults += 1
        if code:
            self._outcome.count("errors", [pair.said(SLAVE)[-300:]], f"promotion ended with {code}")
        return not code

    # ---- the verdict

    def _judge(self) -> None:
        pair, outcome, rng = self._pair, self._outcome, self._rng
        ledger = Ledger.read(pair.ledger)
        confirmed = [ack for ack in ledger.acks if ack.durability >= Durability.REPLICA]
        outcome.acknowledged = len(confirmed)
        before = shutil.copytree(pair.store(MASTER), pair.folder / "before")
        old = open_and_read(before, pair.config(MASTER), rng, probe=False)
        outcome.judge(old, ledger.acks, ledger.put)
        new = open_and_read(pair.store(SLAVE), pair.config(SLAVE), rng, probe=rng.random() < 0.7)
        outcome.judge(new, confirmed, ledger.put)
        outcome.count("gaps", [*old.gaps, *new.gaps], "gap in a queue")
        if old.refused is not None or new.refused is not None:
            return
        theirs = log_of(before)[: old.log_end]
        ours = log_of(pair.store(SLAVE))
        if theirs[: new.log_end] != ours[: new.log_end]:
            differs = first_difference(theirs, ours[: new.log_end])
            outcome.count("errors", [differs], "the slave's log is not the beginning of its master's: it differs at")
        self._follow_back(theirs)

    def _follow_back(self, theirs: bytes) -> None:
        """Let the old master follow the new one, and see whether it should have."""
        pair, outcome = self._pair, self._outcome
        pair.serve(SLAVE, MASTER, role="async-master")
        pair.attach(MASTER, SLAVE, "--once")
        code, said = pair.wait(MASTER), pair.said(MASTER)
        pair.kill(SLAVE)
        ours = used(log_of(pair.store(SLAVE)))
        after = log_of(pair.store(MASTER))
        differs = first_difference(theirs, ours)
        if differs is None:
            if code or used(after) != ours:
                result = f"it ended with {code} and has {len(used(after))} of {len(ours)} bytes: {said[-300:]}"
                outcome.count("errors", [result], "the old master could not follow")
            return
        parting = record_with(theirs, differs)
        found = re.findall(r"part at offset (\d+)", said)
        if code != EXIT_STORE_ERROR or not found:
            outcome.count("undetected", [f"{parting}: {code} {said[-300:]}"], "logs that part were not told apart at")
        elif int(found[-1]) != parting:
            outcome.count("errors", [f"{found[-1]}, not {parting}"], "the logs part elsewhere than reported")
        if used(after) != theirs:
            outcome.count("undetected", [first_difference(used(after), theirs)], "a diverged log was changed at")


def log_of(store: Path) -> bytes:
    """Return the files of a log, one after the other."""
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir()))


def used(log: bytes) -> bytes:
    """Return a log up to the end of its last record."""
    position = 0
    while position < len(log) and (size := int.from_bytes(log[position : position + 4], "big")):
        position += size
    return log[:position]


def first_difference(theirs: bytes, ours: bytes) -> int | None:
    """Return where a log is no longer the beginning of another; None if it is all of it."""
    if ours.startswith(theirs):
        return None
    return next((at for at, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), len(ours))


def record_with(log: bytes, offset: int) -> int:
    """Return where the record or marker begins that holds an offset."""
    position = 0
    while True:
        size = int.from_bytes(log[position : position + 4], "big")
        if position + size > offset:
            return position
        position += size
