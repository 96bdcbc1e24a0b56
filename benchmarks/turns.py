"""Run sides that do the same work in turn, in one process, and measure them and the rest of the machine.

The rest are other programs, and other virtual machines to which the host lends its processors. A round in which they
used more than a little says nothing about the sides. It is repeated, and only the quietest complete rounds count.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

WARM_UPS = 3
"""Rounds before measuring, because Java compiles what runs often."""
QUIET = 0.05
"""Largest share of the processors that others may use in a round that counts."""
MOST_ROUNDS = 4
"""Limit on the rounds made in search of quiet ones, as a multiple of the requested rounds."""
TICKS = os.sysconf("SC_CLK_TCK")
BUSY = Path("/proc/stat")
Side = Callable[[], object]


class Used(NamedTuple):
    """Processor time of this process and all processes below it."""

    java: float
    python: float
    """Includes processes that have ended."""

    def since(self, before: Used) -> Used:
        return Used(self.java - before.java, self.python - before.python)


def used_s() -> Used:
    children: dict[int, list[int]] = {}
    spent: dict[int, Used] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has just ended
                continue
            fields = rest.split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            own, ended = sum(map(int, fields[11:13])) / TICKS, sum(map(int, fields[13:15])) / TICKS
            spent[int(entry.name)] = Used(own, ended) if name.endswith("(java") else Used(0.0, own + ended)
    left, total = [os.getpid()], Used(0.0, 0.0)
    while left:
        process = left.pop()
        used = spent.get(process, Used(0.0, 0.0))
        total = Used(total.java + used.java, total.python + used.python)
        left += children.get(process, [])
    return total


def busy_s() -> float:
    """Return the seconds that the machine's processors were busy, or lent to others by the host."""
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, BUSY.read_text().split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / TICKS


class Round(NamedTuple):
    """One run of each side."""

    others: float
    """Share of the processors that others used."""
    took: dict[str, float]


def in_turns(sides: Mapping[str, Side], rounds: int, before: Side = lambda: None) -> dict[str, float]:
    """Return medians of the quietest rounds: the seconds of each side, its processor time as `NAMEJava` and
    `NAMEPython`, and `others`, the share of the processors that others used.

    `before` runs before each side and is not timed.
    """
    for _ in range(WARM_UPS):
        for side in sides.values():
            before()
            side()
    made: list[Round] = []
    while sum(one.others <= QUIET for one in made) < rounds and len(made) < MOST_ROUNDS * rounds:
        made.append(_round(sides, before))
    before()
    quiet = sorted(made, key=lambda one: one.others)[:rounds]
    medians = {name: statistics.median(one.took[name] for one in quiet) for name in quiet[0].took}
    return {**medians, "others": statistics.median(one.others for one in quiet)}


def _round(sides: Mapping[str, Side], before: Side) -> Round:
    took: dict[str, float] = {}
    others = total = 0.0
    for name, side in sides.items():
        before()
        used, busy, began = used_s(), busy_s(), time.perf_counter()
        side()
        took[name] = time.perf_counter() - began
        java, python = used_s().since(used)
        took |= {f"{name}Java": java, f"{name}Python": python}
        others, total = others + busy_s() - busy - java - python, total + took[name]
    return Round(others / (total * (os.cpu_count() or 1)), took)


@contextmanager
def put_aside(folder: Path) -> Iterator[Side]:
    """Yield a function to call before each side. After it, `folder` does not exist and all writes are on disk.

    It empties `folder` and moves it away instead of deleting it, because ext4 creates files slowly for minutes after
    many were deleted. The moved folders are deleted at the end.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        names = (Path(aside, str(number)) for number in itertools.count())

        def move() -> None:
            for path in folder.rglob("*"):
                if path.is_file():
                    os.truncate(path, 0)
            if folder.exists():
                folder.rename(next(names))
            os.sync()

        yield move


def settings_of(arguments: list[str], **others: int) -> dict[str, int]:
    """Return the settings given as NAME=NUMBER after a workload and a folder, and defaults for the others."""
    given = {name: int(value) for name, value in (argument.split("=") for argument in arguments)}
    return {"mib": 1024, "body": 180, "rounds": 3, **others, **given}
