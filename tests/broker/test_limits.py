"""Limits per client address and per connection: who asks for too much is refused, and others are served."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from mqlake.broker.bodies import MAX_JSON_BYTES
from mqlake.broker.in_thread import BrokerThread
from mqlake.broker.membership import MAX_GROUPS
from mqlake.broker.settings import BrokerSettings
from mqlake.errors import InvalidConfig
from mqlake.remoting.bodies import Heartbeat
from mqlake.remoting.command import request
from tests.broker.test_hostile import is_closed, is_well
from tests.broker.wire import Wire, pull_fields


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("settings", [BrokerSettings(max_connections_per_address=3), BrokerSettings(max_connections=3)])
def test_one_connection_too_many_is_closed_until_another_ends(
    settings: BrokerSettings, start_broker: Callable[..., BrokerThread]
) -> None:
    broker = start_broker(settings=settings)
    opened = [Wire(address) for address in (broker.address, broker.name_server, broker.address)]
    assert all(wire.call(106).code == 0 for wire in opened)
    with Wire(broker.address) as more:
        assert is_closed(more.socket)
    assert all(wire.call(106).code == 0 for wire in opened)
    opened[0].close()
    guests = broker.served.broker.guests
    until(lambda: guests.count == 2)
    is_well(broker)
    for wire in opened:
        wire.close()
    until(lambda: guests.count == 0 and not guests.by_host)


def test_addresses_do_not_share_their_limit(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(settings=BrokerSettings(max_connections_per_address=1))
    with Wire(broker.address) as one:
        assert one.call(106).code == 0
        assert broker.served.broker.guests.by_host == {"127.0.0.1": 1}
        with Wire(broker.address, source="127.0.0.2") as other:
            assert other.call(106).code == 0


def test_requests_beyond_the_limit_of_a_connection_are_answered_busy(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker(settings=BrokerSettings(max_requests=5))
    with Wire(broker.address) as wire, Wire(broker.address) as other:
        assert wire.put("T", b"x").code == 0
        broker.store.wait_dispatched()
        wait = pull_fields("G", "T", 0, 1, sysFlag="6", suspendTimeoutMillis="60000")
        waiting = [wire.send(request(11, wait)) for _ in range(5)]
        busy = wire.answer_to(wire.send(request(106)))
        assert busy.code == 2 and "5 requests" in str(busy.remark)
        assert other.put("T", b"y").code == 0
        assert [wire.answer_to(each).code for each in waiting] == [0] * 5
        assert wire.call(106).code == 0


def test_every_request_is_counted_out_again(broker: BrokerThread) -> None:
    with Wire(broker.address) as wire:
        for code in sorted(broker.served.broker.handlers):
            wire.call(code)
        wire.put("T", b"x")
        broker.store.wait_dispatched()
        wire.pull("G", "T")
        wire.pull("G", "T", 0, 1, sysFlag="6", suspendTimeoutMillis="50")
        (connection,) = broker.served.broker.connections
        assert connection.in_flight == 0


@pytest.mark.parametrize("sent", [b"", b"\0", struct.pack(">ii", 100, 90) + b"{"])
def test_a_client_that_sends_no_whole_frame_in_time_is_hung_up_on(
    sent: bytes, start_broker: Callable[..., BrokerThread]
) -> None:
    broker = start_broker(settings=BrokerSettings(handshake_ms=300))
    with Wire(broker.address) as slow, Wire(broker.address) as quick:
        assert quick.call(106).code == 0
        slow.socket.sendall(sent)
        assert is_closed(slow.socket)
        assert quick.call(106).code == 0


def test_bytes_without_a_whole_frame_do_not_keep_a_connection_alive(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker(settings=BrokerSettings(idle_s=1))
    with Wire(broker.address) as slow:
        assert slow.call(106).code == 0
        slow.socket.sendall(struct.pack(">ii", 1_000_000, 90))
        deadline = time.monotonic() + 30
        with pytest.raises(OSError):
            while time.monotonic() < deadline:
                slow.socket.sendall(b"{")
                time.sleep(0.05)
    is_well(broker)


def groups(count: int) -> bytes:
    return Heartbeat("c", [f"P{number}" for number in range(count)]).encode()


def test_a_connection_belongs_to_a_thousand_groups_at_most(broker: BrokerThread, wire: Wire) -> None:
    known = broker.served.broker.members.producers
    answer = wire.call(34, body=groups(MAX_GROUPS + 1))
    assert answer.code == 1 and f"{MAX_GROUPS} groups" in str(answer.remark) and not known
    assert wire.call(34, body=groups(MAX_GROUPS)).code == 0 and len(known) == MAX_GROUPS
    assert wire.call(34, body=groups(MAX_GROUPS)).code == 0, "the same ones again"
    assert wire.beat("c", "", producer="more").code == 1
    assert wire.call(35, {"clientID": "c", "producerGroup": "P0"}).code == 0
    assert wire.beat("c", "", producer="more").code == 0


@pytest.mark.parametrize("code", [34, 41, 42, 46, 400, 401, 200151])
def test_a_json_body_above_a_mebibyte_is_refused(code: int, broker: BrokerThread, wire: Wire) -> None:
    answer = wire.call(code, body=b'{"producerDataSet":[' + b" " * MAX_JSON_BYTES + b"]}")
    assert answer.code == 1
    assert (
        answer.remark == f"request: body: found JSON of {MAX_JSON_BYTES + 22} bytes; expected at most {MAX_JSON_BYTES}"
    )


def test_a_connection_that_closes_is_looked_for_in_its_own_groups_only(
    broker: BrokerThread, connect: Callable[[], Wire]
) -> None:
    class Unwalked(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError("all groups were looked at")

        __iter__ = values = keys = items

    members = broker.served.broker.members
    members.producers, members.consumers = Unwalked(), Unwalked()
    stays, moves = connect(), connect()
    stays.beat("c1", "G", "T", producer="P")
    moves.beat("c2", "G", "T", producer="P")
    moves.beat("c3", "G", "T", producer="P")
    stays.beat("c3", "G", "T", producer="P")
    moves.close()
    until(lambda: len(members._brought) == 1)
    assert set(members.producers["P"]) == set(members.consumers["G"].members) == {"c1", "c3"}
    stays.close()
    until(lambda: not members._brought)
    assert len(members.producers) == len(members.consumers) == 0


def test_limits_have_names_in_a_broker_conf() -> None:
    names = {
        "serverSocketMaxConnections": "1",
        "serverSocketMaxConnectionsPerAddress": "2",
        "serverChannelMaxRequests": "3",
        "serverHandshakeTimeoutMillis": "4",
        "serverChannelMaxIdleTimeSeconds": "5",
    }
    found = BrokerSettings.from_properties(names)
    assert (found.max_connections, found.max_connections_per_address, found.max_requests) == (1, 2, 3)
    assert (found.handshake_ms, found.idle_s) == (4, 5)
    for name in names:
        with pytest.raises(InvalidConfig, match=name):
            BrokerSettings.from_properties({name: "0"})
