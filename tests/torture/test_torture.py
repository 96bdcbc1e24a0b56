"""A sample of `mqlake torture` in every test run: each row for a few seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.torture.rows import ROWS
from mqlake.torture.run import Torture
from tests.helpers import covers

SEED = 2097
"""With this seed, the first case of each row acknowledges something before its fault, on slow machines too."""
SECONDS = {
    "shapes": 8,
    "cuts": 10,
    "full": 1,
    "syncs": 8,
    "flips": 12,
    "heal": 6,
    "partition": 8,
    "kill": 12,
    "power": 12,
    "sink": 1,
    "pipeline": 1,
}
"""Enough for at least one case of each row."""
LONG = {"sink": pytest.mark.long, "pipeline": pytest.mark.long}
"""Each of their cases starts five Spark drivers; `tests/spark/` has the short ones."""


@covers("N4", "N6")
@pytest.mark.parametrize("row", [pytest.param(row, marks=LONG[row]) if row in LONG else row for row in ROWS])
def test_no_fault_costs_an_acknowledged_message(row: str, tmp_path: Path) -> None:
    result = Torture(tmp_path, SEED).run_row(row, SECONDS[row])
    if result.skipped:
        pytest.skip(result.skipped)
    failures = [f"--only {f.row} --case {f.case} --seed {SEED}: {'; '.join(f.broken)}" for f in result.failures]
    assert result.is_good, "\n".join(failures[:10])
    assert result.total.faults > 0 and result.total.acknowledged > 0
