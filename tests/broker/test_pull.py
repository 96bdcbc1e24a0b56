"""Pulls: what is found, and how a pull waits for a message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from mqlake.broker import pull
from mqlake.broker.in_thread import BrokerThread
from mqlake.kernel import Command
from mqlake.remoting.bodies import ConsumerData, Heartbeat, Subscription, decode_records
from mqlake.remoting.command import request
from tests.broker.wire import Wire, pull_fields
from tests.helpers import writer_of

WAITS = {"sysFlag": "6", "suspendTimeoutMillis": "20000"}


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]


def parked(broker: BrokerThread) -> int:
    return broker.served.broker.parts.pulls.parked_count


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_a_pull_returns_records_and_where_to_continue(broker: BrokerThread, wire: Wire) -> None:
    for number in range(40):
        wire.put("T", b"%d" % number)
    broker.store.wait_dispatched()
    answer = wire.pull("G", "T")
    assert bodies(answer) == [b"%d" % number for number in range(32)], "RocketMQ's limit"
    assert answer.fields["nextBeginOffset"] == "32" and answer.fields["maxOffset"] == "40"
    assert bodies(wire.pull("G", "T", offset=32)) == [b"%d" % number for number in range(32, 40)]


def test_a_running_broker_takes_other_settings_and_refuses_those_it_cannot_change(
    broker: BrokerThread, wire: Wire
) -> None:
    for number in range(40):
        wire.put("T", b"%d" % number)
    broker.store.wait_dispatched()
    assert wire.call(25, {}, b"maxTransferCountOnMessageInMemory=5\n").code == 0
    assert b"maxTransferCountOnMessageInMemory=5\n" in bytes(wire.call(26, {}).body)
    assert len(bodies(wire.pull("G", "T"))) == 5
    refused = wire.call(25, {}, b"listenPort=1\nmaxTransferCountOnMessageInMemory=6\n")
    assert refused.code == 16 and "listenPort" in str(refused.remark)
    assert wire.call(25, {}, b"shortPollingTimeMills=often\n").code == 29
    assert len(bodies(wire.pull("G", "T"))) == 5, "nothing of a refused change"


def test_the_end_of_a_queue_and_the_start_of_a_group_count_what_was_acknowledged(wire: Wire) -> None:
    queue = {"topic": "T", "queueId": "0"}
    for number in range(1, 201):
        wire.put("T", b"x")
        assert wire.call(30, queue).fields["offset"] == str(number)
        assert wire.call(14, {"consumerGroup": f"G{number}", **queue}).fields["offset"] == "0", "a young queue"


def test_a_pull_at_the_end_of_what_was_just_acknowledged_waits_for_the_next_message(
    broker: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    """While dispatch has not come to the last message, the pull seems to ask for more than there is."""
    dispatcher, late = writer_of(broker.store).dispatcher, threading.Event()
    step = dispatcher.step

    def late_step(limit: int) -> bool:
        return late.wait(30) and step(limit)

    dispatcher.step = late_step  # type: ignore[method-assign, assignment]
    wire.put("T", b"0")
    held = wire.send(request(11, pull_fields("G", "T", 0, 1, **WAITS)))
    assert wire.call(34, body=Heartbeat("c1", [], []).encode()).code == 0, "the pull was looked at"
    late.set()
    connect().put("T", b"1")
    assert bodies(wire.answer_to(held)) == [b"1"]


def test_a_pull_that_does_not_wait_finds_what_was_acknowledged(wire: Wire) -> None:
    for number in range(200):
        wire.put("T", b"%d" % number)
        assert bodies(wire.pull("G", "T", offset=number)) == [b"%d" % number]


def test_a_pull_is_bounded_in_bytes_but_returns_one_message(broker: BrokerThread, wire: Wire) -> None:
    for _ in range(4):
        wire.put("T", b"x" * 100_000)
    broker.store.wait_dispatched()
    assert len(bodies(wire.pull("G", "T"))) == 2, "256 KiB hold two"
    assert len(bodies(wire.pull("G", "T", maxMsgBytes="10"))) == 1


def test_tags_are_selected_by_the_queue_entries(broker: BrokerThread, wire: Wire) -> None:
    for number in range(30):
        wire.put("T", b"%d" % number, TAGS="ABC"[number % 3])
    broker.store.wait_dispatched()
    answer = wire.pull("G", "T", subscription="A || C")
    assert bodies(answer) == [b"%d" % number for number in range(30) if number % 3 != 1]
    none = wire.pull("G", "T", subscription="D")
    assert (none.code, none.remark, none.fields["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "30")


def test_sql_expressions_select_by_properties(broker: BrokerThread, wire: Wire) -> None:
    for number in range(10):
        wire.put("T", b"%d" % number, n=str(number))
    broker.store.wait_dispatched()
    answer = wire.pull("G", "T", subscription="n >= 3 AND n < 5", expressionType="SQL92")
    assert bodies(answer) == [b"3", b"4"]
    assert wire.pull("G", "T", subscription="n >>> (", expressionType="SQL92").code == 23


def test_a_parked_pull_is_answered_when_a_message_arrives(
    broker: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    wire.put("T", b"old")
    broker.store.wait_dispatched()
    asked = wire.send(request(11, pull_fields("G", "T", 0, 1, **WAITS)))
    wait_for(lambda: parked(broker) == 1)
    connect().put("T", b"new")
    answer = wire.answer_to(asked)
    assert answer.code == 0 and bodies(answer) == [b"new"]
    assert parked(broker) == 0


def test_a_parked_pull_of_an_empty_queue_is_woken_too(
    broker: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    wire.call(17, {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"})
    asked = [wire.send(request(11, pull_fields("G", "T", queue_id, 0, **WAITS))) for queue_id in range(4)]
    wait_for(lambda: parked(broker) == 4)
    connect().put("T", b"new", queue_id=2)
    assert bodies(wire.answer_to(asked[2])) == [b"new"]
    assert parked(broker) == 3


def test_a_parked_pull_passes_over_what_does_not_match(
    broker: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    wire.put("T", b"old", TAGS="A")
    broker.store.wait_dispatched()
    asked = wire.send(request(11, pull_fields("G", "T", 0, 1, **WAITS, subscription="A")))
    wait_for(lambda: parked(broker) == 1)
    other = connect()
    for _ in range(5):
        other.put("T", b"no", TAGS="B")
    broker.store.wait_dispatched()
    other.put("T", b"yes", TAGS="A")
    answer = wire.answer_to(asked)
    assert answer.code == 0 and bodies(answer) == [b"yes"] and answer.fields["nextBeginOffset"] == "7"


def test_a_parked_pull_is_answered_not_found_when_its_time_is_over(broker: BrokerThread, wire: Wire) -> None:
    wire.put("T", b"old")
    broker.store.wait_dispatched()
    before = time.monotonic()
    answer = wire.pull("G", "T", 0, 1, sysFlag="6", suspendTimeoutMillis="300")
    assert (answer.code, answer.fields["nextBeginOffset"]) == (19, "1")
    assert time.monotonic() - before >= 0.29


def test_a_delayed_message_wakes_a_parked_pull(broker: BrokerThread, wire: Wire, connect: Callable[[], Wire]) -> None:
    wire.put("T", b"old")
    broker.store.wait_dispatched()
    asked = wire.send(request(11, pull_fields("G", "T", 0, 1, **WAITS)))
    connect().put("T", b"later", DELAY="1")
    assert bodies(wire.answer_to(asked)) == [b"later"]


def test_a_closed_connection_takes_its_parked_pulls_with_it(broker: BrokerThread, connect: Callable[[], Wire]) -> None:
    wire = connect()
    wire.put("T", b"old")
    broker.store.wait_dispatched()
    wire.send(request(11, pull_fields("G", "T", 0, 1, **WAITS)))
    wait_for(lambda: parked(broker) == 1)
    wire.close()
    wait_for(lambda: parked(broker) == 0)


def test_a_pull_commits_progress_along_the_way(broker: BrokerThread, wire: Wire) -> None:
    wire.put("T", b"x")
    wire.pull("G", "T", sysFlag="5", commitOffset="1")
    assert wire.call(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"}).fields["offset"] == "1"


REFUSED = {
    "no such topic": ({"topic": "NONE"}, 17),
    "no such queue": ({"queueId": "9"}, 29),
    "a group without a heart beat": ({"sysFlag": "2"}, 24),
    "a field that is no number": ({"queueOffset": "x"}, 1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_pull_is_refused_with_rocketmqs_code(what: str, wire: Wire) -> None:
    changed, code = REFUSED[what]
    wire.put("T", b"x")
    assert wire.call(11, pull_fields("G", "T") | changed).code == code


def test_a_subscription_that_is_newer_than_the_heart_beat_is_not_latest(wire: Wire) -> None:
    wire.put("T", b"x")
    wire.arrived("T")
    wire.beat("c1", "G", "T")
    assert wire.pull("G", "T", sysFlag="2", subVersion="1").code == 0
    assert wire.pull("G", "T", sysFlag="2", subVersion="2").code == 25


def test_a_heart_beat_that_does_not_come_holds_up_a_consumer_for_one_pull_only(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "NEWER_S", 0.0)
    wire.put("T", b"a", TAGS="A")
    wire.put("T", b"b", TAGS="B")
    assert len(wire.arrived("T")) >= 1
    data = ConsumerData("G", [Subscription("T", "A", version=1, tags=("A",))])
    assert wire.call(34, body=Heartbeat("c1", [], [data]).encode()).code == 0
    newer = {"sysFlag": "2", "suspendTimeoutMillis": "9000", "subVersion": "2"}
    assert wire.pull("G", "T", 0, 0, **newer).code == 25
    found = wire.pull("G", "T", 0, 1, **newer)
    assert [each.body for each in decode_records(found.body)] == [b"b"], "of any tag: its client chooses"


def test_a_reset_is_told_with_the_pull_that_waits(
    broker: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    for _ in range(3):
        wire.put("T", b"x")
    broker.store.wait_dispatched()
    asked = wire.send(request(11, pull_fields("G", "T", 0, 3, **WAITS)))
    wait_for(lambda: parked(broker) == 1)
    done = connect().call(222, {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"})
    assert done.code == 0
    answer = wire.answer_to(asked)
    assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
