"""Flip single bits anywhere in the sealed log of a store, and heal them from a copy.

Every flip must be found in the block where it is, in headers, hosts, times and properties too, and no other block may
be named. Healing must leave the log as it was, byte for byte, and a store that keeps all promises.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from mqlake import CommitLogConfig, HealReport, MessageStore, StoreConfig, check
from mqlake.torture.ledger import NEVER
from mqlake.torture.pristine import CONFIG, Pristine, put_all
from mqlake.torture.row import Outcome, Row

COUNT = 4_000
LOG_BYTES = 1 << 20
BLOCK_BYTES = 64 << 10
FLIPS = 10
"""Flips of one case, each in another block."""
SETTINGS: StoreConfig = replace(CONFIG, commit_log=CommitLogConfig(file_size_bytes=LOG_BYTES), retention=NEVER)


class Heal(Row):
    name = "heal"
    title = "single-bit flips in the sealed log, healed from a copy"
    allowed = "every flip found, every flip healed, the log byte for byte as before"
    applies = ("undetected",)
    share = 2
    cases = 1_000

    @cached_property
    def _whole(self) -> tuple[Pristine, int]:
        """Make a closed store; return it and the end of its sealed log."""
        path = self.folder / "whole"
        with MessageStore.open(path, config=SETTINGS) as store:
            records = put_all(store, range(COUNT))
        with MessageStore.open(path, read_only=True, config=SETTINGS) as store:
            return Pristine(path, tuple(records)), store.stats().seals.sealed_end

    def run(self, case: int, folder: Path) -> Outcome:
        rng = self.random(case)
        pristine, sealed_end = self._whole
        store = pristine.restore(self.folder / "store")
        outcome = Outcome(acknowledged=len(pristine.records))
        blocks = rng.sample(range(0, sealed_end, BLOCK_BYTES), FLIPS)
        flips = [(rng.randrange(block, min(block + BLOCK_BYTES, sealed_end)), rng.randrange(8)) for block in blocks]
        for offset, bit in flips:
            _flip(store, offset, bit)
        outcome.faults = len(flips)
        found = {_start(row.file, row.offset) for row in check(store).findings if row.what == "seal-broken"}
        outcome.count("undetected", sorted(set(blocks) - found), "flipped and not found in the block at")
        outcome.count("invented", sorted(found - set(blocks)), "found without a flip in the block at")
        self._judge(outcome, _heal(store, pristine.path), store, pristine)
        if outcome.broken or self.keep:
            shutil.copytree(store, folder / "store")
            outcome.note(f"flips (offset, bit): {flips}")
        return outcome

    def _judge(self, outcome: Outcome, healed: HealReport, store: Path, pristine: Pristine) -> None:
        outcome.count("lost", healed.left, "not healed")
        names = [name for name in pristine.contents if name.startswith("commitlog/")]
        unlike = [name for name in names if (store / name).read_bytes() != pristine.contents[name]]
        outcome.count("errors", unlike, "differs after healing")
        report = check(store)
        outcome.count("errors", () if report.holds else report.findings, "a broken promise after healing")


def _flip(store: Path, offset: int, bit: int) -> None:
    with (store / f"commitlog/{offset - offset % LOG_BYTES:020d}").open("r+b") as file:
        file.seek(offset % LOG_BYTES)
        byte = file.read(1)[0]
        file.seek(offset % LOG_BYTES)
        file.write(bytes([byte ^ 1 << bit]))


def _start(file: str, position: int | None) -> int:
    return int(Path(file).name) + (position or 0)


def _heal(store: Path, source: Path) -> HealReport:
    with MessageStore.open(store, config=SETTINGS) as opened:
        healed = opened.heal(source)
    if healed.rebuilds_index:
        MessageStore.open(store, config=SETTINGS).close()
    return healed
