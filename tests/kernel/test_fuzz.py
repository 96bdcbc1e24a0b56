"""Mutated bytes never crash the compiled kernel, never keep it busy for long, never make it take much memory.

The fuzzer runs in a process of its own (`fuzz.py` says how): its death is a failed test that names seed and round.
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
    """The exit code of a run, and how to run its last round again, with what it wrote."""
    compiled()
    progress = folder / "round"
    command = [sys.executable, "-m", "tests.kernel.fuzz", "--seed", str(seed), *options]
    with progress.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])
    again = f"python -m tests.kernel.fuzz --seed {seed} --only {progress.read_text().strip()}"
    return done.returncode, f"{again}\n{done.stderr.decode(errors='replace')}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mutated_bytes_do_not_crash_the_kernel(tmp_path: Path, seed: int) -> None:
    code, told = run_fuzzer(tmp_path, seed, "--seconds", str(DEFAULT_SECONDS))
    assert code == 0, told


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 300)
def test_ten_minutes_of_new_mutations_do_not_crash_the_kernel(tmp_path: Path) -> None:
    code, told = run_fuzzer(tmp_path, time.time_ns(), "--seconds", str(LONG_SECONDS))
    assert code == 0, told


def test_a_read_one_byte_too_far_would_be_seen_as_a_crash(tmp_path: Path) -> None:
    code, told = run_fuzzer(tmp_path, 0, "--overrun")
    assert code == -signal.SIGSEGV
    assert "--seed 0 --only 0" in told


def test_memory_that_grows_without_bound_would_be_seen(tmp_path: Path) -> None:
    code, told = run_fuzzer(tmp_path, 0, "--devour")
    assert code == 1
    assert "MemoryError" in told


def test_a_round_that_does_not_end_would_be_seen(tmp_path: Path) -> None:
    code, told = run_fuzzer(tmp_path, 5, "--hang")
    assert code == -signal.SIGALRM
    assert "--seed 5 --only 0" in told
