"""Stores with one flipped bit, repaired: for real RocketMQ to start on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mqlake.torture.flips import Flips


def flip_and_repair(seed: int, folder: Path) -> Path:
    """The path of a store in which one bit was flipped, and which `mqlake repair` mended in place."""
    case = folder / "case"
    case.mkdir(parents=True)
    Flips(folder, seed, keep=True).run(seed, case)
    store = case / "before"
    subprocess.run([sys.executable, "-m", "mqlake", "repair", str(store), "--yes"], check=True)
    return store
