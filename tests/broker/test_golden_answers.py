"""What a real RocketMQ 5.5 broker answered to real clients: the same code, and the same fields."""

from __future__ import annotations

import re

import pytest

from mqlake.broker.in_thread import BrokerThread
from mqlake.kernel import Command
from mqlake.remoting.bodies import Heartbeat, read_json, write_json
from mqlake.remoting.command import single
from tests.broker.wire import Wire, send_fields
from tests.golden.wire_frames import CLIENTS, Exchange, exchanges

SET_UP = {10, 310, 320, 11, 361, 14, 15, 29, 30, 31, 32, 41, 42, 202, 208, 222, 300, 351, 105}
"""Requests that need their topic."""
ALWAYS = {
    10,
    310,
    320,
    17,
    26,
    28,
    29,
    30,
    31,
    34,
    35,
    41,
    42,
    46,
    106,
    200,
    202,
    206,
    207,
    215,
    216,
    222,
    300,
    351,
    401,
}
"""Requests whose answer does not depend on what came before, once their topic is there."""


def prepare(wire: Wire, request: Command) -> None:
    topic = request.fields.get("topic") or request.fields.get("b")
    if topic and request.code in SET_UP and not topic.startswith("%") and topic != "TBW102":
        wire.call(17, {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"})
    if request.code == 222:
        wire.call(200, body=write_json({"groupName": request.fields["group"]}))


def comparable(each: Exchange) -> bool:
    response = each.response
    if response is None or not each.request.is_whole or each.request.header["from"] != "client":
        return False
    if each.case in ("topic-no-route", "topic-no-inherit"):
        return False
    return each.request.code in ALWAYS and not (each.request.code in (10, 310) and "TIMER" in str(each.request.header))


@pytest.mark.parametrize("client", CLIENTS)
def test_requests_get_the_code_and_the_fields_that_rocketmq_gave(client: str, broker: BrokerThread) -> None:
    seen = set()
    with Wire(broker.address) as wire:
        for each in exchanges(client):
            if not comparable(each):
                continue
            assert each.response is not None
            request = single(each.request.data)
            prepare(wire, request)
            wire.socket.sendall(each.request.data)
            answer = wire.answer_to(request)
            assert answer.code == each.response.code, (each.case, request, answer)
            assert set(answer.fields) == set(each.response.header["extFields"]), (each.case, request, answer)
            seen.add(request.code)
    assert len(seen) >= 4


@pytest.mark.parametrize("client", CLIENTS)
def test_routes_have_the_same_shape(client: str, broker: BrokerThread) -> None:
    with Wire(broker.name_server) as wire:
        for each in exchanges(client):
            if each.request.code != 105 or each.response is None:
                continue
            request = single(each.request.data)
            topic = request.fields["topic"]
            if each.response.code == 0 and not topic.startswith("%") and topic != "TBW102":
                route = read_json(each.response.body)["queueDatas"][0]
                counts = {name: str(route[name]) for name in ("readQueueNums", "writeQueueNums", "perm")}
                wire.call(17, {"topic": topic, **counts})
            elif not topic.startswith("%"):
                wire.call(215, {"topic": topic})
            wire.socket.sendall(each.request.data)
            answer = wire.answer_to(request)
            if topic.startswith("%RETRY%"):
                assert answer.code == 0, "it is made when it is asked for: a consumer would wait 30 s for it"
                continue
            assert answer.code == each.response.code, topic
            address = re.compile(rb"127\.0\.0\.1:\d+")
            assert address.sub(b"", answer.body) == address.sub(b"", each.response.body)


PULLS = {
    "FOUND": (0, "0"),
    "OFFSET_OVERFLOW_ONE": (19, "3"),
    "OFFSET_OVERFLOW_BADLY": (21, "500"),
}


@pytest.mark.parametrize("status", PULLS)
def test_pulls_have_the_fields_that_rocketmq_gave(status: str, wire: Wire) -> None:
    code, offset = PULLS[status]
    for body in (b"a", b"b", b"c"):
        assert wire.call(310, send_fields("T"), body).code == 0
    expected = [
        each.response.header["extFields"]
        for client in CLIENTS
        for each in exchanges(client)
        if each.request.code == 11 and each.response is not None and each.response.header["remark"] == status
    ]
    while wire.call(30, {"topic": "T", "queueId": "0"}).fields["offset"] != "3":
        pass  # dispatch has not come to them yet
    answer = wire.pull("G", "T", offset=int(offset))
    assert (answer.code, answer.remark) == (code, status)
    assert expected and all(set(each) == set(answer.fields) for each in expected)


def test_a_recorded_heart_beat_makes_its_client_a_member(wire: Wire) -> None:
    for client in CLIENTS:
        for each in exchanges(client):
            if each.request.code != 34:
                continue
            beat = Heartbeat.decode(each.request.body)
            wire.call(34, body=each.request.body)
            for data in beat.consumers:
                members = read_json(wire.call(38, {"consumerGroup": data.group}).body)["consumerIdList"]
                assert beat.client_id in members
