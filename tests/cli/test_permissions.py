"""A file that this user may not read is no damage: every command says so, and never advises a repair."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mqlake import Message
from tests.helpers import open_small

WITHOUT_POWERS = """
import ctypes
header, powers = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, powers) == 0  # root may then read only what its permissions say
from mqlake.cli.main import main
main()
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "store"],
        ["put", "store", "orders", "b"],
        ["read", "store", "orders"],
        ["topics", "store"],
        ["check", "store"],
        ["repair", "store", "--yes"],
        ["backup", "store", "copy"],
        ["sql", "store", "select topic from messages"],
        ["stats", "store"],
    ],
)
def test_a_missing_permission_is_told_as_such(tmp_path: Path, arguments: list[str]) -> None:
    with open_small(tmp_path / "store") as store:
        store.put(Message("orders", b"1"))
    folders = [each for each in (tmp_path / "store").iterdir() if each.is_dir()]
    for folder in folders:
        folder.chmod(0)
    try:
        command = [sys.executable, "-c", WITHOUT_POWERS, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.returncode in (3, 4), done.stderr
    told = done.stderr.splitlines()[-1]
    assert "change its permissions, or run as a user that has them" in told and "Permission denied" in told
    assert "mqlake repair" not in told and ("FileFailed" in told or "BackupFailed" in told)
