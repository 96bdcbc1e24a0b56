"""Slaves that register with their master as with a name server: routes show them, and bounds hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqlake import Message, MessageStore
from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.settings import BrokerSettings
from mqlake.broker.slaves import EXPIRES_S, MAX_SLAVES
from mqlake.client import Admin, Producer
from mqlake.errors import NoRoute, NotConnected
from mqlake.kernel import Command
from mqlake.remoting.codes import RequestCode, ResponseCode
from tests.broker.conftest import SMALL
from tests.broker.test_replication import master, slaves_at
from tests.broker.wire import Wire
from tests.replication.slaves import until


def identity(number: int = 1, **more: str) -> dict[str, str]:
    return {
        "brokerAddr": f"127.0.0.1:{20_000 + number}",
        "brokerId": str(number),
        "brokerName": "broker-a",
        "clusterName": "DefaultCluster",
        **more,
    }


def register(wire: Wire, number: int = 1, /, **more: str) -> Command:
    return wire.call(RequestCode.REGISTER_BROKER, identity(number, **more))


def shown(wire: Wire) -> dict[str, str]:
    """Return the addresses by broker id, which all three requests must agree on."""
    wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields())
    cluster: Any = json.loads(wire.call(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    found: dict[str, str] = cluster["brokerAddrTable"]["broker-a"]["brokerAddrs"]
    route: Any = json.loads(
        wire.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", "acceptStandardJsonOnly": "true"}).body
    )
    assert route["brokerDatas"][0]["brokerAddrs"] == found
    members: Any = json.loads(wire.call(RequestCode.GET_BROKER_MEMBER_GROUP, identity()).body)
    assert members["brokerMemberGroup"]["brokerAddrs"] == found
    return found


def topic_fields() -> dict[str, str]:
    return {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def test_a_slave_that_registers_learns_where_its_master_is_and_is_in_the_routes(tmp_path: Path) -> None:
    with master(tmp_path / "store") as (broker, wire):
        answer = register(wire)
        assert answer.code == ResponseCode.SUCCESS
        host, port = slaves_at(broker)
        assert answer.fields == {"haServerAddr": f"{host}:{port}", "masterAddr": broker.address}
        assert shown(wire) == {"0": broker.address, "1": "127.0.0.1:20001"}
        register(wire, 1, brokerAddr="127.0.0.1:30000")
        assert shown(wire)["1"] == "127.0.0.1:30000", "it moved"
        register(wire, 2, brokerAddr="127.0.0.1:30000")
        assert shown(wire) == {"0": broker.address, "2": "127.0.0.1:30000"}, "it has another id now"
        wire.call(RequestCode.UNREGISTER_BROKER, identity(2, brokerAddr="127.0.0.1:1"))
        assert "2" in shown(wire), "another one took its own registration back"
        wire.call(RequestCode.UNREGISTER_BROKER, identity(2, brokerAddr="127.0.0.1:30000"))
        assert shown(wire) == {"0": broker.address}


def test_a_slave_leaves_the_routes_with_its_last_connection_or_after_two_minutes(tmp_path: Path) -> None:
    with master(tmp_path / "store") as (broker, wire):
        with Wire(broker.address) as first, Wire(broker.address) as second:
            register(first)
            register(second)
            first.close()
            until(lambda: len(broker.served.broker.connections) == 2, "the first connection to end")
            assert "1" in shown(wire), "it registered again over the second"
        until(lambda: "1" not in shown(wire), "the slave to leave")
        register(wire)
        slaves = broker.served.broker.parts.slaves
        known = slaves._slaves[1]
        slaves._slaves[1] = known._replace(told_at=known.told_at - EXPIRES_S - 1)
        assert shown(wire) == {"0": broker.address}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"brokerName": "broker-b"}, "only slaves of broker broker-a"),
        ({"clusterName": "other"}, "only slaves of broker broker-a"),
        ({"brokerId": "0"}, "0 is the master"),
        ({"brokerId": "-1"}, "brokerId"),
        ({"brokerId": "9" * 400}, "brokerId"),
        ({"brokerAddr": "nowhere"}, "brokerAddr"),
        ({"brokerAddr": "h" * 1000 + ":1"}, "brokerAddr"),
    ],
)
def test_only_slaves_of_this_broker_can_register(tmp_path: Path, fields: dict[str, str], why: str) -> None:
    with master(tmp_path / "store") as (broker, wire):
        answer = wire.call(RequestCode.REGISTER_BROKER, identity() | fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR and why in (answer.remark or "")
        assert shown(wire) == {"0": broker.address}


def test_no_more_slaves_can_register_than_a_master_serves(tmp_path: Path) -> None:
    with master(tmp_path / "store") as (_broker, wire):
        for number in range(1, MAX_SLAVES + 1):
            assert register(wire, number).code == ResponseCode.SUCCESS
        answer = register(wire, MAX_SLAVES + 1)
        assert answer.code == ResponseCode.SYSTEM_ERROR and f"{MAX_SLAVES} slaves" in (answer.remark or "")
        assert register(wire, 1).code == ResponseCode.SUCCESS, "who is registered stays"
        assert len(shown(wire)) == MAX_SLAVES + 1


def test_a_client_at_a_slaves_name_server_is_told_that_there_is_no_master(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", config=SMALL) as store:
        store.put(Message("T", b"x"))
    with (
        BrokerThread(tmp_path / "store", config=SMALL, settings=BrokerSettings(broker_id=1)) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address) as producer,
    ):
        with pytest.raises(NotConnected, match="knows only slaves, of broker-a: ask the name server of the master"):
            admin.create_topic("T")
        with pytest.raises(NoRoute, match="knows topic T, but no master that takes messages for it"):
            producer.send(Message("T", b"y"))
