"""Bad input and bad clients: the broker answers, refuses or hangs up, and serves the others all the while."""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqlake.broker.connection import HIGH_BYTES
from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.membership import _compiled
from mqlake.kernel import Command, encode_command
from mqlake.remoting.bodies import ConsumerData, Heartbeat, Subscription, decode_records, write_json
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import request
from tests.broker.test_pop import pop_fields
from tests.broker.wire import Wire, pull_fields


def is_well(broker: BrokerThread) -> None:
    with Wire(broker.address) as wire:
        assert wire.put("WELL", b"x").code == 0


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass
    return True


def test_an_unknown_request_is_answered_by_name_and_the_connection_stays(wire: Wire) -> None:
    for code in (9999, -5, RequestCode.RESUME_CHECK_HALF_MESSAGE):
        answer = wire.call(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
    assert wire.put("T", b"x").code == 0


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", 1_000_000_000),
        struct.pack(">i", -1),
        struct.pack(">ii", 8, 0xFFFFFF) + b"abcd",
        struct.pack(">ii", 8, 4) + b"{}  ",
    ],
)
def test_what_is_no_frame_ends_its_connection_only(data: bytes, broker: BrokerThread) -> None:
    with Wire(broker.address) as bad:
        bad.socket.sendall(data)
        assert is_closed(bad.socket)
    is_well(broker)


SUBSCRIPTION = {"topic": "T", "subString": "a", "expressionType": "TAG", "subVersion": 1, "tagsSet": ["a"]}
CONSUMER = {"groupName": "G", "consumeType": "CONSUME_POP", "messageModel": "CLUSTERING", "unitMode": False}
QUEUE = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
BODIES: dict[int, dict[str, Any]] = {
    34: {
        "clientID": "c",
        "heartbeatFingerprint": 1,
        "withoutSub": False,
        "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [{**CONSUMER, "consumeFromWhere": 0, "subscriptionDataSet": [SUBSCRIPTION]}],
    },
    46: {"clientId": "c", "group": "G", "subscriptionData": SUBSCRIPTION},
    41: {"consumerGroup": "G", "clientId": "c", "mqSet": [QUEUE]},
    42: {"consumerGroup": "G", "clientId": "c", "mqSet": [QUEUE]},
    400: {**dict.fromkeys(("topic", "consumerGroup", "clientId"), "T"), "messageModel": "C", "strategyName": "AVG"},
    401: {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 1},
    200: {"groupName": "G", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 1, "attributes": {}},
    225: {"groupConfigList": [{"groupName": "G", "retryMaxTimes": 1}]},
    18: {"topicConfigList": [{"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": False}]},
    200151: {"consumerGroup": "G", "acks": [{"c": "G", "t": "T", "r": "0", "q": 0, "so": 0, "pt": 1, "b": [1]}]},
}
"""Requests with JSON in their bodies, each with everything that is read of it."""
ODD: tuple[Any, ...] = (None, True, 7, -1, 10**30, float("inf"), "x", "\ud800", [], [7], [None], {}, {"a": 7})


def with_odd_values(value: Any) -> Iterator[Any]:
    """Yield a JSON value again and again, each time with another of its parts replaced by something odd."""
    yield from ODD
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, part in parts:
        for odd in with_odd_values(part):
            changed = value.copy()
            changed[place] = odd
            yield changed


@pytest.mark.parametrize("code", BODIES)
def test_json_with_a_value_of_another_type_is_understood_or_refused_by_name(
    code: int, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    wire.put("T", b"x")
    for body in with_odd_values(BODIES[code]):
        answer = wire.call(code, body=json.dumps(body).encode())
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR], f"{body}: {answer.remark}"
    assert wire.call(code, body=json.dumps(BODIES[code]).encode()).code == 0


def test_a_frame_that_never_ends_costs_only_its_bytes(broker: BrokerThread) -> None:
    with Wire(broker.address) as slow:
        slow.socket.sendall(struct.pack(">i", 16 << 20) + b"\0" * 1000)
        is_well(broker)
        (kept,) = [each._reader.kept_bytes for each in broker.served.broker.connections if each._reader.kept_bytes]
        assert kept == 1004


def test_every_request_with_an_empty_header_and_body_is_answered(broker: BrokerThread) -> None:
    with Wire(broker.address) as wire:
        for code in sorted(broker.served.broker.handlers):
            answer = wire.call(code)
            assert answer.is_response and (answer.code == 0 or answer.remark), code


def test_a_client_that_never_reads_is_no_longer_read(broker: BrokerThread) -> None:
    with Wire(broker.address) as wire:
        for _ in range(8):
            wire.put("T", b"x" * 30_000)
        broker.store.wait_dispatched()
        frame = encode_command(request(11, pull_fields("G", "T")))
        wire.socket.settimeout(1.0)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 200_000:
                wire.socket.sendall(frame * 50)
                sent += 50
        (greedy,) = [each for each in broker.served.broker.connections if each._is_paused]
        assert greedy.transport is not None
        assert greedy.transport.get_write_buffer_size() < 2 * HIGH_BYTES + (1 << 19)
        is_well(broker)


def test_a_thousand_connections_come_and_go(broker: BrokerThread) -> None:
    for _ in range(10):
        opened = [Wire(broker.address) for _ in range(100)]
        assert all(wire.call(206).code == 0 for wire in opened[::10])
        for wire in opened:
            wire.close()
    deadline = time.monotonic() + 30
    while broker.served.broker.connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    is_well(broker)


def test_closing_answers_the_pulls_that_wait(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    with Wire(broker.address) as wire:
        wire.put("T", b"x")
        broker.store.wait_dispatched()
        asked = wire.send(request(11, pull_fields("G", "T", 0, 1, sysFlag="6", suspendTimeoutMillis="60000")))
        while not broker.served.broker.parts.pulls.parked_count:
            time.sleep(0.005)
        broker.close()
        answer: Command = wire.answer_to(asked)
        assert answer.code == 19


def test_an_unlock_without_a_client_id_of_a_queue_that_nobody_holds_is_answered(wire: Wire) -> None:
    body = b'{"consumerGroup":"G","mqSet":[{"topic":"T","brokerName":"broker-a","queueId":0}]}'
    assert wire.call(RequestCode.UNLOCK_BATCH_MQ, body=body).code == 0


@pytest.mark.parametrize("field", ["queueOffset", "maxMsgNums", "commitOffset", "subVersion", "maxMsgBytes"])
def test_a_number_of_more_than_64_bits_is_refused_by_name(wire: Wire, field: str) -> None:
    assert wire.put("T", b"x").code == 0
    answer = wire.call(11, {**pull_fields("G", "T"), field: str(1 << 63)})
    assert answer.code == 1 and f"{field}: found '{1 << 63}'; expected a whole number of 64 bits" in str(answer.remark)


@pytest.mark.parametrize("expression", [" OR ".join(["a = 1"] * 4000), "a = " + "9" * 5000, "a = " + "-" * 16_000])
def test_a_filter_that_is_too_long_or_has_too_long_a_number_is_refused_with_its_place(
    expression: str, wire: Wire
) -> None:
    wire.put("T", b"x")
    own = wire.pull("G", "T", expressionType="SQL92", subscription=expression)
    assert own.code == 23 and "filter: " in str(own.remark) and "at character " in str(own.remark)
    assert len(str(own.remark)) < 1000
    wanted = {"topic": "T", "subString": expression, "expressionType": "SQL92", "subVersion": 1}
    checked = wire.call(46, body=write_json({"clientId": "c", "group": "G", "subscriptionData": wanted}))
    assert checked.code == 23 and str(checked.remark).startswith("filter: ")
    beat = Heartbeat("c", consumers=[ConsumerData("G", [Subscription("T", expression, "SQL92", 1)])])
    assert wire.call(34, body=beat.encode()).code == 0
    assert wire.pull("G", "T", sysFlag="0").code == 23


def test_an_expression_is_compiled_once_for_many_pulls(wire: Wire) -> None:
    wire.put("T", b"x", a="once")
    before = _compiled.cache_info().misses
    for _ in range(3):
        assert wire.pull("G", "T", expressionType="SQL92", subscription="a = 'once'").code in (0, 20)
    assert _compiled.cache_info().misses == before + 1


def test_a_slow_expression_is_evaluated_a_part_of_the_messages_at_a_time(
    wire: Wire, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        wire.put("T", b"%d" % number, a=str(number % 2))
    broker.store.wait_dispatched()
    monkeypatch.setattr("mqlake.broker.pull.SELECT_S", -1.0)  # after each message
    filtered = {"expressionType": "SQL92", "subscription": "a = 1"}
    found, offset = [], 0
    while offset < 6:
        answer = wire.pull("G", "T", 0, offset, **filtered)
        assert int(answer.fields["nextBeginOffset"]) == offset + 1
        found += [message.body for message in decode_records(answer.body)] if answer.code == 0 else []
        offset += 1
    popped = []
    for _ in range(6):
        answer = wire.call(200050, pop_fields(poll_ms=0, expType="SQL92", exp="a = 1", queueId="0"))
        popped += [message.body for message in decode_records(answer.body)]
    assert found == popped == [b"1", b"3", b"5"]


def test_a_filter_of_a_heart_beat_is_recorded_with_the_first_pull(wire: Wire, broker: BrokerThread) -> None:
    wire.put("T", b"x", a="1")
    beat = Heartbeat("c", consumers=[ConsumerData("G", [Subscription("T", "a = '1'", "SQL92", 1)])])
    assert wire.call(34, body=beat.encode()).code == 0
    broker.store.wait_dispatched()
    assert wire.pull("G", "T", sysFlag="0").code == 0
    noted = broker.served.broker.delivery.filters.get("T", "G")
    assert noted is not None and noted["expression"] == "a = '1'"


def test_a_filter_cannot_keep_the_broker_from_others(wire: Wire, broker: BrokerThread) -> None:
    wire.put("T", b"x", a="a" * 5000)
    pattern = "%a" * 12
    wire.send(request(11, pull_fields("G", "T", expressionType="SQL92", subscription=f"a LIKE '{pattern}b'")))
    is_well(broker)
