"""A real RocketMQ slave follows an mqlake master, through cut connections, to the same bytes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqlake import Message, MessageStore
from mqlake.client import Admin, Producer
from mqlake.codec.config_json import decode
from mqlake.remoting.codes import RequestCode
from tests.broker.wire import Wire
from tests.clients.endpoints import Ports
from tests.helpers import covers
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.proxy import CuttingProxy
from tests.interop.rocketmq_slave import RocketMQSlave
from tests.replication.served import ServedBroker

pytestmark = WITH_ROCKETMQ
FILE_SIZE = str(1 << 20)
"""Small: the log has many files."""
BATCH = 100
PATIENCE_S = 120.0


def produce(name_server: str, count: int, cuts: int, proxy: CuttingProxy) -> None:
    """Send messages and cut the slave's connection so many times on the way, each time after it got something."""
    every = count // (cuts + 1) // BATCH * BATCH
    passed = 0
    with Producer(name_server, group="makers") as producer:
        for number in range(0, count, BATCH):
            size = 100 + number % 900
            producer.send_many([Message("orders", os.urandom(size), keys=str(number + i)) for i in range(BATCH)])
            if number and number % every == 0:
                until(lambda seen=passed: proxy.passed_bytes > seen, "the slave to come back")  # type: ignore[misc]
                proxy.cut()
                passed = proxy.passed_bytes


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.05)


def log_of(store: Path) -> dict[str, bytes]:
    """Return the log's files, without those that were made ahead of need."""
    folder = store / "commitlog"
    found = {each.name: each.read_bytes() for each in sorted(folder.iterdir())} if folder.exists() else {}
    return {name: file for name, file in found.items() if file.strip(b"\0")}


def content(store: Path, name: str) -> dict[str, Any]:
    return decode((store / "config" / name).read_bytes())


def follow(tmp_path: Path, release: str, count: int, cuts: int) -> None:
    master, slave = tmp_path / "master", tmp_path / "slave"
    ports = Ports.free()
    outside = f"127.0.0.1:{ports.name_server}"
    options = ("--role", "async-master", "--ha-listen", "127.0.0.1:0", "--name-server", outside)
    with ServedBroker(master, *options, mappedFileSizeCommitLog=FILE_SIZE) as served:
        with CuttingProxy(served.ready().slaves) as proxy:
            settings = {"haMasterAddress": f"127.0.0.1:{proxy.port}", "haSendHeartbeatInterval": "200"}
            settings["mappedFileSizeCommitLog"] = FILE_SIZE
            with RocketMQSlave(release, slave, ports, **settings) as follower:
                follower.until("ready")
                produce(served.name_server, count, cuts, proxy)
                with Admin(served.name_server) as admin:
                    admin.create_group("readers", retry_queue_count=3)
                    admin.reset("readers", "orders", 5)
                until(lambda: log_of(master) == log_of(slave), "the slave's log to be the master's")
                assert proxy.connection_count > cuts
                assert follower.sync().rstrip().endswith(served.addresses["broker"])
        served.stop()
    assert log_of(master) == log_of(slave)
    # What it keeps beside the log is the master's too.
    assert "orders" in content(slave, "topics.json")["topicConfigTable"]
    assert content(slave, "subscriptionGroup.json")["subscriptionGroupTable"]["readers"]["retryQueueNums"] == 3
    assert set(content(slave, "consumerOffset.json")["offsetTable"]["orders@readers"].values()) == {5}
    with MessageStore.open(slave, read_only=True) as opened:
        assert sum(each.message_count for each in opened.queues("orders")) == count // BATCH * BATCH


@covers("P6")
def test_a_rocketmq_slave_follows_through_cuts_to_the_same_bytes(tmp_path: Path) -> None:
    follow(tmp_path, "5.5", 4_000, 2)


def broker_addresses(served: ServedBroker) -> dict[str, str]:
    """Return what the name server says of broker-a: addresses by broker id."""
    with Wire(served.name_server) as wire:  # connected for one request: a client that stays silent is hung up on
        brokers = json.loads(wire.call(RequestCode.GET_BROKER_CLUSTER_INFO).body)["brokerAddrTable"]
    found: dict[str, str] = brokers["broker-a"]["brokerAddrs"]
    return found


@covers("P6")
@pytest.mark.parametrize("release", ["5.5", pytest.param("4.9", marks=pytest.mark.long)])
def test_a_rocketmq_slave_needs_no_name_server_but_the_one_in_its_master(tmp_path: Path, release: str) -> None:
    """It is told by its registration where the log is served, and routes show it until it goes."""
    master, slave, ports = tmp_path / "master", tmp_path / "slave", Ports.free()
    with ServedBroker(
        master, "--role", "async-master", "--ha-listen", "127.0.0.1:0", ports=ports, mappedFileSizeCommitLog=FILE_SIZE
    ) as served:
        served.ready()
        own = replace(Ports.free(), name_server=ports.name_server)
        settings = {"mappedFileSizeCommitLog": FILE_SIZE, "haSendHeartbeatInterval": "200"}
        settings["namesrvAddr"] = served.name_server
        with RocketMQSlave(release, slave, own, **settings) as follower:
            follower.until("ready")
            with Producer(served.name_server, group="makers") as producer:
                producer.send_many([Message("orders", os.urandom(500)) for _ in range(BATCH)])
            until(lambda: log_of(master) == log_of(slave), "the slave's log to be the master's")
            assert broker_addresses(served) == {"0": served.addresses["broker"], "1": f"127.0.0.1:{own.broker}"}
            assert follower.sync().rstrip().endswith(served.addresses["broker"])
        until(lambda: "1" not in broker_addresses(served), "the slave that was killed to leave the routes")
        served.stop()


@pytest.mark.long
@pytest.mark.parametrize("release", ["4.9", "5.5"])
def test_a_rocketmq_slave_follows_100_000_messages_through_10_cuts(tmp_path: Path, release: str) -> None:
    follow(tmp_path, release, 100_000, 10)
