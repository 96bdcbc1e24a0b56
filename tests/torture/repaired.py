"""Stores with one flipped bit, repaired, on which a real RocketMQ then starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mqlake.torture.flips import Flips


def flip_and_repair(seed: int, folder: Path) -> Path:
    """Return the path of a store in which one bit was flipped and which `mqlake repair` repaired in place."""
    case = folder / "case"
    case.mkdir(parents=True)
    Flips(folder, seed, keep=True).run(seed, case)
    store = case / "before"
    subprocess.run([sys.executable, "-m", "mqlake", "repair", str(store), "--yes"], check=True)
    return store
