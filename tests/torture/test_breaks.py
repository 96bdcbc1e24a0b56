"""The torture can fail: the row that guards a promise catches a store that breaks it on purpose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mqlake.torture.run import Torture
from tests.helpers import eventually
from tests.plain_locks import plain_locks

BREAKS = os.pathsep.join(filter(None, [str(Path(__file__).parent / "breaks"), os.environ.get("PYTHONPATH")]))

CONVICTIONS = [
    ("kill", 1, "cuts_too_much", "lost"),
    ("power", 0, "no_sync", "lost"),
    ("power", 0, "no_directory_sync", "lost"),
    ("cuts", 0, "cuts_too_much", "lost"),
    ("flips", 3, "serves_damage", "undetected"),
    ("syncs", 40, "deaf_to_errors", "false_acks"),
    pytest.param("full", 1, "never_resumes", "errors", marks=pytest.mark.long),  # waits for the 15 s
    ("shapes", 0, "refuses_rudely", "refused"),
    ("partition", 19, "confirms_early", "lost"),
    ("partition", 19, "merges_logs", "undetected"),
]

# Timing decides what a kill leaves to be cut, and whether the Nth sync is one of the log or of a queue.
TRIES = {"kill": 40, "syncs": 20}


@pytest.mark.parametrize(("row", "case", "how", "column"), CONVICTIONS)
def test_a_broken_store_is_caught(
    row: str, case: int, how: str, column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", BREAKS)
    monkeypatch.setenv("BREAK", how)
    result = Torture(tmp_path, seed=1).run_row(row, None, case)
    last = case + TRIES.get(row, 0)
    while not getattr(result.total, column) and case < last:
        case += 1
        result = Torture(tmp_path, seed=1).run_row(row, None, case)
    if result.skipped:
        pytest.skip(result.skipped)
    assert getattr(result.total, column) > 0, result
    assert not result.is_good
    assert [failure.case for failure in result.failures] == [case]


def torture(tmp_path: Path, *words: str, how: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": BREAKS, "BREAK": how}
    command = [sys.executable, "-m", "mqlake", "torture", str(tmp_path), "--seed", "7", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_a_broken_promise_is_reported_with_its_command_and_its_folder(tmp_path: Path) -> None:
    done = torture(tmp_path, "--only", "shapes", "--case", "0", how="refuses_rudely")
    assert done.returncode == 1
    assert "refused without a remedy: ValueError: unexpected (no queues, of the closed store)" in done.stdout
    assert f"mqlake torture {tmp_path} --only shapes --case 0 --seed 7" in done.stdout
    kept = next(tmp_path.glob("mqlake-torture-7-*/shapes/case-0"))
    assert f"kept in {kept}" in done.stdout
    assert (kept / "before").is_dir()


def test_a_worker_that_dies_counts_as_an_error_and_the_row_continues(tmp_path: Path) -> None:
    done = torture(tmp_path, "--only", "kill", "--minutes", "0.01", "--json", how="dies_in_the_judge")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["errors"] > 1 and report["cases"] == report["errors"]
    assert f"mqlake torture {tmp_path} --only kill --case" in report["failures"][0]["again"]


@pytest.mark.parametrize(
    ("row", "reason"), [("full", "mounting a small disk needs root"), ("partition", "network namespaces need root")]
)
def test_a_row_that_is_not_permitted_here_is_skipped_with_the_reason(row: str, reason: str, tmp_path: Path) -> None:
    done = torture(tmp_path, "--only", row, how="is_not_root")
    assert done.returncode == 0
    assert f"{row}: not allowed here, skipped: {reason}" in done.stdout


def test_nothing_is_left_if_every_promise_was_kept(tmp_path: Path) -> None:
    done = torture(tmp_path, "--only", "kill", "--minutes", "0.01", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert report["row"] == "kill" and report["faults"] >= 1 and report["acknowledged"] > 1 and report["seed"] == 7
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", [["--only", "sharks"], ["--case", "1"], ["--only", "kill,power", "--case", "1"]])
def test_a_wrong_command_line_is_a_usage_error(tmp_path: Path, words: list[str]) -> None:
    done = torture(tmp_path, *words)
    assert done.returncode == 2
    assert os.listdir(tmp_path) == []


def test_rows_that_run_at_the_same_time_are_reported_in_their_order(tmp_path: Path) -> None:
    done = torture(tmp_path, "--only", "kill,shapes,cuts", "--minutes", "0.02", "--jobs", "3", "--json")
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout
    assert [report["row"] for report in reports] == ["kill", "shapes", "cuts"]
    assert all(report["faults"] > 0 for report in reports)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("row", ["kill", "full", "partition", "kill,full"])
def test_an_interrupted_run_says_what_was_finished_and_leaves_nothing(row: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mqlake", "torture", str(tmp_path), "--only", row, "--jobs", "2", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=plain_locks())
    assert eventually(lambda: any(tmp_path.glob("*/*/case-*/ledger")) or process.poll() is not None, 20)
    if process.poll() == 0:
        pytest.skip("this row is not allowed here")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, b"")
    reports = [json.loads(line) for line in output.splitlines()]
    assert {report["row"] for report in reports} <= set(row.split(","))
    assert reports and not any(report["failures"] or report["errors"] for report in reports)
    assert os.listdir(tmp_path) == []
