"""The real Java clients of RocketMQ 5.5 and 4.9, unmodified, find what RocketMQ's broker promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.clients.artefacts import java_command, maven, missing
from tests.clients.conftest import ENDPOINT
from tests.clients.drivers import run_cases
from tests.clients.endpoints import Endpoint
from tests.clients.promises import PROMISES, keep

pytestmark = [
    pytest.mark.skipif(missing("java", "mvn") is not None, reason=f"no Java client here: {missing('java', 'mvn')}"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("clients-java"),
]
PARALLEL = 12
ONLY_5 = ("timer-recall", "push-pop", "push-server-rebalance")
ALL = [case for case in PROMISES if case != "send-parallel"]
CASES = [case for case in ALL if case not in ONLY_5]
BINARY = (
    *("send-sync", "send-batch", "send-properties", "send-unicode", "push-concurrent", "push-orderly", "pull"),
    *("filter-sql", "query-key", "request-reply", "retry-later", "topic-create", "tx-check-commit", "oversize"),
    *("offsets-query", "offset-reset", "view-offset-id", "push-broadcast"),
)
BROKER_49 = {
    "queue-id-invalid": {"code": 1, "pull code": 1, "received": 4},
    "offsets-query": {"sent": 10, "after the end": 9},
    "topic-illegal": {"code": 1},
}
"""What RocketMQ's own 4.9 broker answers differently."""
Results = dict[str, dict[str, Any]]


def _results(endpoint: Endpoint, release: str, prefix: str, cases: Sequence[str], *options: str) -> Results:
    jvm = ["-Xmx512m", "-Duser.home={home}", "-Drocketmq.client.rebalance.waitInterval=1000", *options]
    command = java_command(maven("java", release), "Driver", *jvm)
    return run_cases(command, endpoint, prefix, cases, PARALLEL)


@pytest.fixture(scope="module")
def java_55(endpoint_of: Callable[[str], Endpoint]) -> Results:
    return _results(endpoint_of("5.5"), "5.5", "java55", ALL)


@pytest.fixture(scope="module")
def java_55_binary(endpoint_of: Callable[[str], Endpoint]) -> Results:
    return _results(endpoint_of("5.5"), "5.5", "java55b", BINARY, "-Drocketmq.serialize.type=ROCKETMQ")


@pytest.fixture(scope="module")
def java_49(endpoint_of: Callable[[str], Endpoint]) -> Results:
    endpoint = endpoint_of("4.9")
    cases = [case for case in CASES if not (endpoint.kind == "rocketmq-4.9" and case == "timer-deliver")]
    return _results(endpoint, "4.9", "java49", cases)


@pytest.mark.parametrize("case", ALL)
def test_the_java_client_of_5_5_finds_that(case: str, java_55: Results) -> None:
    keep(java_55, case)


@pytest.mark.parametrize("case", BINARY)
def test_the_java_client_with_binary_headers_finds_that(case: str, java_55_binary: Results) -> None:
    keep(java_55_binary, case)


@pytest.mark.parametrize("case", CASES)
def test_the_java_client_of_4_9_finds_that(case: str, java_49: Results) -> None:
    if case not in java_49:
        pytest.skip("RocketMQ 4.9 has no timed messages")
    keep(java_49, case, BROKER_49.get(case) if ENDPOINT in ("rocketmq", "rocketmq-4.9") else None)
