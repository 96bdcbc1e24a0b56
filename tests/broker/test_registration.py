"""Registration with name servers outside."""

from __future__ import annotations

import json
import queue
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.broker.listening import Address
from mqlake.broker.registration import parse_name_servers
from mqlake.kernel import Command, encode_command
from mqlake.remoting.command import response
from mqlake.remoting.frames import FrameReader
from tests.broker.test_serve import start
from tests.broker.wire import Wire
from tests.interop.name_server import run_name_server
from tests.interop.rocketmq import available

PATIENCE_S = 60


class NameServer:
    """Accepts registrations and keeps them."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.come: queue.Queue[Command] = queue.Queue()
        self.refusal: int = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        with connection:
            while data := connection.recv(1 << 16):
                for command in reader.feed(data):
                    self.come.put(command)
                    connection.sendall(encode_command(response(command, self.refusal)))

    def next(self, code: int) -> Command:
        while True:
            command = self.come.get(timeout=PATIENCE_S)
            if command.code == code:
                return command

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    made = NameServer()
    yield made
    made.close()


def topics_of(registered: Command) -> dict[str, dict[str, object]]:
    assert int(registered.fields["bodyCrc32"]) == zlib.crc32(registered.body) & 0x7FFFFFFF
    table: dict[str, dict[str, object]] = json.loads(registered.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    return table


def test_a_broker_registers_at_once_with_every_new_topic_and_leaves_at_the_end(
    tmp_path: Path, name_server: NameServer
) -> None:
    nobody = socket.create_server(("127.0.0.1", 0))  # takes connections and never answers
    unreachable = f"127.0.0.1:{nobody.getsockname()[1]}"
    process, _, address = start(tmp_path / "store", "--name-server", f"{unreachable};{name_server.address}")
    try:
        first = name_server.next(103)
        assert first.fields["brokerAddr"] == address
        assert (first.fields["brokerName"], first.fields["clusterName"]) == ("broker-a", "DefaultCluster")
        assert "TBW102" in topics_of(first) and "NEW" not in topics_of(first)
        with Wire(address) as wire:
            assert wire.put("NEW", b"x").code == 0
        second = name_server.next(103)
        assert topics_of(second)["NEW"]["writeQueueNums"] == 4
        versions = [json.loads(each.body)["topicConfigSerializeWrapper"]["dataVersion"] for each in (first, second)]
        assert versions[0]["counter"] < versions[1]["counter"]
        with Wire(address) as wire:
            assert wire.call(25, body=b"brokerPermission=4\n").code == 0
        while topics_of(name_server.next(103))["NEW"]["perm"] != 4:
            pass  # the repetition that is due every 30 seconds
        process.send_signal(signal.SIGTERM)
        assert name_server.next(104).fields["brokerAddr"] == address
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        nobody.close()


def test_a_name_server_that_refuses_is_asked_again(tmp_path: Path, name_server: NameServer) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(f"namesrvAddr={name_server.address}\n")
    name_server.refusal = 1
    process, _, _ = start(tmp_path / "store", "--config", str(config))
    try:
        name_server.next(103)
        name_server.next(103)
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def test_addresses_of_name_servers_are_read_as_rocketmq_writes_them() -> None:
    assert parse_name_servers("a:1;b:2; c") == [Address("a", 1), Address("b", 2), Address("c", 9876)]
    assert parse_name_servers("") == []


def until_routed(wire: Wire, topic: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = wire.call(105, {"topic": topic, "acceptStandardJsonOnly": "true"})
        if answer.code == 0:
            route: dict[str, Any] = json.loads(answer.body)
            return route
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(available() is not None, reason=f"real RocketMQ cannot run here: {available()}")
def test_rocketmqs_own_name_server_routes_clients_to_this_broker(tmp_path: Path) -> None:
    with run_name_server(tmp_path) as at:
        process, _, address = start(tmp_path / "store", "--name-server", at)
        try:
            with Wire(address) as wire:
                assert wire.put("NEW", b"x").code == 0
            with Wire(at) as outside:
                route = until_routed(outside, "NEW")
                assert route["brokerDatas"][0]["brokerAddrs"] == {"0": address}
                assert [(each["brokerName"], each["writeQueueNums"]) for each in route["queueDatas"]] == [
                    ("broker-a", 4)
                ]
                process.terminate()
                assert process.wait(timeout=60) == 0
                assert outside.call(105, {"topic": "NEW", "acceptStandardJsonOnly": "true"}).code == 17
        finally:
            process.kill()
            process.wait()
