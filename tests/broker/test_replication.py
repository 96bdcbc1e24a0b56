"""A master's broker: what producers and slaves are answered."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqlake.broker.in_thread import LOOPBACK, BrokerThread
from mqlake.broker.settings import BrokerSettings
from mqlake.config import ReplicationConfig, Role
from mqlake.delivery.later.timer_files import CHECK
from mqlake.kernel import Command
from mqlake.message import Message
from mqlake.remoting.bodies import encode_batch
from mqlake.remoting.codes import RequestCode, ResponseCode
from tests.broker.conftest import SMALL
from tests.broker.wire import Wire, send_fields
from tests.replication.slaves import Slave, until


@contextmanager
def master(path: Path, role: Role = Role.SYNC_MASTER, **settings: Any) -> Iterator[tuple[BrokerThread, Wire]]:
    config = replace(SMALL, replication=ReplicationConfig(role=role, **settings))
    with BrokerThread(path, config=config, replication=LOOPBACK) as broker, Wire(broker.address) as wire:
        yield broker, wire


def slaves_at(broker: BrokerThread) -> tuple[str, int]:
    at = broker.served.replication
    assert at is not None
    return at.host, at.port


def sends(wire: Wire) -> list[Command]:
    """Send in all ways: a topic's first message, another, a batch, a half message."""
    batch = encode_batch([Message("T", b"1"), Message("T", b"2")])
    return [
        wire.put("T", b"first"),
        wire.put("T", b"more"),
        wire.call(320, send_fields("T"), batch),
        wire.put("T", b"half", TRAN_MSG="true", PGROUP="makers"),
    ]


def test_a_send_that_no_slave_can_confirm_is_stored_and_answered_so(tmp_path: Path) -> None:
    with master(tmp_path / "store") as (broker, wire):
        for answer in sends(wire):
            assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE and "stored here only" in (answer.remark or "")
            assert answer.fields["msgId"] and int(answer.fields["queueOffset"]) >= 0
        assert [each.body for each in broker.store.read("T")] == [b"first", b"more", b"1", b"2"]


def test_a_send_that_no_slave_confirms_in_time_is_stored_and_answered_so(tmp_path: Path) -> None:
    with master(tmp_path / "store", replica_timeout_ms=200) as (broker, wire), Slave(slaves_at(broker)):
        until(lambda: broker.store.stats().slaves, "the slave")
        for answer in sends(wire):
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT and answer.fields["msgId"]


def test_a_send_is_answered_once_the_slave_has_it_unless_it_does_not_wait(tmp_path: Path) -> None:
    with master(tmp_path / "store", replica_timeout_ms=20_000) as (broker, wire):
        assert wire.put("T", b"careless", WAIT="false").code == 0
        with Slave(slaves_at(broker)) as slave:
            slave.read_to(broker.store.stats().appended_end)
            until(lambda: broker.store.stats().slaves, "the slave")
            command = wire.send(_request(b"x"))
            wire.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                wire.receive()
            wire.socket.settimeout(30)
            until(lambda: broker.store.stats().appended_end > slave.end, "the append")
            slave.read_to(broker.store.stats().appended_end)
            answer = wire.receive()
            assert (answer.opaque, answer.code) == (command.opaque, 0)


def _request(body: bytes) -> Command:
    from mqlake.remoting.command import request

    return request(RequestCode.SEND_MESSAGE, send_fields("T"), body)


def test_slaves_are_answered_what_they_keep_beside_the_log(tmp_path: Path) -> None:
    with master(tmp_path / "store", Role.ASYNC_MASTER) as (broker, wire):
        host, _, port = broker.address.rpartition(":")
        with Wire(f"{host}:{int(port) - 2}") as fast:  # where slaves of RocketMQ ask
            first = json.loads(fast.call(RequestCode.GET_ALL_TOPIC_CONFIG, {}).body)
            same = json.loads(fast.call(RequestCode.GET_ALL_TOPIC_CONFIG, {}).body)
            wire.put("T", b"x")
            other = json.loads(fast.call(RequestCode.GET_ALL_TOPIC_CONFIG, {}).body)
        assert first["dataVersion"] == same["dataVersion"] != other["dataVersion"]
        assert "T" in other["topicConfigTable"]
        assert json.loads(wire.call(RequestCode.GET_ALL_DELAY_OFFSET, {}).body)["offsetTable"] == {}
        assert len(wire.call(RequestCode.GET_TIMER_CHECK_POINT, {}).body) == CHECK.size
        assert json.loads(wire.call(RequestCode.GET_TIMER_METRICS, {}).body)["timingCount"] == {}
        progress = json.loads(wire.call(RequestCode.GET_ALL_CONSUMER_OFFSET, {}).body)
        assert progress["dataVersion"]["counter"] == 1


def test_tools_see_the_slaves(tmp_path: Path) -> None:
    with master(tmp_path / "store", Role.ASYNC_MASTER) as (broker, wire), Slave(slaves_at(broker)) as slave:
        wire.put("T", b"x")
        end = broker.store.stats().appended_end
        slave.read_to(end)
        until(lambda: broker.store.stats().replicated_end == end, "the confirmation")
        told = json.loads(wire.call(RequestCode.GET_BROKER_HA_STATUS, {}).body)
        assert (told["master"], told["inSyncSlaveNums"], told["masterCommitLogMaxOffset"]) == (True, 1, end)
        assert told["haConnectionInfo"][0]["slaveAckOffset"] == end


def test_routes_name_the_brokers_id(tmp_path: Path) -> None:
    settings = BrokerSettings(broker_id=1)
    with BrokerThread(tmp_path / "store", config=SMALL, settings=settings) as broker, Wire(broker.address) as wire:
        wire.put("T", b"x")
        route = json.loads(wire.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body)
        assert route["brokerDatas"][0]["brokerAddrs"] == {"1": broker.address}


def test_a_hung_slave_does_not_hold_up_those_who_do_not_wait(tmp_path: Path) -> None:
    with master(tmp_path / "store", replica_timeout_ms=5_000) as (broker, wire), Slave(slaves_at(broker)):
        until(lambda: broker.store.stats().slaves, "the slave")
        wire.put("T", b"first", WAIT="false")
        waiting = [wire.send(_request(b"slow")) for _ in range(100)]
        with Wire(broker.address) as other:
            began = time.monotonic()
            assert other.put("T", b"quick", WAIT="false").code == 0
            assert time.monotonic() - began < 4
        codes = {wire.receive().code for _ in waiting}
        assert codes == {ResponseCode.FLUSH_SLAVE_TIMEOUT}


def test_a_slave_refuses_changes_of_topics_and_groups(tmp_path: Path) -> None:
    with master(tmp_path / "master") as (broker, _):
        host, port = slaves_at(broker)
        config = replace(SMALL, replication=ReplicationConfig(role=Role.SLAVE, master_address=f"{host}:{port}"))
        with BrokerThread(tmp_path / "slave", config=config) as slave, Wire(slave.address) as wire:
            topic = {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "defaultTopic": "TBW102"}
            answers = [
                wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic),
                wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "G"}'),
                wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}),
            ]
            assert [each.code for each in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 3
            assert "T" not in slave.store.delivery.topics and "G" not in slave.store.delivery.groups
