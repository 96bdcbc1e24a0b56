"""Metrics, health and readiness, and what `mqlake serve` says on a terminal and in its log."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.listening import Address
from mqlake.broker.metrics import Metric, MetricsServer, Sample, write_metrics
from mqlake.broker.stats import Histogram
from mqlake.cli.log_format import JsonLines
from mqlake.cli.metrics_client import parse_metrics
from mqlake.errors import InvalidConfig
from tests.broker.wire import Wire

Get = Callable[[str], tuple[int, str]]


@pytest.fixture
def endpoint(broker: BrokerThread) -> Iterator[str]:
    loop = broker.served.broker.loop
    server = MetricsServer(broker.served.broker)
    asyncio.run_coroutine_threadsafe(server.start(Address("127.0.0.1", 0)), loop).result(30)
    yield str(server.address)
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)


@pytest.fixture
def get(endpoint: str) -> Get:
    def fetch(path: str, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection(endpoint, timeout=30)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    return fetch


def test_metrics_count_what_came_in_and_went_out(broker: BrokerThread, wire: Wire, get: Get) -> None:
    for number in range(5):
        assert wire.put("T", b"x" * 100, queue_id=number % 4).code == 0
    broker.store.wait_dispatched()
    assert wire.pull("G", "T").code == 0
    wire.call(15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"})
    found = parse_metrics(get("/metrics")[1])
    assert found["mqlake_messages_in_total"]["T",] == 5
    assert found["mqlake_bytes_in_total"]["T",] > 500
    assert found["mqlake_messages_out_total"]["G", "T"] == 2
    assert found["mqlake_consumer_lag_messages"]["G", "T"] == 4 and found["mqlake_consumer_offset"]["G", "T"] == 1
    assert found["mqlake_topic_messages"]["T",] == 5 and found["mqlake_topic_queues"]["T",] == 4
    assert found["mqlake_put_seconds_count"][()] == found["mqlake_put_seconds_bucket"]["+Inf",] == 5
    assert found["mqlake_connections"][()] == 1
    assert found["mqlake_healthy"][()] == 1 and found["mqlake_worker_up"]["dispatch",] == 1
    assert found["mqlake_dispatch_lag_bytes"][()] == 0 and found["mqlake_disk_free_bytes"][()] > 0


def test_health_and_readiness_follow_the_store_and_the_broker(broker: BrokerThread, get: Get) -> None:
    assert get("/health")[0] == get("/ready")[0] == 200
    broker.served.broker.is_closing = True
    try:
        assert get("/health")[0] == 200
        status, body = get("/ready")
        assert status == 503 and json.loads(body)["reason"] == "the broker is stopping"
    finally:
        broker.served.broker.is_closing = False


def test_other_paths_and_methods_are_refused(get: Callable[..., tuple[int, str]]) -> None:
    assert get("/")[0] == 404
    assert get("/metrics", "POST")[0] == 405


def test_an_address_of_metrics_that_is_taken_is_named(endpoint: str) -> None:
    async def main() -> None:
        await MetricsServer(None).start(Address.parse(endpoint, 0))  # type: ignore[arg-type]  # it asks no broker

    with pytest.raises(InvalidConfig, match=f"{endpoint}.*cannot listen there"):
        asyncio.run(main())


def test_text_of_metrics_survives_any_label() -> None:
    odd = 'a"b\\c\nd{} ,e="f"'
    text = write_metrics([Metric("m", "gauge", "Help.", [Sample({"a": odd, "b": "2"}, 1.5)])])
    assert len(text.splitlines()) == 3
    assert parse_metrics(text) == {"m": {(odd, "2"): 1.5}}


def test_a_value_at_a_bound_counts_below_it() -> None:
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        found.note(value)
    assert (found.counts, found.total) == ([2, 1, 1], 12.0)


def test_top_shows_a_broker(broker: BrokerThread, wire: Wire, endpoint: str) -> None:
    wire.put("T", b"x")
    broker.store.wait_dispatched()
    command = (sys.executable, "-m", "mqlake", "top", "--json", "--interval", "0.05", "--endpoint", endpoint)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {"topic": "T", "queueCount": 1, "messageCount": 1, "putsPerSecond": 0.0} in map(
        json.loads, done.stdout.splitlines()
    )


def test_top_says_what_is_wrong_with_an_endpoint(broker: BrokerThread) -> None:
    for endpoint in ("nothing", broker.address):
        command = (sys.executable, "-m", "mqlake", "top", "--once", "--endpoint", endpoint)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 3 and endpoint in done.stderr


def test_json_logs_have_one_object_a_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("mqlake.x", logging.ERROR, "f", 1, "it %s", ("broke\n",), sys.exc_info())
    (line,) = JsonLines().format(record).splitlines()
    found = json.loads(line)
    assert (found["level"], found["message"], found["logger"]) == ("ERROR", "it broke\n", "mqlake.x")
    assert "ValueError: two" in found["error"] and found["time"].endswith("+00:00")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_serve_says_how_to_connect_on_a_terminal_only(is_terminal: bool, tmp_path: Path) -> None:
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    at = ("--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0")
    command = (sys.executable, "-m", "mqlake", "serve", str(tmp_path / "s"), *at)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    try:
        assert process.stdout is not None
        name_server = process.stdout.readline().split()[1].removeprefix("name-server=")
        said = ""
        while is_terminal and "send_sync" not in said:
            said += os.read(ours, 4096).decode()
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
    if is_terminal:
        assert said.count(name_server) == 3 and all(name in said for name in ("Java", "Go", "Python"))
    else:
        assert "Connect" not in os.read(ours, 4096).decode()
    os.close(ours)
