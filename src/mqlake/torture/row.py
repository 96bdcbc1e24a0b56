"""A row of the table: a kind of fault, its cases, and what came of them.

A case is a number. Everything drawn in it follows from the seed, the row and that number, so that one case can be run
again by itself; where threads and kills take part, the moment is drawn again but the clock decides.
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
    """This machine does not allow the faults of a row; it is passed over, and the table says why."""


@dataclass(slots=True)
class Outcome:
    """What came of a case, or of many: counts, and a sentence for each promise that was broken."""

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
        """What was done, for the reader of a failure."""
        if self.broken:
            self.broken[-1] += f" ({text})"

    def count(self, column: str, sentences: Collection[object], what: str) -> None:
        """Count sentences in a column, and keep the first of them."""
        if sentences:
            setattr(self, column, getattr(self, column) + len(sentences))
            first = next(iter(sentences))
            more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
            self.broken.append(f"{what}: {first}{more}")

    def judge(self, served: Served, promised: Collection[Ack], put: Collection[int] | None) -> None:
        """The rules that every row has: it opens, all that was promised is there, all that is there was put."""
        if served.refused is not None:
            self.count("refused", [served.refused], "did not open")
            return
        self.count("lost", served.lost(promised), "acknowledged and lost")
        self.count("invented", [*served.strange, *served.misplaced], "served, but never put")
        if put is not None:
            self.count("invented", [n for n in served.places if n not in put], "served, but never put")
        self.count("errors", served.lost_keys, "a key leads nowhere")
        self.count("errors", served.unreadable, "cannot be read")
        self.count("errors", served.unlike_scan, "scan and queues differ at")
        self.count("errors", served.errors, "went wrong")


COUNTS = tuple(f.name for f in dataclasses.fields(Outcome) if f.name != "broken")
VERDICTS = tuple(name for name in COUNTS if name not in ("faults", "acknowledged"))
"""The columns that must be zero."""


class Row(ABC):
    """The faults of one kind."""

    name: ClassVar[str]
    title: ClassVar[str]
    allowed: ClassVar[str]
    """What the table promises of this row."""
    applies: ClassVar[tuple[str, ...]] = ()
    """The columns beyond lost, invented and refused that mean something here."""
    share: ClassVar[int]
    """Of the time, against the other rows."""
    stall_s: ClassVar[float] = 150.0
    """No case takes this long, unless something hangs."""
    in_order: ClassVar[bool] = False
    """Cases build on the one before: do not shuffle them when there is not the time for all."""

    def __init__(self, folder: Path, seed: int, *, keep: bool = False) -> None:
        self.folder = folder
        self.seed = seed
        self.keep = keep
        """Leave what a case was made of in its folder, whatever comes of it."""

    @property
    @abstractmethod
    def cases(self) -> int:
        """How many there are in a full run."""

    @abstractmethod
    def run(self, case: int, folder: Path) -> Outcome:
        """Run one case in a new folder."""

    def close(self) -> None:  # noqa: B027  # most rows leave nothing
        """Remove what the cases shared."""

    def random(self, case: int | str) -> random.Random:
        return random.Random(f"{self.seed}/{self.name}/{case}")

    def order(self, *, full: bool) -> list[int]:
        """The cases, one by one; shuffled where time will not allow all."""
        cases = list(range(self.cases))
        if not full and not self.in_order:
            self.random("order").shuffle(cases)
        return cases
