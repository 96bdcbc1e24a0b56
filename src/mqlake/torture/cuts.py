"""Cut the last record at every byte, and the last entries of its queue and of the index.

A crash can leave part of a record that was not yet synced: the rest of its file is zeros, or the file ends there. The
log must then end exactly before that record, and the next message must get its queue offset and its physical offset.
Queues and index can be rebuilt from the log: whatever they lost, no message and no key may be missing afterwards.
"""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from mqlake import Durability, MessageStore
from mqlake.torture.judge import Served, find_key, open_and_read
from mqlake.torture.pristine import CONFIG, ENTRY, Pristine, Record, put_all, running_store
from mqlake.torture.row import Outcome, Row

COUNT = 40
INDEX_HEADER = 40


class Cut(NamedTuple):
    """A cut of one file at one byte."""

    file: str
    at: int
    short: bool
    """The file ends there; otherwise zeros follow up to its size."""

    def apply(self, store: Path) -> bool:
        """Cut the file. Return whether that changed anything."""
        path = store / self.file
        before = path.read_bytes()
        after = before[: self.at] + (b"" if self.short else bytes(len(before) - self.at))
        path.write_bytes(after)
        return after != before


class Cuts(Row):
    name = "cuts"
    title = "last record cut at every byte; the same for queue and index"
    allowed = "exact last-good recovery"
    applies = ("gaps",)
    share = 3

    @cached_property
    def _pristine(self) -> Pristine:
        """Make a store with all but the last record on disk."""
        made, path = self.folder / "making", self.folder / "pristine"
        with running_store(made, COUNT) as (store, records):
            records += put_all(store, range(COUNT, COUNT + 1), Durability.PAGE_CACHE)
            store.wait_dispatched()
            shutil.copytree(made, path)
        return Pristine(path, tuple(records))

    @cached_property
    def _cuts(self) -> list[Cut]:
        last = self._pristine.records[-1]
        queue = sorted((self._pristine.path / "consumequeue" / last.topic / str(last.queue_id)).iterdir())[-1]
        index = sorted((self._pristine.path / "index").iterdir())[-1]
        entry = last.queue_offset * ENTRY % queue.stat().st_size
        entries = int.from_bytes(index.read_bytes()[36:40], "big")  # the header's last word; entry 0 is never used
        assert CONFIG.index.slot_count is not None
        newest = INDEX_HEADER + 4 * CONFIG.index.slot_count + ENTRY * (entries - 1)
        places = {
            last.file: range(last.position, last.position + last.size),
            self._name(queue): range(entry, entry + ENTRY),
            self._name(index): (*range(INDEX_HEADER), *range(newest, newest + ENTRY)),
        }
        return [Cut(file, at, short) for file, bytes_ in places.items() for at in bytes_ for short in (False, True)]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._pristine.path).as_posix()

    @property
    def cases(self) -> int:
        return len(self._cuts)

    def run(self, case: int, folder: Path) -> Outcome:
        cut = self._cuts[case]
        store = self._pristine.copy_to(folder / "store")
        outcome = Outcome(faults=1)
        changed = cut.apply(store)
        *kept, last = self._pristine.records
        expected = kept if changed and cut.file == last.file else [*kept, last]
        served = open_and_read(store, CONFIG, self.random(case))
        outcome.acknowledged = len(expected)
        outcome.judge(served, [record.ack for record in expected], {record.number for record in expected})
        outcome.count("gaps", served.gaps, "gap in a queue")
        if served.refused is None:
            outcome.count("errors", self._differences(served, expected, store), "not the last good state")
        outcome.note(f"{cut}")
        return outcome

    @staticmethod
    def _differences(served: Served, expected: list[Record], store: Path) -> list[str]:
        """Return what is wrong: the log must end after the last good record, and every key must be found."""
        end = expected[-1].physical_offset + expected[-1].size
        found = [] if served.log_end == end else [f"the log ends at {served.log_end}, not {end}"]
        again = Served(places=served.places)
        with MessageStore.open(store, config=CONFIG) as reopened:
            for number in served.places:
                find_key(reopened, again, number)
        return found + again.lost_keys + again.errors
