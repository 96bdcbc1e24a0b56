"""A broker is replaced on its disk and its ports, under load: RocketMQ by mqlake, and mqlake by RocketMQ.

The clients are real and go on running. What was accepted is delivered, in order, once, but for what was in flight
at the swap; delayed messages and transactions that were under way end as they would have.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.artefacts import java_command, maven, missing
from tests.clients.endpoints import Endpoint, start
from tests.clients.wire import create_topic

pytestmark = [
    pytest.mark.skipif(missing("java", "mvn") is not None, reason=f"no RocketMQ here: {missing('java', 'mvn')}"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("clients-others"),
    pytest.mark.long,
]
KINDS = ("plain", "ordered", "delayed", "tx")
AT_LEAST = {"plain": 60, "ordered": 40, "delayed": 10, "tx": 10}
"""What must be accepted of each kind before a broker is replaced, and after."""


class Load:
    """The clients, in a process of their own."""

    def __init__(self, endpoint: Endpoint, release: str, home: Path) -> None:
        options = ["-Xmx512m", f"-Duser.home={home}", "-Drocketmq.client.rebalance.waitInterval=1000"]
        command = java_command(maven("java", release), "Load", *options)
        self._process = subprocess.Popen(
            [*command, endpoint.name_server, "swap"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def until_more(self, name: str) -> None:
        """Wait until so much more of each kind has been accepted (or received)."""
        before = self.ask("counts")
        end = time.monotonic() + 90
        while True:
            now = self.ask("counts")
            if all(now[f"{name} {kind}"] - before[f"{name} {kind}"] >= AT_LEAST[kind] for kind in KINDS):
                return
            assert time.monotonic() < end, f"the clients do not go on: before {before}, now {now}"
            time.sleep(0.2)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.parametrize("release", ["5.5", "4.9"])
@pytest.mark.parametrize("order", ["rocketmq first", "mqlake first"])
def test_clients_go_on_when_their_broker_is_replaced_and_replaced_back(
    release: str, order: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    both = [f"rocketmq-{release}", "mqlake"]
    kinds = both if order == "rocketmq first" else both[::-1]
    endpoint = start(kinds[0], tmp_path / "store")
    for kind in KINDS:
        create_topic(endpoint.broker, f"swap-{kind}")
        create_topic(endpoint.broker, f"%RETRY%swap-{kind}-group", queues=1)
    load = Load(endpoint, release, tmp_path)
    try:
        load.until_more("received")
        for kind in (kinds[1], kinds[0]):
            load.until_more("accepted")
            endpoint.stop()
            endpoint = start(kind, tmp_path / "store", endpoint.ports)
            load.until_more("accepted")
            load.until_more("received")
        report = load.ask("end")
    finally:
        load.stop()
        endpoint.stop()
    record_property("swap", report)
    print(json.dumps(report, indent=1))
    assert {kind: report[f"missing {kind}"] for kind in KINDS} == {kind: [] for kind in KINDS}, report
    assert {kind: report[f"unknown {kind}"] for kind in KINDS} == dict.fromkeys(KINDS, 0), report
    assert report["rolled back but delivered"] == 0, report
    assert report["misordered"] == 0, report
    for kind in KINDS:  # a consumer fetches at most 32 of each queue before it commits, at each of two swaps
        assert report[f"repeated {kind}"] <= 2 * 4 * 32, report
