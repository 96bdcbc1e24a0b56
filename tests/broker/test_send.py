"""Sends: what is stored, when it is answered OK, and what is refused with which code."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

import pytest

from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.settings import BrokerSettings
from mqlake.config import DeliveryConfig, FlushConfig
from mqlake.message import Message
from mqlake.remoting.bodies import decode_records, encode_batch
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import oneway, request
from tests.broker.wire import Wire, pull_fields, send_fields


def bodies_of(broker: BrokerThread, topic: str, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in broker.store.read(topic, queue_id=queue_id, limit=1000)]


def test_a_message_is_stored_with_what_rocketmq_adds(broker: BrokerThread, wire: Wire) -> None:
    answer = wire.put("T", b"hello", queue_id=2, TAGS="A", UNIQ_KEY="K1", POP_CK="forged")
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "2", "0")
    stored = broker.store.get(answer.fields["msgId"])
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert stored.properties == {"TAGS": "A", "UNIQ_KEY": "K1", **added}
    assert stored.body == b"hello" and stored.queue_id == 2
    assert stored.store_host == broker.address
    assert stored.born_host == "{}:{}".format(*wire.socket.getsockname())
    assert answer.fields["transactionId"] == "K1"


def test_a_message_without_a_queue_goes_to_the_queues_in_turn(broker: BrokerThread, wire: Wire) -> None:
    used = {wire.put("T", b"x", queue_id=-1).fields["queueId"] for _ in range(8)}
    assert used == {"0", "1", "2", "3"}


def test_a_first_message_creates_its_topic_like_the_template(broker: BrokerThread, wire: Wire) -> None:
    wire.put("T", b"x")
    topic = broker.store.topic("T")
    assert (topic.write_queue_count, topic.read_queue_count, int(topic.permission)) == (4, 4, 6)


def test_a_batch_gets_consecutive_queue_offsets(broker: BrokerThread, wire: Wire) -> None:
    wire.put("T", b"before")
    batch = [Message("T", b"%d" % i, properties={"UNIQ_KEY": f"K{i}"}) for i in range(5)]
    answer = wire.call(320, send_fields("T", 0, {"UNIQ_KEY": "B"}), encode_batch(batch))
    assert answer.code == 0 and answer.fields["queueOffset"] == "1" and answer.fields["transactionId"] == "B"
    assert len(answer.fields["msgId"].split(",")) == 5
    assert bodies_of(broker, "T") == [b"before", b"0", b"1", b"2", b"3", b"4"]


def test_a_one_way_send_is_stored_and_not_answered(broker: BrokerThread, wire: Wire) -> None:
    wire.put("T", b"first")
    wire.send(oneway(310, send_fields("T"), b"quiet"))
    answer = wire.put("T", b"last")
    assert answer.fields["queueOffset"] == "2"
    assert bodies_of(broker, "T") == [b"first", b"quiet", b"last"]


@pytest.mark.parametrize("serial", [True, False])
def test_a_send_with_sync_flush_is_answered_ok_only_when_it_is_on_disk(
    serial: bool, start_broker: Callable[..., BrokerThread]
) -> None:
    broker = start_broker(flush=FlushConfig(sync=True))
    with Wire(broker.address) as wire:
        if serial:
            answers = [wire.put("T", b"x" * 100) for _ in range(20)]
        else:
            asked = [wire.send(request(310, send_fields("T"), b"x" * 100)) for _ in range(200)]
            answers = [wire.answer_to(each) for each in asked]
        assert {answer.code for answer in answers} == {0}
        last = broker.store.get(answers[-1].fields["msgId"])
        assert broker.store.stats().durable_end >= last.physical_offset + last.size


def test_a_message_that_does_not_wait_is_answered_before_its_sync(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(flush=FlushConfig(sync=True))
    with Wire(broker.address) as wire:
        assert wire.put("T", b"x", WAIT="false").code == 0


def test_a_delayed_message_is_answered_with_its_real_queue(wire: Wire) -> None:
    answer = wire.put("T", b"later", queue_id=3, DELAY="1")
    assert (answer.code, answer.fields["queueId"]) == (0, "3")
    assert "recallHandle" not in answer.fields
    assert [message.body for message in wire.arrived("T", 3)] == [b"later"]


@pytest.mark.parametrize("key", ["gone", "key of its producer"])
def test_a_timed_message_can_be_recalled_by_its_handle(wire: Wire, key: str) -> None:
    due_ms = time.time_ns() // 1_000_000 + 3_000
    for name in (key, "kept"):
        answer = wire.put("T", name.encode(), TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY=name)
        if name == key:
            handle = answer.fields["recallHandle"]
    assert base64.urlsafe_b64decode(handle).decode().split(" ")[1:3] == ["T", "broker-a"]
    recalled = wire.call(370, {"topic": "T", "recallHandle": handle, "producerGroup": "P"})
    assert (recalled.code, recalled.fields["msgId"]) == (0, key)
    assert [message.body for message in wire.arrived("T")] == [b"kept"]


REFUSED = {
    "an unknown template": ({"c": "NO_TEMPLATE"}, b"x", ResponseCode.TOPIC_NOT_EXIST),
    "no such queue": ({"e": "77"}, b"x", ResponseCode.INVALID_PARAMETER),
    "a name that no topic can have": ({"b": "a/b"}, b"x", ResponseCode.INVALID_PARAMETER),
    "a system topic": ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"x", ResponseCode.NO_PERMISSION),
    "a body over the limit": ({}, b"x" * (4 * 1024 * 1024 + 1), ResponseCode.MESSAGE_ILLEGAL),
    "a time too far ahead": ({"i": "TIMER_DELAY_SEC\x012592000\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
    "a field that is no number": ({"e": "four"}, b"x", ResponseCode.SYSTEM_ERROR),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_send_is_refused_with_rocketmqs_code_and_nothing_is_stored(
    what: str, broker: BrokerThread, wire: Wire
) -> None:
    changed, body, code = REFUSED[what]
    before = broker.store.stats().appended_end
    answer = wire.call(310, send_fields("T") | changed, body)
    assert answer.code == code and answer.remark
    assert set(answer.fields) == {"MSG_REGION", "TRACE_ON"}
    assert broker.store.stats().appended_end == before
    assert wire.put("T", b"fine").code == 0, "the connection stays"


def test_no_topic_is_created_if_that_is_off(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(delivery=DeliveryConfig(auto_create_topics=False))
    with Wire(broker.address) as wire:
        assert wire.put("T", b"x").code == ResponseCode.TOPIC_NOT_EXIST
        assert wire.call(17, {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}).code == 0
        assert wire.put("T", b"x").code == 0


def test_messages_survive_a_restart_of_the_broker(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    with Wire(broker.address) as wire:
        wire.put("T", b"one")
        wire.beat("c1", "G", "T")
        wire.call(15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"})
    broker.close()
    again = start_broker()
    with Wire(again.address) as wire:
        assert wire.call(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"}).fields == {"offset": "1"}
        answer = wire.call(11, pull_fields("G", "T"))
        assert [message.body for message in decode_records(answer.body)] == [b"one"]


def test_a_message_enters_no_other_topic_whatever_it_names(broker: BrokerThread, wire: Wire) -> None:
    """As with RocketMQ, light queues are off unless the broker has enableLmq and enableMultiDispatch."""
    for names in ("other", "%LMQ%one", "RMQ_SYS_TRANS_HALF_TOPIC"):
        assert wire.put("T", b"x", INNER_MULTI_DISPATCH=names, INNER_MULTI_QUEUE_OFFSET="0").code == 0
    batch = encode_batch([Message("T", b"x", properties={"INNER_MULTI_DISPATCH": "other"}) for _ in range(2)])
    assert wire.call(320, send_fields("T"), batch).code == 0
    assert len(broker.store.read("T")) == 5
    assert broker.store.topics() == ["T"]


def test_light_queues_are_entered_where_they_are_on(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(settings=BrokerSettings(light_queues=True, multi_dispatch=True))
    with Wire(broker.address) as wire:
        assert wire.put("T", b"x", INNER_MULTI_DISPATCH="%LMQ%one,%LMQ%two").code == 0
        answer = wire.put("T", b"y", INNER_MULTI_DISPATCH="%LMQ%one,other")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL and "may name queues of %LMQ% only" in str(answer.remark)
        assert [each.body for each in broker.store.read("%LMQ%one")] == [b"x"]
