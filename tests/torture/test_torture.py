"""A slice of `mqlake torture`, in every test run: each row for a few seconds, with another seed each day."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mqlake.torture.rows import ROWS
from mqlake.torture.run import Torture
from tests.helpers import covers

SECONDS = {"shapes": 8, "cuts": 10, "full": 1, "syncs": 8, "flips": 12, "kill": 12, "power": 12}
"""At least one case of each."""


@covers("N4", "N6")
@pytest.mark.parametrize("row", ROWS)
def test_no_fault_costs_an_acknowledged_message(row: str, tmp_path: Path) -> None:
    seed = int(time.time()) // 86_400
    result = Torture(tmp_path, seed).run_row(row, SECONDS[row])
    if result.skipped:
        pytest.skip(result.skipped)
    failures = [f"--only {f.row} --case {f.case} --seed {seed}: {'; '.join(f.broken)}" for f in result.failures]
    assert result.is_good, "\n".join(failures[:10])
    assert result.total.faults > 0 and result.total.acknowledged > 0
