"""`mqlake times`."""

from __future__ import annotations

import shutil
from pathlib import Path

from mqlake.files.layout import Layout
from mqlake.logs.file_times import times_of
from tests.cli.conftest import Cli
from tests.helpers import message, open_small


def test_times_of_closed_files_are_noted_for_a_store_that_mqlake_did_not_write(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        for number in range(400):
            store.put(message(number, body=b"x" * 500))
    shutil.rmtree(path / "mqlake")
    starts = sorted(int(file.name) for file in (path / "commitlog").iterdir())
    done = cli.ok("times", path)
    assert done == f"times of {len(starts) - 1} files noted\n"
    assert [times_of(Layout(path), start) is not None for start in starts] == [True] * (len(starts) - 1) + [False]
    assert cli.ok("times", path) == "times of 0 files noted\n"
