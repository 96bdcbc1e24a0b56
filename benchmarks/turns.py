"""Sides that do the same work take turns in one process; what each took, and what the machine's owner took meanwhile.

On a virtual machine the host gives a part of the processors to others, now and then, and says so. A round in which that
was more than a little says nothing of the sides: it is made again, and the quietest rounds count, whole ones only.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

WARM_UPS = 3
"""Java compiles what it runs often."""
QUIET = 0.03
"""The share of the processors that others may have had in a round that counts."""
MOST_ROUNDS = 4
"""How many times as many rounds as were asked for may be made, in search of quiet ones."""
TICKS = os.sysconf("SC_CLK_TCK")
Side = Callable[[], object]


class Used(NamedTuple):
    """Processor time of this process and of all below it."""

    java: float
    python: float
    """And of all those that have ended."""

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


def stolen_s() -> float:
    """Seconds that the processors of this machine were given to others, since it was started."""
    return int(Path("/proc/stat").read_text().split()[8]) / TICKS


class Round(NamedTuple):
    """Each side once."""

    stolen: float
    took: dict[str, float]


def in_turns(sides: Mapping[str, Side], rounds: int, before: Side = lambda: None) -> dict[str, float]:
    """Medians of the quietest rounds: seconds of each side, its processor time as `NAMEJava` and `NAMEPython`; and
    `stolen`, the share of the processors that others had. `before` is done ahead of each, and not timed."""
    for _ in range(WARM_UPS):
        for side in sides.values():
            before()
            side()
    made: list[Round] = []
    while sum(one.stolen <= QUIET for one in made) < rounds and len(made) < MOST_ROUNDS * rounds:
        made.append(_round(sides, before))
    before()
    quiet = sorted(made, key=lambda one: one.stolen)[:rounds]
    medians = {name: statistics.median(one.took[name] for one in quiet) for name in quiet[0].took}
    return {**medians, "stolen": statistics.median(one.stolen for one in quiet)}


def _round(sides: Mapping[str, Side], before: Side) -> Round:
    took: dict[str, float] = {}
    stolen = total = 0.0
    for name, side in sides.items():
        before()
        used, lost, began = used_s(), stolen_s(), time.perf_counter()
        side()
        took[name] = time.perf_counter() - began
        java, python = used_s().since(used)
        took |= {f"{name}Java": java, f"{name}Python": python}
        stolen, total = stolen + stolen_s() - lost, total + took[name]
    return Round(stolen / (total * (os.cpu_count() or 1)), took)


def settings_of(arguments: list[str], **others: int) -> dict[str, int]:
    """What is said as NAME=NUMBER behind a workload and a folder, and the usual values."""
    given = {name: int(value) for name, value in (argument.split("=") for argument in arguments)}
    return {"mib": 1024, "body": 180, "rounds": 3, **others, **given}
