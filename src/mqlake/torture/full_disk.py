"""Fill a small disk while four threads write, then free it again.

A put that needs a new file is refused with DiskFull: never a bus error, never a half-written message. The writer
retries. When there is space again, the store must accept messages within 15 seconds without help, and dispatch them to
their queues. In the end everything that was acknowledged must be there.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from mqlake import Durability, MessageStore, StoreError
from mqlake.torture.faults.smalldisk import NotPermitted, mount, unmount
from mqlake.torture.judge import open_and_read
from mqlake.torture.ledger import Ack, Ledger, lines_of, message_of, number_of
from mqlake.torture.row import NotAllowed, Outcome, Row
from mqlake.torture.writer import Plan, running_writer

CYCLES = 10
"""Fills and frees per store."""
SIZE = "64M"
RESUME_S = 15.0
REFUSAL_S = 60.0
LOG_BYTES = 1 << 18


class FullDisk(Row):
    name = "full"
    title = "disk full and free again, 64 MiB file system"
    allowed = "no crash, no loss, resumes"
    share = 3
    cases = 100 // CYCLES

    def run(self, case: int, folder: Path) -> Outcome:
        disk = folder / "disk"
        try:
            mount(disk, SIZE, ("ext4", "tmpfs")[case % 2])
        except NotPermitted as refusal:
            raise NotAllowed(str(refusal)) from None
        try:
            outcome = self._fill_and_free(self.random(case), disk, folder)
            if outcome.broken or self.keep:
                shutil.copytree(disk / "store", folder / "store")
            return outcome
        finally:
            unmount(disk)

    def _fill_and_free(self, rng: random.Random, disk: Path, folder: Path) -> Outcome:
        outcome = Outcome()
        plan = Plan(mode=rng.choice(("sync", "async")), disk_every=5, log_bytes=LOG_BYTES, pause_ms=1, patient=True)
        noted = folder / "ledger"
        with running_writer(disk / "store", noted, plan, errors=folder / "writer.txt") as writer:
            _await(lambda: _count(noted, "A") > 20, REFUSAL_S, writer)
            for _ in range(CYCLES):
                if writer.poll() is not None or outcome.broken:
                    break
                self._cycle(outcome, disk, noted, writer, rng)
            if writer.poll() is not None:
                said = (folder / "writer.txt").read_text()[-300:]
                outcome.count("errors", [said or "nothing"], f"the writer died with {writer.returncode} and printed")
        ledger = Ledger.read(noted)
        outcome.acknowledged = len(ledger.acks)
        served = open_and_read(disk / "store", plan.config(), rng)
        outcome.judge(served, [a for a in ledger.acks if a.durability >= Durability.PAGE_CACHE], ledger.put)
        outcome.count("errors", ledger.complaints, "the writer reported")
        return outcome

    def _cycle(
        self, outcome: Outcome, disk: Path, noted: Path, writer: subprocess.Popen[bytes], rng: random.Random
    ) -> None:
        """Fill the disk, wait for a refusal, free it, wait for an acknowledged put."""
        refusals = _count(noted, "F")
        ballast = disk / "ballast"
        fill(disk, ballast)
        outcome.faults += 1
        if not _await(lambda: _count(noted, "F") > refusals, REFUSAL_S, writer):
            outcome.count("errors", [f"{REFUSAL_S:.0f} s"], "no put was refused on the full disk within")
        time.sleep(rng.uniform(0, 0.2))
        ballast.unlink()
        taken = _count(noted, "A")
        if not _await(lambda: _count(noted, "A") > taken + 20, RESUME_S, writer):
            outcome.count("errors", [f"{RESUME_S:.0f} s"], "the store did not resume within")
            return
        newest = Ledger.read(noted).acks[-1]
        if not _await(lambda: is_served(disk / "store", newest), RESUME_S, writer):
            outcome.count("errors", [f"{RESUME_S:.0f} s"], "a message put after that is not in its queue within")


def is_served(store: Path, ack: Ack) -> bool:
    """Return whether another process finds the message in its queue."""
    message = message_of(ack.number)
    try:
        with MessageStore.open(store, read_only=True) as reader:
            found = reader.read(message.topic, queue_id=message.queue_id or 0, start=ack.queue_offset, limit=1)
    except StoreError:
        return False
    return [number_of(m) for m in found] == [ack.number]


def fill(disk: Path, ballast: Path) -> None:
    """Take all free space, down to the last blocks."""
    with ballast.open("wb") as file:
        for size in (1 << 20, 1 << 16, 1 << 12):
            try:
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
            except OSError:
                continue


def _count(noted: Path, kind: str) -> int:
    return sum(line.startswith(kind) for line in lines_of(noted))


def _await(condition: Callable[[], bool], timeout_s: float, writer: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and writer.poll() is None:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
