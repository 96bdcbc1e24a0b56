"""The real Node client, unmodified, finds what RocketMQ's broker promises."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.artefacts import HERE, built, missing, run_tool
from tests.clients.drivers import run_cases
from tests.clients.endpoints import Endpoint
from tests.clients.promises import keep

pytestmark = [
    pytest.mark.skipif(missing("node", "npm") is not None, reason=f"no Node client here: {missing('node', 'npm')}"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("clients-others"),
]
PARALLEL = 10
CASES = (
    *("send-sync", "send-parallel", "send-properties", "send-selector", "body-1-byte", "body-3-mib-noise"),
    *("body-3-mib-text", "body-compressed", "delay-level", "oversize", "push-concurrent", "push-broadcast"),
    *("long-poll", "filter-tag", "filter-sql", "from-first", "offsets-restart", "rebalance-two", "two-groups"),
    "retry-later",
)
COUNTS: dict[str, dict[str, Any]] = {
    "send-sync": {"received": 20, "ids": 20},
    "body-compressed": {"received": 1},
    "filter-tag": {"received": 24},
    "filter-sql": {"received": 8},
}
"""What this client counts differently: it has one id for a message, and sends no message without a tag."""
Results = dict[str, dict[str, Any]]


def _results(endpoint: Endpoint, cases: Sequence[str]) -> Results:
    def build(folder: Path) -> None:
        for name in ("package.json", "driver.js"):
            shutil.copy(HERE / "node" / name, folder)
        run_tool(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=folder)

    driver = built("node", HERE / "node", build) / "driver.js"
    return run_cases(["node", str(driver)], endpoint, "node", cases, PARALLEL)


@pytest.fixture(scope="module")
def node(endpoint_of: Callable[[str], Endpoint]) -> Results:
    return _results(endpoint_of("5.5"), CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_node_client_finds_that(case: str, node: Results) -> None:
    keep(node, case, COUNTS.get(case))
