"""Flip one bit anywhere in a closed or crashed store: log, queues, index, checkpoints, settings, positions, scars.

A flip may cost the message that it hit, and no other. A body that differs from the one put is never served, and the
store opens. In RocketMQ's format only the body has a checksum: a flip in a topic or a key may make a message appear
elsewhere, which counts as its loss. A flip in the index may cost keys, but never gives a wrong answer.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from mqlake.torture.faults.damage import damage
from mqlake.torture.judge import open_and_read
from mqlake.torture.pristine import CONFIG, Pristine, closed_store, crashed_store
from mqlake.torture.row import Outcome, Row

COUNT = 200
TARGETS = {
    "commitlog/*": 50,
    "consumequeue/**/*": 16,
    "index/*": 12,
    "mqlake/*": 14,
    "checkpoint": 5,
    "config/*": 2,
    "abort": 1,
}
"""Where bits flip, and how often in a hundred cases."""


class Flips(Row):
    name = "flips"
    title = "single-bit flips over log, queues, index, checkpoint, config"
    allowed = "at most one record lost each; every damaged body detected"
    applies = ("undetected",)
    share = 4
    cases = 10_000

    @cached_property
    def _stores(self) -> list[Pristine]:
        closed = closed_store(self.folder / "closed", COUNT)
        return [closed, crashed_store(self.folder / "crashed", COUNT), *self._scarred(closed)]

    def _scarred(self, closed: Pristine) -> list[Pristine]:
        """Return a store that already has a scar, if the store keeps a list of scars."""
        path = closed.copy_to(self.folder / "scarred")
        hit = closed.records[COUNT // 3]
        data = bytearray((path / hit.file).read_bytes())
        data[hit.position + hit.size // 2] ^= 1
        (path / hit.file).write_bytes(data)
        (path / "abort").touch()
        served = open_and_read(path, CONFIG, self.random("scar"), probe=False)
        kept = tuple(record for record in closed.records if record.number in served.places)
        return [Pristine(path, kept)] if (path / "mqlake" / "scars").exists() else []

    def run(self, case: int, folder: Path) -> Outcome:
        rng = self.random(case)
        pristine = self._stores[case % len(self._stores)]
        store = pristine.restore(self.folder / "store")
        targets = [glob for glob in TARGETS if any(path.is_file() for path in store.glob(glob))]
        glob = rng.choices(targets, [TARGETS[target] for target in targets])[0]
        report = damage(store, rng.randrange(1 << 30), files=glob, kind="flip_bit")
        served = open_and_read(store, CONFIG, rng)
        outcome = Outcome(faults=1, acknowledged=len(pristine.records))
        if served.refused is not None:
            outcome.count("refused", [served.refused], "did not open")
        else:
            lost = served.lost([record.ack for record in pristine.records])
            outcome.count("lost", lost if len(lost) > 1 else [], "more than one message lost")
            outcome.count("undetected", served.strange, "a damaged body was served")
            unlike = served.unlike_scan if len(served.unlike_scan) > 1 else []
            outcome.count("errors", unlike, "scan and queues differ at")
            lost_keys = [] if report["file"].startswith("index/") else served.lost_keys
            outcome.count("errors", lost_keys, "a key finds nothing")
            outcome.count("errors", served.errors, "failed")
        if outcome.broken or self.keep:
            store.rename(folder / "store")
            damage(pristine.copy_to(folder / "before"), report["seed"], files=glob, kind="flip_bit")
            outcome.note(f"{report} in the {pristine.path.name} store")
        return outcome
