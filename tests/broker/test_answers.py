"""Answers as the clients and tools of RocketMQ expect them: flags, names, reasons, and where a broker listens."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from mqlake.broker import listening
from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.listening import FAST_PORT_BELOW, Address, serve
from mqlake.broker.topics import NOT_FOR_SENDING
from mqlake.client import Admin
from mqlake.errors import InvalidConfig
from mqlake.message_store import MessageStore
from mqlake.remoting.bodies import decode_records, read_json, write_json
from tests.broker.wire import Wire, send_fields
from tests.ports import free_port


def test_a_client_sends_its_subscriptions_again_only_when_they_changed_or_are_not_known(wire: Wire) -> None:
    def beat(fingerprint: int, *, without: bool = False, group: str = "G") -> str:
        wanted = [] if without else [{"topic": "T", "subString": "*", "subVersion": 1}]
        consumer = {"groupName": group, "subscriptionDataSet": wanted}
        body = {"clientID": "c1", "consumerDataSet": [consumer], "heartbeatFingerprint": fingerprint}
        return wire.call(34, body=write_json({**body, "withoutSub": without})).fields["IS_SUB_CHANGE"]

    assert beat(0) == "true", "a client without fingerprints always sends them"
    assert (beat(5), beat(5, without=True), beat(6, without=True)) == ("false", "false", "true")
    assert beat(5, without=True, group="NEW") == "true", "as after a restart"


def test_topics_and_retries_of_a_unit_are_marked(wire: Wire) -> None:
    assert wire.put("OTHER", b"x").code == 0
    fields = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "k": "true"}
    assert wire.call(310, fields, b"x").code == 0
    assert wire.call(105, {"topic": "%RETRY%G"}).code == 0, "made before its first heart beat"
    consumer = {"groupName": "G", "unitMode": True, "subscriptionDataSet": []}
    assert wire.call(34, body=write_json({"clientID": "c1", "consumerDataSet": [consumer]})).code == 0
    found = [read_json(wire.call(351, {"topic": name}).body)["topicSysFlag"] for name in ("OTHER", "T", "%RETRY%G")]
    assert found == [0, 1, 2]


def test_names_are_refused_in_rocketmqs_words_and_a_list_as_a_whole(wire: Wire) -> None:
    remarks = [str(wire.put(name, b"x").remark) for name in ("bad name", "", "a" * 128)]
    for remark, word in zip(remarks, ("contains illegal characters", "is blank", "longer than topic max"), strict=True):
        assert word in remark
    topic = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    names = ("GOOD", "bad name")
    listed = write_json({"topicConfigList": [{"topicName": name, **topic} for name in names]})
    assert (wire.call(18, body=listed).code, wire.call(351, {"topic": "GOOD"}).code) == (29, 17)
    assert wire.call(17, {"topic": "rmq_sys_mine", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}).code == 29


def test_a_group_that_may_not_consume_is_refused_with_the_reason_in_a_field(wire: Wire) -> None:
    wire.put("T", b"x")
    for settings, kind in (({"consumeEnable": False}, "2"), ({"consumeBroadcastEnable": False}, "4")):
        assert wire.call(200, body=write_json({"groupName": f"G{kind}", **settings})).code == 0
        consumer = {"groupName": f"G{kind}", "messageModel": "BROADCASTING"}
        wanted = {"subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}]}
        wire.call(34, body=write_json({"clientID": "c1", "consumerDataSet": [consumer | wanted]}))
        refused = wire.pull(f"G{kind}", "T", sysFlag="0")
        assert (refused.code, refused.fields.get("forbiddenType")) == (16, kind)
    assert wire.pull("no group's name!", "T").code == 26


def test_a_setting_that_mqlake_itself_does_not_use_is_changed_too(wire: Wire) -> None:
    for flag in (True, False):
        settings = {"groupName": "G", "notifyConsumerIdsChangedEnable": flag}
        assert wire.call(200, body=write_json(settings)).code == 0
        found = read_json(wire.call(352, {"group": "G"}).body)
        assert found["notifyConsumerIdsChangedEnable"] is flag


def test_a_reply_that_nobody_takes_is_stored_and_its_sender_is_told_why(broker: BrokerThread, wire: Wire) -> None:
    topic = "DefaultCluster_REPLY_TOPIC"
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    lost = wire.call(325, fields | {"i": "REPLY_TO_CLIENT\x01gone\x02"}, b"one")
    unaddressed = wire.call(325, fields, b"two")
    assert (lost.code, lost.remark) == (1, "push reply message fail, channel of <gone> not found.")
    assert (unaddressed.code, unaddressed.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    broker.store.wait_dispatched()
    assert [each.body for each in wire.arrived(topic)] == [b"one", b"two"]


@pytest.mark.parametrize("topic", sorted(NOT_FOR_SENDING))
def test_a_reply_is_refused_wherever_a_send_is(topic: str, broker: BrokerThread, wire: Wire) -> None:
    """In topics that hold waiting messages, it would be taken for one of them and delivered to the topic it names."""
    wire.beat("asker", "", producer="P")
    before = broker.store.stats().appended_end
    properties = {"REPLY_TO_CLIENT": "asker", "REAL_TOPIC": "victim", "REAL_QID": "0", "DELAY": "1"}
    short = send_fields(topic, 0, properties)
    long = {"topic": topic, "properties": short["i"], "producerGroup": "P", "defaultTopic": "TBW102", "queueId": "0"}
    long |= {"defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "1", "flag": "0"}
    for code, fields in ((324, long), (325, short)):
        refused = wire.call(code, fields, b"x")
        assert (refused.code, refused.remark) == (16, f"Sending message to topic[{topic}] is forbidden.")
    assert wire.call(325, send_fields("bad name", 0, properties), b"x").code == 29
    assert wire.call(325, send_fields("TBW102", 77, properties), b"x").code == 29
    assert broker.store.stats().appended_end == before


def test_a_reply_enters_no_queue_but_its_own(broker: BrokerThread, wire: Wire) -> None:
    wire.put("other", b"x")
    wire.call(325, send_fields("DefaultCluster_REPLY_TOPIC", 0, {"INNER_MULTI_DISPATCH": "other"}), b"y")
    (stored,) = wire.arrived("DefaultCluster_REPLY_TOPIC")
    assert "INNER_MULTI_DISPATCH" not in stored.properties
    assert [each.body for each in broker.store.read("other")] == [b"x"]


def code_of_a_send(path: Path, port: int, called: int) -> int:
    """Serve a new store at a port, and send to one."""

    def send() -> int:
        with Wire(f"127.0.0.1:{called}") as wire:
            return wire.put("T", b"x").code

    async def main() -> int:
        served = await serve(path, Address("127.0.0.1", 0), Address("127.0.0.1", port))
        try:
            return await asyncio.to_thread(send)
        finally:
            await served.close()

    return asyncio.run(main())


def test_clients_with_a_vip_channel_find_the_broker_two_ports_below(tmp_path: Path) -> None:
    port = free_port(also_below=FAST_PORT_BELOW)
    assert code_of_a_send(tmp_path / "store", port, port - FAST_PORT_BELOW) == 0


def test_a_broker_serves_without_the_port_below_its_own(tmp_path: Path) -> None:
    port = free_port(also_below=FAST_PORT_BELOW)
    with socket.create_server(("127.0.0.1", port - FAST_PORT_BELOW)):
        assert code_of_a_send(tmp_path / "store", port, port) == 0


@pytest.mark.parametrize("below", [FAST_PORT_BELOW, 0])
def test_a_port_that_another_program_takes_while_the_store_opens_is_like_one_that_it_had(
    below: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(also_below=FAST_PORT_BELOW)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port - below))
        start = listening._start

        async def start_late(*given: Any) -> Any:
            made = await start(*given)
            other.listen()
            return made

        monkeypatch.setattr(listening, "_start", start_late)
        if below:
            assert code_of_a_send(tmp_path / "store", port, port) == 0
        else:
            with pytest.raises(InvalidConfig, match="cannot listen there: Address already in use"):
                code_of_a_send(tmp_path / "store", port, port)
    with MessageStore.open(tmp_path / "store") as store:
        assert ("T" in store.topics()) == bool(below)


def test_a_look_up_by_key_gives_the_newest_that_one_answer_holds(broker: BrokerThread, wire: Wire) -> None:
    for number in range(6):
        wire.put("T", b"%d" % number + bytes(2_000_000), KEYS="large")
    for number in range(70):
        wire.put("T", b"%d" % number, KEYS="many")
    fields = {"topic": "T", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    for key, expected in (("large", [b"2", b"3", b"4", b"5"]), ("many", [b"%d" % number for number in range(6, 70)])):
        found = decode_records(wire.call(12, {**fields, "key": key}).body)
        assert [message.body.rstrip(b"\0") for message in found] == expected
    with Admin(broker.name_server) as admin:
        found = admin.find("T", "many", limit=66)
        assert [int(message.body) for message in found] == list(range(4, 70))


def test_a_recall_names_what_is_wrong_with_it(wire: Wire) -> None:
    wire.put("T", b"x")
    assert wire.call(370, {"topic": "NONE", "recallHandle": "x"}).code == 17
    assert (wire.call(370, {"topic": "T"}).code, wire.call(370, {"topic": "T", "recallHandle": "x"}).code) == (604, 604)
