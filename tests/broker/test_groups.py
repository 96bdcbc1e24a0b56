"""Membership, queue locks, retries, transactions, replies: what happens between the clients of a broker."""

from __future__ import annotations

import json
from collections.abc import Callable

from mqlake.broker.in_thread import BrokerThread
from mqlake.config import TransactionConfig
from mqlake.message import StoredMessage
from mqlake.remoting.bodies import decode_records, read_json
from mqlake.remoting.command import request, response
from tests.broker.wire import Wire, send_fields


def test_members_are_told_when_one_joins_and_when_one_leaves(wire: Wire, connect: Callable[[], Wire]) -> None:
    wire.put("T", b"x")
    wire.beat("c1", "G", "T")
    assert wire.next_request(40).fields == {"consumerGroup": "G"}
    other = connect()
    other.beat("c2", "G", "T")
    wire.next_request(40)
    members = read_json(wire.call(38, {"consumerGroup": "G"}).body)["consumerIdList"]
    assert sorted(members) == ["c1", "c2"]
    other.close()
    wire.next_request(40)
    assert read_json(wire.call(38, {"consumerGroup": "G"}).body)["consumerIdList"] == ["c1"]


def test_a_heart_beat_that_changes_nothing_tells_nobody(wire: Wire) -> None:
    wire.beat("c1", "G", "T")
    wire.next_request(40)
    wire.beat("c1", "G", "T")
    wire.socket.settimeout(0.3)
    try:
        extra = wire.receive()
    except TimeoutError:
        return
    raise AssertionError(f"an unexpected request: {extra}")


def test_a_client_that_unregisters_leaves_its_group(wire: Wire) -> None:
    wire.beat("c1", "G", "T")
    assert wire.call(35, {"clientID": "c1", "consumerGroup": "G"}).code == 0
    answer = wire.call(38, {"consumerGroup": "G"})
    assert (answer.code, answer.remark) == (1, "no consumer for this group, G")


def lock(wire: Wire, client_id: str, *queue_ids: int, code: int = 41) -> list[int]:
    queues = [{"brokerName": "broker-a", "queueId": queue_id, "topic": "T"} for queue_id in queue_ids]
    body = json.dumps({"clientId": client_id, "consumerGroup": "G", "mqSet": queues}).encode()
    answer = wire.call(code, body=body)
    return [each["queueId"] for each in json.loads(answer.body)["lockOKMQSet"]] if code == 41 else []


def test_locks_that_nobody_renews_are_forgotten(broker: BrokerThread, wire: Wire) -> None:
    locks = broker.served.broker.parts.locks
    lock(wire, "c1", 0, 1)
    now = locks.clock()
    locks.clock = lambda: now + 61
    assert lock(wire, "c2", 1) == [1], "the lease is over"
    assert [len(held) for held in locks._locks.values()] == [1]


def test_a_queue_is_locked_by_one_client_at_a_time(wire: Wire) -> None:
    assert lock(wire, "c1", 0, 1) == [0, 1]
    assert lock(wire, "c2", 1, 2) == [2]
    assert lock(wire, "c1", 0, 1) == [0, 1], "its owner renews it"
    lock(wire, "c2", 0, code=42)
    assert lock(wire, "c2", 0) == [], "only its owner gives it back"
    lock(wire, "c1", 0, code=42)
    assert lock(wire, "c2", 0) == [0]


def test_a_failed_message_comes_back_in_the_retry_topic_and_then_as_a_dead_letter(
    broker: BrokerThread, wire: Wire
) -> None:
    wire.beat("c1", "G", "T")
    offset = broker.store.get(wire.put("T", b"bad", TAGS="A").fields["msgId"]).physical_offset
    back = {"group": "G", "delayLevel": "1", "originTopic": "T", "maxReconsumeTimes": "1"}
    assert wire.call(36, {**back, "offset": str(offset)}).code == 0
    (again,) = wire.arrived("%RETRY%G")
    assert (again.body, again.reconsume_times, again.properties["RETRY_TOPIC"]) == (b"bad", 1, "T")
    assert wire.call(36, {**back, "offset": str(again.physical_offset)}).code == 0
    (dead,) = wire.arrived("%DLQ%G")
    assert dead.body == b"bad"
    assert wire.call(36, {**back, "offset": "99999999"}).code == 1


def half(wire: Wire, body: bytes, key: str) -> dict[str, str]:
    fields = send_fields("T", 3, {"TRAN_MSG": "true", "PGROUP": "TP", "UNIQ_KEY": key})
    answer = wire.call(310, fields | {"a": "TP", "f": "4"}, body)
    assert (answer.code, answer.fields["queueId"], answer.fields["transactionId"]) == (0, "3", key)
    return answer.fields


def end(answer: dict[str, str], decision: str, checked: str = "false") -> dict[str, str]:
    return {
        "producerGroup": "TP",
        "tranStateTableOffset": answer["queueOffset"],
        "commitLogOffset": str(int(answer["msgId"][-16:], 16)),
        "commitOrRollback": decision,
        "fromTransactionCheck": checked,
        "msgId": answer["transactionId"],
    }


def test_a_transaction_is_visible_when_it_is_committed_and_never_if_rolled_back(
    broker: BrokerThread, wire: Wire
) -> None:
    first, second = half(wire, b"yes", "K1"), half(wire, b"no", "K2")
    assert wire.call(37, end(second, "12")).code == 0
    assert wire.call(37, end(first, "8")).code == 0
    found = wire.arrived("T", 3)
    assert [message.body for message in found] == [b"yes"]
    assert wire.call(37, end(first, "8")).code == 1, "it is decided only once"
    assert wire.call(37, end(first, "8") | {"producerGroup": "OTHER"}).code == 1


def test_a_producer_is_asked_about_an_undecided_transaction(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(transactions=TransactionConfig(timeout_ms=1, check_interval_ms=100))
    with Wire(broker.address) as wire:
        wire.beat("p1", "", producer="TP")
        half(wire, b"body", "K1")
        asked = wire.next_request(39)
        (record,) = decode_records(asked.body)
        assert (record.topic, record.queue_id, record.body) == ("T", 3, b"body")
        assert asked.fields["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC" and asked.fields["msgId"] == "K1"
        ended = {
            "producerGroup": "TP",
            "tranStateTableOffset": asked.fields["tranStateTableOffset"],
            "commitLogOffset": asked.fields["commitLogOffset"],
            "commitOrRollback": "8",
            "fromTransactionCheck": "true",
        }
        wire.call(37, ended)
        assert [message.body for message in wire.arrived("T", 3)] == [b"body"]


def test_a_reply_is_pushed_to_the_client_that_asked(wire: Wire, connect: Callable[[], Wire]) -> None:
    wire.beat("asker", "", producer="P")
    replier = connect()
    properties = {"CORRELATION_ID": "c", "REPLY_TO_CLIENT": "asker", "MSG_TYPE": "reply"}
    sent = replier.send(request(325, send_fields("DefaultCluster_REPLY_TOPIC", 0, properties), b"pong"))
    pushed = wire.next_request(326)
    assert pushed.body == b"pong" and "CORRELATION_ID\x01c\x02" in pushed.fields["properties"]
    wire.send(response(pushed))
    assert replier.answer_to(sent).code == 0
    properties["REPLY_TO_CLIENT"] = "nobody"
    gone = replier.call(325, send_fields("DefaultCluster_REPLY_TOPIC", 0, properties), b"pong")
    assert gone.code == 1 and "nobody" in (gone.remark or "")


def test_messages_are_found_by_offset_and_by_key(broker: BrokerThread, wire: Wire) -> None:
    sent = wire.put("T", b"one", KEYS="k1", UNIQ_KEY="U1")
    wire.put("T", b"two", KEYS="k2", UNIQ_KEY="U2")

    def found(answer: bytes) -> list[StoredMessage]:
        return decode_records(answer)

    offset = int(sent.fields["msgId"][-16:], 16)
    assert found(wire.call(33, {"offset": str(offset)}).body)[0].body == b"one"
    assert wire.call(33, {"offset": "77777777"}).code == 1
    wanted = {"topic": "T", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    assert [each.body for each in found(wire.call(12, {**wanted, "key": "k2"}).body)] == [b"two"]
    unique = {**wanted, "key": "U1", "_UNIQUE_KEY_QUERY": "true"}
    assert [each.body for each in found(wire.call(12, unique).body)] == [b"one"]
    assert wire.call(12, {**wanted, "key": "nothing"}).code == 22


def test_a_new_group_on_a_young_queue_starts_at_its_beginning(broker: BrokerThread, wire: Wire) -> None:
    asked = {"consumerGroup": "NEW", "topic": "T", "queueId": "0"}
    assert wire.call(14, asked).code == 22
    wire.put("T", b"x")
    broker.store.wait_dispatched()
    assert wire.call(14, asked).fields == {"offset": "0"}
    assert wire.call(14, {**asked, "setZeroIfNotFound": "false"}).code == 22
    wire.call(15, {**asked, "commitOffset": "-1"})
    assert wire.call(14, asked).fields == {"offset": "0"}, "a negative commit is ignored"
