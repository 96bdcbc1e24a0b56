"""A row of the table: one kind of fault, its cases, and their outcome.

A case is a number. Every random choice follows from the seed, the row and that number, so that one case can be run
again by itself. With threads and kills, the same moment is drawn again, but timing still decides.
"""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from mqlake.torture.judge import Served
from mqlake.torture.ledger import Ack


class NotAllowed(Exception):
    """This machine does not permit the faults of a row. The row is skipped, and the table says why."""


@dataclass(slots=True)
class Outcome:
    """The outcome of one case or of many: counts, and a sentence for each broken promise."""

    faults: int = 0
    acknowledged: int = 0
    lost: int = 0
    invented: int = 0
    refused: int = 0
    gaps: int = 0
    false_acks: int = 0
    undetected: int = 0
    errors: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        for counted in COUNTS:
            setattr(self, counted, getattr(self, counted) + getattr(other, counted))
        self.broken += other.broken

    def note(self, text: str) -> None:
        """Add what was done to the last sentence, for the reader of a failure."""
        if self.broken:
            self.broken[-1] += f" ({text})"

    def count(self, column: str, sentences: Collection[object], what: str) -> None:
        """Count sentences in a column, and keep the first one."""
        if sentences:
            setattr(self, column, getattr(self, column) + len(sentences))
            first = next(iter(sentences))
            more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
            self.broken.append(f"{what}: {first}{more}")

    def judge(self, served: Served, promised: Collection[Ack], put: Collection[int] | None) -> None:
        """Apply the rules of every row: the store opens, what was promised is there, what is there was put."""
        if served.refused is not None:
            self.count("refused", [served.refused], "did not open")
            return
        self.count("lost", served.lost(promised), "acknowledged and lost")
        self.count("invented", [*served.strange, *served.misplaced], "served, but never put")
        if put is not None:
            self.count("invented", [n for n in served.places if n not in put], "served, but never put")
        self.count("errors", served.lost_keys, "a key finds nothing")
        self.count("errors", served.unreadable, "cannot be read")
        self.count("errors", served.unlike_scan, "scan and queues differ at")
        self.count("errors", served.errors, "failed")


COUNTS = tuple(f.name for f in dataclasses.fields(Outcome) if f.name != "broken")
VERDICTS = tuple(name for name in COUNTS if name not in ("faults", "acknowledged"))
"""The columns that must be zero."""


class Row(ABC):
    """Faults of one kind."""

    name: ClassVar[str]
    title: ClassVar[str]
    allowed: ClassVar[str]
    """What the table promises for this row."""
    applies: ClassVar[tuple[str, ...]] = ()
    """The columns, beyond lost, invented and refused, that apply here."""
    share: ClassVar[int]
    """Share of the time, relative to the other rows."""
    stall_s: ClassVar[float] = 150.0
    """A case that takes this long hangs."""
    in_order: ClassVar[bool] = False
    """Cases build on each other: do not shuffle them if there is not enough time for all."""

    def __init__(self, folder: Path, seed: int, *, keep: bool = False) -> None:
        self.folder = folder
        self.seed = seed
        self.keep = keep
        """Keep the files of a case, whatever its outcome."""

    @property
    @abstractmethod
    def cases(self) -> int:
        """Return the number of cases in a full run."""

    @abstractmethod
    def run(self, case: int, folder: Path) -> Outcome:
        """Run one case in a new folder."""

    def close(self) -> None:  # noqa: B027  # most rows leave nothing
        """Remove what the cases shared."""

    def random(self, case: int | str) -> random.Random:
        return random.Random(f"{self.seed}/{self.name}/{case}")

    def order(self, *, full: bool) -> list[int]:
        """Return the cases in order, or shuffled if there is not enough time for all."""
        cases = list(range(self.cases))
        if not full and not self.in_order:
            self.random("order").shuffle(cases)
        return cases
