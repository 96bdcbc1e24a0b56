"""The real C++ client, through its Python wrapper, finds what RocketMQ's broker promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.artefacts import HERE, BuildFailed, built, run_tool
from tests.clients.drivers import run_cases
from tests.clients.endpoints import Endpoint
from tests.clients.promises import keep

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("clients-others")]
PARALLEL = 8
CASES = (
    *("send-sync", "send-async", "send-oneway", "send-properties", "send-selector", "body-1-byte"),
    *("body-3-mib-noise", "body-3-mib-text", "delay-level", "oversize", "push-concurrent", "push-orderly"),
    *("push-broadcast", "long-poll", "filter-tag", "offsets-restart", "rebalance-two", "two-groups", "pull"),
)
COUNTS: dict[str, dict[str, Any]] = {
    "send-sync": {"received": 20, "ids": 20},
    "oversize": {"refused": 1, "received": 4},
    "pull": {"received": 20},
}
"""What this client counts differently: it has one id for a message, and no codes in its errors."""
Results = dict[str, dict[str, Any]]


def _python() -> Path:
    """Return a Python that has the client, which is only published under a name that others use too."""

    def build(folder: Path) -> None:
        run_tool([sys.executable, "-m", "venv", folder / "venv"])
        run_tool([folder / "venv" / "bin" / "python", "-m", "pip", "install", "-q", "rocketmq==0.4.4"])

    return built("cpp", HERE / "cpp" / "driver.py", build) / "venv" / "bin" / "python"


def _results(endpoint: Endpoint, cases: Sequence[str]) -> Results:
    command = [str(_python()), str(HERE / "cpp" / "driver.py")]
    return run_cases(command, endpoint, "cpp", cases, PARALLEL)


@pytest.fixture(scope="module")
def cpp(endpoint_of: Callable[[str], Endpoint]) -> Results:
    try:
        python = _python()
    except BuildFailed as error:
        pytest.skip(f"no C++ client for this machine: {error}")
    loaded = subprocess.run([python, "-c", "import rocketmq.client"], capture_output=True, text=True, check=False)
    if loaded.returncode != 0:
        pytest.skip(f"the C++ client does not load here: {loaded.stderr[-300:]}")
    return _results(endpoint_of("5.5"), CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_cpp_client_finds_that(case: str, cpp: Results) -> None:
    keep(cpp, case, COUNTS.get(case))


@pytest.mark.long
def test_the_cpp_client_gets_a_refused_message_again(endpoint_of: Callable[[str], Endpoint]) -> None:
    keep(_results(endpoint_of("5.5"), ["retry-later"]), "retry-later", None)
