"""The endpoint that the clients of a module talk to: mqlake, or with ``MQLAKE_ENDPOINT=rocketmq`` the real broker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.endpoints import Endpoint, start

ENDPOINT = os.environ.get("MQLAKE_ENDPOINT", "mqlake")


@pytest.fixture(scope="module")
def endpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Endpoint]]:
    """Return a function that starts an endpoint: mqlake, or RocketMQ of a release."""
    running: list[Endpoint] = []

    def started(release: str) -> Endpoint:
        kind = ENDPOINT if ENDPOINT != "rocketmq" else f"rocketmq-{release}"
        running.append(start(kind, Path(tmp_path_factory.mktemp("endpoint")) / "store"))
        return running[-1]

    yield started
    for endpoint in running:
        endpoint.stop()
