"""What the processes of a benchmark used: this one and all below it, those that ended included."""

from __future__ import annotations

import os
from pathlib import Path


def processor_s() -> float:
    """Processor time of this process and of all below it, Spark's workers and its JVM included."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += parents.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")
