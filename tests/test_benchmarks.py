"""A benchmark's result arrives whatever else is printed, and a failed one says what failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kafka import broker
from benchmarks.result import result_of

ROOT = Path(__file__).parents[1]


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"from benchmarks.result import tell\n{program}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "program",
    [
        "tell({'rate': 7.5})",
        "print('Downloading'); tell({'rate': 7.5}); print('WARN spark: stopped')",
        "print('[===   ] 40%', end=''); tell({'rate': 7.5}); print('{\"not\": \"it\"}')",
        "tell({'rate': 1}); tell({'rate': 7.5}); print('', end='\\n\\n')",
    ],
)
def test_a_result_is_found_among_whatever_else_a_program_prints(program: str) -> None:
    assert result_of("it", run(program)) == {"rate": 7.5}


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('no space left'); raise SystemExit(3)", ("put ended with status 3", "no space left")),
        ("raise ValueError('what failed')", ("status 1 and no result", "what failed")),
        ("print('{\"rate\": 7.5}')", ("status 0 and no result", "7.5")),
        ("print('mqlake-result: {\"rate\": 7.')", ("status 0 and no result", "mqlake-result")),
        ("pass", ("it printed:\nnothing",)),
    ],
)
def test_a_program_without_a_result_is_an_error_with_what_it_printed(program: str, said: tuple[str, ...]) -> None:
    with pytest.raises(RuntimeError) as raised:
        result_of("put", run(program))
    for text in said:
        assert text in str(raised.value)


def test_a_failed_download_says_why_and_leaves_nothing_for_the_next_run(tmp_path: Path) -> None:
    script = "import pathlib, sys\npathlib.Path(sys.argv[1], 'a.jar').touch()\nprint('no such host')\n"
    script += "sys.exit(int(sys.argv[2]))"

    def command(folder: Path, status: int) -> list[str]:
        return [sys.executable, "-c", script, str(folder), str(status)]

    with pytest.raises(RuntimeError, match="failed with status 5:\nno such host"):
        broker._fetch_into(tmp_path / "jars", lambda folder: command(folder, 5))
    assert not (tmp_path / "jars").exists()
    broker._fetch_into(tmp_path / "jars", lambda folder: command(folder, 0))
    assert [path.name for path in (tmp_path / "jars").iterdir()] == ["a.jar"]
    broker._fetch_into(tmp_path / "jars", lambda folder: command(folder, 5))  # it is complete: nothing is run
