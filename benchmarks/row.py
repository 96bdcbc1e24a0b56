"""A row of the table, and how its sides are run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.result import result_of
from tests.interop.rocketmq import RocketMQ

ROCKETMQ = "5.5.1"
Measure = Callable[["Bench"], float]


@dataclass
class Bench:
    """One round of one row: where it may write, and how much work it does."""

    directory: Path
    scale: float
    notes: dict[str, float] = field(default_factory=dict)

    def ours(self, workload: str, store: str = "", **options: int) -> dict[str, Any]:
        """Run one of our workloads in a separate process."""
        return self.run("ours", workload, store, **options)

    def run(self, module: str, workload: str, store: str, **options: int) -> dict[str, Any]:
        path = self.directory / (store or "ours")
        command = [sys.executable, "-m", f"benchmarks.{module}", workload, str(path)]
        command += [f"{name}={value}" for name, value in options.items()]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        result = result_of(workload, done)
        if not store:
            shutil.rmtree(path, ignore_errors=True)
        return result

    def theirs(self, workload: str, store: str = "", **options: Any) -> dict[str, Any]:
        """Run one of RocketMQ's workloads."""
        path = self.directory / (store or "theirs")
        result = RocketMQ(ROCKETMQ).bench(workload, path, **options)
        if not store:
            shutil.rmtree(path, ignore_errors=True)
        return result

    def spark(self, module: str, *arguments: str, body: int | None = None, mib: int = 1024) -> dict[str, Any]:
        """Run a workload on Spark and the one it is compared with in one process, because a JVM starts slowly."""
        command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, str(self.directory)]
        command += [f"mib={max(64, int(mib * self.scale))}"]
        command += [f"body={body}", "rounds=3"] if body is not None else []
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
        return result_of(f"{module} {' '.join(arguments)}", done)

    def count(self, full: int) -> int:
        return max(1000, int(full * self.scale))


@dataclass(frozen=True)
class Row:
    """A row of the table: what is measured on each side, and the goal for the ratio."""

    name: str
    title: str
    goal: str
    ours: Measure
    theirs: Measure | None
    unit: str = "/s"


def rate_of(result: dict[str, Any]) -> float:
    """Return the rate of either side. RocketMQ names it after what is counted."""
    for name in ("rate", "messagesPerSecond", "queriesPerSecond", "lookupsPerSecond", "perSecond"):
        if name in result:
            return float(result[name])
    raise KeyError(f"no rate in {result}")
