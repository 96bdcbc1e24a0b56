"""Mutated bytes never crash the compiled kernel, never keep it busy for long, and never make it use much memory.

The fuzzer runs in a separate process (see `fuzz.py`). If it dies, the test fails and names seed and round.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kernel.twins import compiled

DEFAULT_SECONDS = 4
LONG_SECONDS = 600


def run_fuzzer(folder: Path, seed: int, *options: str) -> tuple[int, str]:
    """Return the exit code of a run, and the command that repeats its last round, with its output."""
    compiled()
    progress = folder / "round"
    command = [sys.executable, "-m", "tests.kernel.fuzz", "--seed", str(seed), *options]
    with progress.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])
    again = f"python -m tests.kernel.fuzz --seed {seed} --only {progress.read_text().strip()}"
    return done.returncode, f"{again}\n{done.stderr.decode(errors='replace')}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mutated_bytes_do_not_crash_the_kernel(tmp_path: Path, seed: int) -> None:
    code, output = run_fuzzer(tmp_path, seed, "--seconds", str(DEFAULT_SECONDS))
    assert code == 0, output


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 300)
def test_ten_minutes_of_new_mutations_do_not_crash_the_kernel(tmp_path: Path) -> None:
    code, output = run_fuzzer(tmp_path, time.time_ns(), "--seconds", str(LONG_SECONDS))
    assert code == 0, output


def test_the_fuzzer_detects_a_read_one_byte_too_far(tmp_path: Path) -> None:
    code, output = run_fuzzer(tmp_path, 0, "--overrun")
    assert code == -signal.SIGSEGV
    assert "--seed 0 --only 0" in output


def test_the_fuzzer_detects_memory_that_grows_without_bound(tmp_path: Path) -> None:
    code, output = run_fuzzer(tmp_path, 0, "--devour")
    assert code == 1
    assert "MemoryError" in output


def test_the_fuzzer_detects_a_round_that_does_not_end(tmp_path: Path) -> None:
    code, output = run_fuzzer(tmp_path, 5, "--hang")
    assert code == -signal.SIGALRM
    assert "--seed 5 --only 0" in output
