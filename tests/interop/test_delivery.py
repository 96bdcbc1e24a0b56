"""mqlake and a real RocketMQ 5.5 broker continue each other's stores: groups, delayed and failed messages, halves.

Nothing here depends on the speed of the machine: only one side can deliver at a time, and the test waits for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqlake import MessageStore, StoreConfig
from tests.delivery.later import arrived, arrived_bodies, as_a_crash_leaves_it, now_ms, order, step
from tests.helpers import covers
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq_broker import SETTINGS, run_broker

pytestmark = WITH_ROCKETMQ


def open_store(path: Path, **settings: Any) -> MessageStore:
    return MessageStore.open(path, config=StoreConfig.from_properties(SETTINGS), **settings)


def put(body: str, topic: str = "orders", **properties: object) -> dict[str, Any]:
    given = {name: str(value) for name, value in properties.items()}
    return {"put": {"topic": topic, "queueId": 0, "body": body, "properties": given}}


def consume(group: str, topic: str, count: int) -> dict[str, Any]:
    return {"consume": {"group": group, "topic": topic, "queueId": 0, "count": count}}


def until(topic: str, count: int) -> dict[str, Any]:
    return {"until": {"topic": topic, "count": count}}


def lag_of(store: MessageStore, group: str) -> dict[str, tuple[int, int]]:
    return {lag.topic: (lag.offset, lag.message_count) for lag in store.lag(group)}


@covers("P1", "P2", "P4", "P5", "P9")
def test_a_real_broker_continues_a_store_of_ours(tmp_path: Path) -> None:
    """Groups continue from their progress. Delivered messages do not come again, waiting ones come when due, cancelled
    ones never. The broker asks about undecided transactions, and follows the answers."""
    with open_store(tmp_path) as store:
        store.create_topic("orders", 1)
        store.create_group("billing", max_retry_count=7)
        store.put_many([order(b"%d" % number) for number in range(6)])
        with store.transaction("shop") as transaction:
            transaction.put(order(b"committed here"))
        early = [store.put(order(b"level, here", delay_level=1)), store.put(order(b"time, here", delay_s=1))]
        step(store, max(receipt.store_timestamp for receipt in early) + 2_000)
        consumer = store.consumer("billing", "orders", auto_commit=False)
        taken = consumer.poll(limit=4)
        store.delivery.housekeeping.close()  # from here on only the broker delivers
        consumer.fail(taken[1], level=1)
        consumer.commit()
        began_ms = now_ms()
        store.put(order(b"level, there", delay_level=2))
        store.put(order(b"time, there", deliver_at=began_ms + 3_000))
        far = store.put(order(b"time, far", delay_s=3_600))
        store.cancel(store.put(order(b"cancelled", deliver_at=began_ms + 5_000)))
        store.put(order(b"time, last", deliver_at=began_ms + 7_000))
        for body in (b"half, yes", b"half, no"):
            store.transactions.prepare(order(body), group="shop")
        before = arrived_bodies(store)
    assert sorted(before[6:]) == [b"committed here", b"level, here", b"time, here"]
    group, topic, first, asked, begun, again = run_broker(
        tmp_path,
        [
            {"group": "billing"},
            {"topic": "orders"},
            consume("billing", "orders", 1),
            {"answer": {"group": "shop", "decisions": {"half, yes": True, "half, no": False}}},
            until("%RETRY%billing", 1),
            consume("billing", "%RETRY%billing", 9),  # the first pull of a new group returns no messages
            consume("billing", "%RETRY%billing", 9),
            until("orders", 13),
        ],
    )
    assert group == {"retryMaxTimes": 7} and topic == {"readQueues": 1, "writeQueues": 1, "permission": 6}
    assert first == {"from": 4, "bodies": ["4"]}
    assert (begun, again) == ({"from": -1, "bodies": []}, {"from": 0, "bodies": ["1"]})
    assert asked == {"asked": ["half, no", "half, yes"]}
    with open_store(tmp_path) as store:
        came = {message.body: message.store_timestamp for message in arrived(store)[len(before) :]}
        assert sorted(came) == [b"half, yes", b"level, there", b"time, last", b"time, there"]
        assert min(came[b"level, there"], came[b"time, there"]) >= began_ms + 3_000
        assert came[b"time, last"] >= began_ms + 7_000
        assert lag_of(store, "billing") == {"orders": (5, 8), "%RETRY%billing": (1, 0)}
        with store.consumer("billing", "orders", idle_s=0) as consumer:
            assert [message.body for message in consumer] == [b"5", *before[6:], *came]
        assert store.transactions.undecided() == []
        assert [waiting.message.physical_offset for waiting in store.waiting()] == [far.physical_offset]
        step(store, now_ms() + 3_700_000)
        assert arrived_bodies(store) == [*before, *came, b"time, far"], "once"


@covers("P1", "P2", "P4", "P5", "P9")
def test_a_store_of_a_real_broker_continues_here(tmp_path: Path) -> None:
    base_ms = now_ms()
    retry = put("failed", "%RETRY%billing", DELAY=1, RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID="X")
    commands: list[dict[str, Any]] = [
        {"group": "billing"},
        *(put(str(number), UNIQ_KEY=f"C{number}") for number in range(5)),
        put("level 1", DELAY=1),
        put("level 3", DELAY=3),
        put("level 99", DELAY=99),
        put("soon", TIMER_DELAY_SEC=2, UNIQ_KEY="A1"),
        put("later", TIMER_DELIVER_MS=base_ms + 4_000_300, UNIQ_KEY="A2"),
        put("by delay", TIMER_DELAY_SEC=7_200, UNIQ_KEY="A3"),
        put("recalled", TIMER_DELIVER_MS=base_ms + 4_000_300, UNIQ_KEY="A4"),
        put("0", TIMER_DELIVER_MS=base_ms + 4_000_300, TIMER_DEL_UNIQKEY="A4", UNIQ_KEY="A4"),
        {"prepare": put("half 0", PGROUP="shop", TRAN_MSG="true", UNIQ_KEY="B0")["put"]},
        {"prepare": put("half 1", PGROUP="shop", TRAN_MSG="true", UNIQ_KEY="B1")["put"]},
        retry,
        until("orders", 7),
        until("%RETRY%billing", 1),
        consume("billing", "orders", 3),  # the first pull of a new group returns no messages
        consume("billing", "orders", 3),
    ]
    group, *stored, begun, first = run_broker(tmp_path, commands)
    assert group == {"retryMaxTimes": 16} and {answer["status"] for answer in stored} == {"PUT_OK"}
    assert begun == {"from": -1, "bodies": []} and first == {"from": 0, "bodies": ["0", "1", "2"]}
    with open_store(tmp_path) as store:
        there = arrived(store)
        assert [message.body for message in there[:5]] == [b"%d" % number for number in range(5)]
        assert sorted(message.body for message in there[5:]) == [b"level 1", b"soon"]
        by_rocketmq = next(message for message in there if message.body == b"soon")
        assert "billing" in store.groups() and lag_of(store, "billing")["orders"] == (3, 4)
        with store.consumer("billing", "orders", idle_s=0) as consumer:
            bodies = [message.body for message in consumer]
        assert sorted(bodies) == [b"3", b"4", b"failed", b"level 1", b"soon"]
        assert [w.message.body for w in store.waiting()] == [b"level 3", b"level 99", b"later", b"by delay"]
        undecided = {each.messages[0].body: each.id for each in store.transactions.undecided()}
        assert set(undecided) == {b"half 0", b"half 1"}
        store.transactions.resolve(undecided[b"half 0"], commit=True)
        store.transactions.resolve(undecided[b"half 1"], commit=False)
        assert arrived_bodies(store)[7:] == [b"half 0"]
        step(store, base_ms + 10_000_000)
        assert arrived_bodies(store)[8:] == [b"level 3", b"level 99", b"later", b"by delay"]
        ours = arrived(store)[-1]
        assert set(ours.properties) == set(by_rocketmq.properties), "deliveries look the same"
        assert store.transactions.undecided() == [] and store.waiting() == []


@pytest.mark.long
def test_after_a_crash_here_a_real_broker_loses_nothing(tmp_path: Path) -> None:
    """The broker may deliver again what was delivered since the last checkpoint: it cannot know."""
    with open_store(tmp_path / "s") as store:
        store.delivery.housekeeping.close()  # nothing is delivered here
        due_ms = now_ms() + 10_000
        for number in range(10):
            if number == 5:
                step(store, now_ms())
                store.delivery.require_scheduler().timer().keep()
            store.put(order(b"%d" % number, deliver_at=due_ms + number))
        store.wait_dispatched()
        as_a_crash_leaves_it(store, tmp_path / "crashed")
    run_broker(tmp_path / "crashed", [until("orders", 10)])
    with open_store(tmp_path / "crashed", read_only=True) as store:
        came = arrived(store)
        assert {int(message.body) for message in came} == set(range(10))
        assert min(message.store_timestamp for message in came) >= due_ms
