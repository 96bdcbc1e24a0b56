"""The real Go client, unmodified, finds what RocketMQ's broker promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.artefacts import HERE, built, missing, run_tool
from tests.clients.drivers import run_cases
from tests.clients.endpoints import Endpoint
from tests.clients.promises import keep
from tests.clients.wire import create_topic

pytestmark = [
    pytest.mark.skipif(missing("go") is not None, reason=f"no Go client here: {missing('go')}"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("clients-others"),
]
PARALLEL = 20
CASES = (
    *("send-sync", "send-async", "send-oneway", "send-batch", "send-properties", "send-selector", "body-1-byte"),
    *("body-3-mib-noise", "body-3-mib-text", "body-compressed", "delay-level", "topic-create", "topic-auto-create"),
    *("oversize", "push-concurrent", "push-orderly", "push-broadcast", "long-poll", "filter-tag", "filter-sql"),
    *("from-first", "from-timestamp", "offsets-restart", "rebalance-two", "two-groups", "pull", "retry-later"),
    *("retry-dlq", "request-reply", "tx-commit", "tx-rollback", "tx-check-commit", "tx-check-rollback"),
)
COUNTS = {"send-batch": {"received": 10}}
"""What this client counts differently: it has no ids for the messages of a batch."""
Results = dict[str, dict[str, Any]]


def _results(endpoint: Endpoint, cases: Sequence[str]) -> Results:
    def build(folder: Path) -> None:
        run_tool(["go", "build", "-o", folder / "driver", "."], cwd=HERE / "go")

    driver = built("go", HERE / "go", build) / "driver"
    create_topic(endpoint.broker, "%DLQ%go-retry-dlq", queues=1)
    return run_cases([str(driver)], endpoint, "go", cases, PARALLEL)


@pytest.fixture(scope="module")
def go(endpoint_of: Callable[[str], Endpoint]) -> Results:
    return _results(endpoint_of("5.5"), CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_go_client_finds_that(case: str, go: Results) -> None:
    keep(go, case, COUNTS.get(case))
