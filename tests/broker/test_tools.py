"""What tools change: groups, routes, progress, settings of the name server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqlake.broker.connection import HIGH_BYTES
from mqlake.broker.in_thread import BrokerThread
from mqlake.config import TransactionConfig
from mqlake.kernel import encode_command, java_hash
from mqlake.message import Message
from mqlake.remoting.bodies import ConsumerData, Heartbeat, Subscription, decode_records, read_json, write_json
from mqlake.remoting.command import oneway, request
from tests.broker.wire import Wire, pull_fields, send_fields


def save_group(wire: Wire, name: str, **settings: object) -> None:
    assert wire.call(200, body=write_json({"groupName": name, **settings})).code == 0


def make_topic(wire: Wire, topic: str, queues: int = 4) -> None:
    fields = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
    assert wire.call(17, fields).code == 0


def route_of(broker: BrokerThread, topic: str) -> Any:
    with Wire(broker.name_server) as wire:
        return read_json(wire.call(105, {"topic": topic}).body)


def test_a_disabled_group_keeps_no_other_group_of_its_client_from_joining(wire: Wire) -> None:
    wire.put("T", b"x")
    save_group(wire, "OFF", consumeEnable=False)
    subscription = [Subscription("T", version=1)]
    beat = Heartbeat("c1", [], [ConsumerData("OFF", subscription), ConsumerData("ON", subscription)])
    assert wire.call(34, body=beat.encode()).code == 0
    assert read_json(wire.call(38, {"consumerGroup": "ON"}).body)["consumerIdList"] == ["c1"]
    assert wire.pull("OFF", "T").code == 16
    save_group(wire, "OFF", consumeEnable=True)
    assert wire.pull("OFF", "T", sysFlag="6", suspendTimeoutMillis="9000").code == 0


def test_a_group_that_may_not_broadcast_is_refused_when_it_pulls(wire: Wire) -> None:
    wire.put("T", b"x")
    save_group(wire, "G", consumeBroadcastEnable=False)
    data = ConsumerData("G", [Subscription("T", version=1)], message_model="BROADCASTING")
    assert wire.call(34, body=Heartbeat("c1", [], [data]).encode()).code == 0
    refused = wire.pull("G", "T", sysFlag="2", suspendTimeoutMillis="100")
    assert refused.code == 16 and "broadcast" in str(refused.remark)


def test_a_reset_outside_of_the_queue_or_of_an_unknown_group_is_refused(broker: BrokerThread, wire: Wire) -> None:
    for number in range(10):
        wire.put("T", b"%d" % number)
    broker.store.wait_dispatched()
    save_group(wire, "G")
    asked = {"topic": "T", "queueId": "0", "timestamp": "-1", "isForce": "true"}
    for wrong in ("300", "-3"):
        refused = wire.call(222, {**asked, "group": "G", "offset": wrong})
        assert refused.code == 1 and "[0-10]" in str(refused.remark)
    assert wire.call(222, {**asked, "group": "nobody", "offset": "3"}).code == 26
    assert wire.call(222, {**asked, "group": "G", "offset": "3"}).code == 0
    assert wire.call(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"}).fields["offset"] == "3"


def test_a_message_goes_back_for_a_group_that_is_created_by_that(wire: Wire) -> None:
    wire.put("T", b"x")
    (message,) = wire.arrived("T")
    back = {"offset": str(message.physical_offset), "group": "NEW", "delayLevel": "1", "originTopic": "T"}
    assert wire.call(36, back).code == 0
    assert wire.call(351, {"topic": "%RETRY%NEW"}).code == 0


def test_a_tag_may_have_a_space(broker: BrokerThread, wire: Wire) -> None:
    wire.put("T", b"yes", TAGS="two words")
    wire.put("T", b"no", TAGS="two")
    found = wire.pull("G", "T", subscription="two words || three")
    assert [message.body for message in decode_records(found.body)] == [b"yes"]


def test_a_delay_below_zero_is_none(wire: Wire) -> None:
    for number, delay in enumerate(({"DELAY": "-1"}, {"TIMER_DELAY_MS": "-100"})):
        assert wire.call(310, send_fields("T", 0, delay), b"now").code == 0
        assert wire.pull("G", "T", 0, number, sysFlag="6", suspendTimeoutMillis="9000").code == 0


def test_the_order_of_queues_is_hidden_until_the_name_server_is_told_to_show_it(
    broker: BrokerThread, wire: Wire
) -> None:
    make_topic(wire, "T")
    with Wire(broker.name_server) as names:
        names.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:8"})
        assert names.call(319).body == b"orderMessageEnable=false\n"
        assert "orderTopicConf" not in route_of(broker, "T")
        assert names.call(318, body=b"orderMessageEnable=true\n").code == 0
        assert route_of(broker, "T")["orderTopicConf"] == "broker-a:8"
        assert names.call(318, body=b"listenPort=1\n").code == 29


def test_a_broker_is_taken_out_of_service_and_back(broker: BrokerThread, wire: Wire) -> None:
    make_topic(wire, "T")
    with Wire(broker.name_server) as names:
        for code, count, permission in ((205, "wipeTopicCount", 4), (327, "addTopicCount", 6)):
            assert int(names.call(code, {"brokerName": "broker-a"}).fields[count]) > 0
            (queue,) = route_of(broker, "T")["queueDatas"]
            assert queue["perm"] == permission


def test_topics_and_groups_are_made_by_the_list(wire: Wire) -> None:
    topics = [{"topicName": name, "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "order": False} for name in "AB"]
    assert wire.call(18, body=write_json({"topicConfigList": topics})).code == 0
    assert read_json(wire.call(351, {"topic": "B"}).body)["readQueueNums"] == 3
    assert wire.call(225, body=write_json({"groupConfigList": [{"groupName": "G1"}, {"groupName": "G2"}]})).code == 0
    assert {"G1", "G2"} <= read_json(wire.call(201).body)["subscriptionGroupTable"].keys()
    assert wire.call(18, body=b"[]").code == 1 and wire.call(225, body=b"{}").code == 1


def test_all_producers_are_listed_and_cleaning_is_done_when_it_is_asked_for(wire: Wire) -> None:
    wire.beat("c1", "", producer="P")
    (producer,) = read_json(wire.call(328).body)["data"]["P"]
    assert producer["clientId"] == "c1" and abs(producer["lastUpdateTimestamp"] / 1000 - time.time()) < 60
    assert [wire.call(code).code for code in (306, 316, 329)] == [0, 0, 0]


def test_a_producer_is_asked_as_often_as_the_setting_says(start_broker: Callable[..., BrokerThread]) -> None:
    settings = TransactionConfig(timeout_ms=1, check_interval_ms=50, check_max=2)
    broker = start_broker(transactions=settings)
    with Wire(broker.address) as wire:
        wire.beat("c1", "", producer="P")
        assert wire.call(310, send_fields("T", 0, {"TRAN_MSG": "true", "PGROUP": "P"}), b"half").code == 0
        for _ in range(2):
            wire.next_request(39)
        deadline = time.monotonic() + 30
        while broker.store.transactions.undecided():
            assert time.monotonic() < deadline, "it is given up"
            time.sleep(0.02)
        assert not [command for command in wire._come if command.code == 39], "it was asked twice"


def test_a_client_that_asks_for_large_messages_without_reading_is_no_longer_answered(broker: BrokerThread) -> None:
    with Wire(broker.address) as wire:
        wire.put("T", bytes(1 << 20))
        (message,) = wire.arrived("T")
        asked = request(33, {"offset": str(message.physical_offset)})
        for _ in range(300):
            wire.send(asked)
        (greedy,) = broker.served.broker.connections
        deadline = time.monotonic() + 20
        while greedy.pooled or not greedy.postponed:
            assert time.monotonic() < deadline, "the pool comes to rest, with requests left"
            time.sleep(0.02)
        assert greedy.transport is not None
        assert greedy.transport.get_write_buffer_size() < 8 * HIGH_BYTES
        for _ in range(300):
            assert wire.receive().code == 0
    with Wire(broker.address) as other:
        assert other.call(11, pull_fields("G", "T")).code == 0


def test_a_pull_that_waits_gets_the_filter_that_its_group_has_when_a_message_comes(
    wire: Wire, connect: Callable[[], Wire]
) -> None:
    wire.put("T", b"first", TAGS="A")

    def subscribe(expression: str, version: int) -> None:
        data = ConsumerData("G", [Subscription("T", expression, version=version)])
        assert wire.call(34, body=Heartbeat("c1", [], [data]).encode()).code == 0

    subscribe("A", 1)
    fields = pull_fields("G", "T", 0, 1, sysFlag="2", suspendTimeoutMillis="20000")
    held = wire.send(request(11, fields))
    subscribe("B", 2)
    other = connect()
    other.put("T", b"old tag", TAGS="A")
    other.put("T", b"new tag", TAGS="B")
    answer = wire.answer_to(held)
    while answer.code == 20:  # PULL_RETRY_IMMEDIATELY: messages were passed over while the next one came
        offset = answer.fields["nextBeginOffset"]
        answer = wire.call(11, {**fields, "queueOffset": offset})
    assert [message.body for message in decode_records(answer.body)] == [b"new tag"]


def test_a_topic_that_only_the_log_knows_is_served(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> None:
    """A send created it, and the broker was killed before it wrote its list of topics."""
    broker = start_broker()
    with Wire(broker.address) as wire:
        assert wire.put("T", b"x", queue_id=2).code == 0
    broker.close()
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "store" / "config" / name).unlink(missing_ok=True)
    broker = start_broker()
    with Wire(broker.address) as wire:
        assert [each.body for each in wire.arrived("T", 2)] == [b"x"]
    assert route_of(broker, "T")["queueDatas"][0]["readQueueNums"] == 4


def entries_of(wire: Wire, queue_id: int = 0, index: int = 0, count: int = 10, **more: str) -> Any:
    fields = {"topic": "T", "queueId": str(queue_id), "index": str(index), "count": str(count), **more}
    answer = wire.call(321, fields)
    return read_json(answer.body) if answer.code == 0 else answer


def test_the_entries_of_a_queue_are_shown_as_they_are_in_its_files(broker: BrokerThread, wire: Wire) -> None:
    for number in range(1_010):  # a queue file holds 1,000
        broker.store.put(Message("T", b"%d" % number, tags="A", queue_id=0))
    answer = wire.call(321, {"topic": "T", "queueId": "0", "index": "998", "count": "4"})
    assert answer.remark is None
    found = read_json(answer.body)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 1_010)
    messages = broker.store.port.reader.read("T", 0, 998, 4, 1 << 20)
    assert found["queueData"] == [
        {"eval": False, "physicOffset": each.physical_offset, "physicSize": each.size, "tagsCode": java_hash("A")}
        for each in messages
    ]
    assert "subscriptionData" not in found and "filterData" not in found
    assert len(entries_of(wire, index=1_005, count=100)["queueData"]) == 5
    assert entries_of(wire, count=-1)["queueData"] == []


def test_there_are_no_entries_outside_of_a_queue(wire: Wire) -> None:
    wire.put("T", b"x")
    for index in (-1, 1):
        answer = wire.call(321, {"topic": "T", "queueId": "0", "index": str(index), "count": "3"})
        assert (answer.code, answer.remark) == (0, f"Index {index} of 0@T is not exist!")
        assert read_json(answer.body) == {"maxQueueIndex": 1, "minQueueIndex": 0, "queueData": []}
    refused = entries_of(wire, queue_id=77)
    assert (refused.code, refused.remark) == (1, "77@T is not exist!")


def test_entries_come_with_what_a_group_subscribes_to(wire: Wire) -> None:
    wire.put("T", b"x")
    found = entries_of(wire, consumerGroup="G")
    assert found["filterData"] == "G@T is not online!" and "subscriptionData" not in found
    wire.beat("c1", "G", "T")
    found = entries_of(wire, consumerGroup="G")
    assert found["filterData"] == "null" and found["subscriptionData"]["subString"] == "*"


def lag_of_all(wire: Wire, **fields: str) -> tuple[dict[str, dict[str, list[int]]], int]:
    """Return what each group has consumed of each queue of each topic it reads, and how much is left in all."""
    body = read_json(wire.call(317, fields).body)
    found: dict[str, dict[str, list[int]]] = {}
    for each in body["consumeStatsList"]:
        for group, topics in each.items():
            for stats in topics:
                for queue, progress in stats["offsetTable"].items():
                    of_topic = found.setdefault(group, {}).setdefault(json.loads(queue)["topic"], [])
                    of_topic.append(progress["consumerOffset"])
    return found, body["totalDiff"]


def test_the_progress_of_all_groups_is_listed_with_their_lag(broker: BrokerThread, wire: Wire) -> None:
    make_topic(wire, "T", 2)
    fields = {"topic": "O", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "true"}
    assert wire.call(17, fields).code == 0
    for topic, queue_id in (("T", 0), ("T", 0), ("T", 1), ("O", 0)):
        wire.put(topic, b"x", queue_id=queue_id)
    broker.store.wait_dispatched()
    for group, topic, offset in (("G1", "T", 1), ("G1", "O", 1), ("G2", "T", 2)):
        save_group(wire, group)
        done = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
        assert wire.call(15, done).code == 0
    found, lag = lag_of_all(wire, isOrder="false")
    assert (found["G1"], found["G2"], lag) == ({"O": [1], "T": [1, 0]}, {"T": [2, 0]}, 3)
    assert lag_of_all(wire, isOrder="true") == ({"G1": {"O": [1]}}, 0)
    wire.beat("c1", "G1", "O")
    found, lag = lag_of_all(wire)
    assert (found["G1"], lag) == ({"O": [1]}, 1), "a topic that an online group left is not counted"


def test_flow_control_of_cold_reads_is_shown_as_off(wire: Wire) -> None:
    body = read_json(wire.call(2003).body)
    assert (body["configTable"], body["runtimeTable"], body["globalAcc"]) == ({}, {}, 0)


def test_progress_that_a_client_sends_right_before_it_leaves_is_kept(broker: BrokerThread, wire: Wire) -> None:
    """As clients shut down: they commit one-way and close, without waiting for anything."""
    make_topic(wire, "T")
    with Wire(broker.address) as leaving:
        leaving.beat("c1", "G", "T")
        fields = {"consumerGroup": "G", "topic": "T", "commitOffset": "7"}
        commits = [encode_command(oneway(15, {**fields, "queueId": str(number)})) for number in range(4)]
        leaving.socket.sendall(b"".join(commits))
    deadline = time.monotonic() + 60
    for number in range(4):
        asked = {"consumerGroup": "G", "topic": "T", "queueId": str(number)}
        while wire.call(14, asked).fields.get("offset") != "7":
            assert time.monotonic() < deadline, f"the commit of queue {number} arrives"


def test_a_broker_without_permission_to_write_is_in_routes_for_reading_only(broker: BrokerThread, wire: Wire) -> None:
    make_topic(wire, "T")
    fields = {"topic": "O", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "order": "true"}
    assert wire.call(17, fields).code == 0
    assert wire.call(25, body=b"brokerPermission=4\n").code == 0
    for topic in "TO":
        (queue,) = route_of(broker, topic)["queueDatas"]
        assert queue["perm"] == 4
    assert wire.put("T", b"a retry, or from a client with an old route").code == 0
    assert wire.put("O", b"x").code == 16
    assert len(wire.arrived("T")) == 1
    assert wire.call(25, body=b"brokerPermission=6\n").code == 0
    assert route_of(broker, "T")["queueDatas"][0]["perm"] == 6 and wire.put("O", b"x").code == 0


def test_a_broker_without_permission_to_read_refuses_pulls(wire: Wire) -> None:
    wire.put("T", b"x")
    assert wire.call(25, body=b"brokerPermission=2\n").code == 0
    refused = wire.pull("G", "T")
    assert refused.code == 16 and "the broker[" in str(refused.remark)
