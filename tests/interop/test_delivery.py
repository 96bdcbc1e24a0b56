"""Delayed, timed and half messages that one of us left waiting come from the other, once: mqlake and RocketMQ 5.5."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import Message, MessageStore, StoreConfig
from tests.delivery.later import arrived, arrived_bodies, now_ms, order, step
from tests.interop.rocketmq import available
from tests.interop.rocketmq_broker import SETTINGS, run_broker

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"

pytestmark = [
    pytest.mark.skipif(available() is not None, reason=f"real RocketMQ cannot run here: {available()}"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("rocketmq"),
]


def open_store(path: Path, **settings: Any) -> MessageStore:
    return MessageStore.open(path, config=StoreConfig.from_properties(SETTINGS), **settings)


def put(body: str, topic: str = "orders", **properties: object) -> dict[str, Any]:
    given = {name: str(value) for name, value in properties.items()}
    return {"put": {"topic": topic, "queueId": 0, "body": body, "properties": given}}


def settled(path: Path, wanted: Callable[[MessageStore], bool]) -> None:
    with open_store(path, read_only=True) as store:
        assert wanted(store)


def test_a_real_broker_goes_on_with_what_waits_here(tmp_path: Path) -> None:
    """Delivered before: not again. Waiting: when it is due. Cancelled: never. In transactions: as they end there."""
    with open_store(tmp_path) as store:
        store.put(order(b"level, delivered here", delay_level=1))
        store.put(order(b"time, delivered here", delay_s=1.0001))
        far = store.put(order(b"time, far", delay_s=3_600))
        while len(arrived(store)) < 2:
            time.sleep(0.05)
        base_ms = now_ms()
        store.put(order(b"level, delivered there", delay_level=4))
        store.put(order(b"time, delivered there", deliver_at=base_ms + 30_000))
        store.put(order(b"time, delivered there too", deliver_at=base_ms + 31_500))
        store.cancel(store.put(order(b"cancelled", deliver_at=base_ms + 30_200)))
        store.put(order(b"time, delivered here last", deliver_at=base_ms + 200))
        with store.transaction("shop") as transaction:
            transaction.put(order(b"committed here"))
        halves = [store.transactions.prepare(order(b"half %d" % n), group="shop") for n in range(2)]
        while len(arrived(store)) < 4:
            time.sleep(0.05)
        delivered = arrived_bodies(store)
    commands: list[dict[str, Any]] = [
        {
            "end": {
                "group": "shop",
                "queueOffset": half.queue_offset,
                "physicalOffset": half.physical_offset,
                "commit": half is halves[0],
            }
        }
        for half in halves
    ]
    answers = run_broker(tmp_path, [*commands, {"wait": max(0, base_ms + 35_000 - now_ms())}])
    assert [answer["status"] for answer in answers] == ["0", "0"]
    with open_store(tmp_path, read_only=True) as store:
        came = arrived(store)[len(delivered) :]
        assert sorted(m.body for m in came) == [
            b"half 0",
            b"level, delivered there",
            b"time, delivered there",
            b"time, delivered there too",
        ]
        timed = {m.body: m.store_timestamp for m in came}
        assert timed[b"time, delivered there"] >= base_ms + 30_000
        assert timed[b"level, delivered there"] >= base_ms + 30_000
    with open_store(tmp_path) as store:
        assert store.transactions.undecided() == []
        assert [w.message.physical_offset for w in store.waiting()] == [far.physical_offset]
        step(store, now_ms() + 3_700_000)
        assert arrived_bodies(store)[-1:] == [b"time, far"]
        assert len(arrived(store)) == len(delivered) + len(came) + 1, "once"


def test_what_waits_in_a_real_broker_comes_here(tmp_path: Path) -> None:
    base_ms = now_ms()
    commands: list[dict[str, Any]] = [
        put("level 1", DELAY=1),
        put("level 5", DELAY=5),
        put("level 99", DELAY=99),
        put("soon", TIMER_DELAY_SEC=3, UNIQ_KEY="A1"),
        put("later", TIMER_DELIVER_MS=base_ms + 3_600_300, UNIQ_KEY="A2"),
        put("by delay", TIMER_DELAY_SEC=7_200, UNIQ_KEY="A3"),
        put("recalled", TIMER_DELIVER_MS=base_ms + 3_600_300, UNIQ_KEY="A4"),
        put("0", TIMER_DELIVER_MS=base_ms + 3_600_300, TIMER_DEL_UNIQKEY="A4", UNIQ_KEY="A4"),
        {"prepare": put("half 0", PGROUP="shop", TRAN_MSG="true", UNIQ_KEY="B0")["put"]},
        {"prepare": put("half 1", PGROUP="shop", TRAN_MSG="true", UNIQ_KEY="B1")["put"]},
        put("plain", UNIQ_KEY="C0"),
        {"wait": 12_000},
    ]
    answers = run_broker(tmp_path, commands)
    assert {answer["status"] for answer in answers} == {"PUT_OK"}
    with open_store(tmp_path) as store:
        there = arrived(store)
        assert sorted(m.body for m in there) == [b"level 1", b"plain", b"soon"]
        by_rocketmq = next(m for m in there if m.body == b"soon")
        assert [w.message.body for w in store.waiting()] == [b"level 5", b"later", b"level 99", b"by delay"]
        undecided = {u.messages[0].body: u.id for u in store.transactions.undecided()}
        assert set(undecided) == {b"half 0", b"half 1"}
        store.transactions.resolve(undecided[b"half 0"], commit=True)
        store.transactions.resolve(undecided[b"half 1"], commit=False)
        step(store, base_ms + 3_600_300 - 1)
        assert arrived_bodies(store)[3:] == [b"half 0", b"level 5"]
        step(store, base_ms + 10_000_000)
        assert sorted(arrived_bodies(store)[5:]) == [b"by delay", b"later", b"level 99"]
        ours = next(m for m in arrived(store) if m.body == b"by delay")
        assert set(ours.properties) == set(by_rocketmq.properties), "a delivery looks the same"


def test_a_retry_of_ours_comes_from_a_real_broker(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.put(Message("orders", b"failed", queue_id=0))
        with store.consumer("workers", "orders", idle_s=0) as consumer:
            for message in consumer:
                consumer.fail(message, level=2)
    run_broker(tmp_path, [{"wait": 9_000}])
    with open_store(tmp_path) as store:
        with store.consumer("workers", "orders", idle_s=0) as consumer:
            assert [(m.body, m.reconsume_times) for m in consumer] == [(b"failed", 1)]


def test_after_a_crash_here_a_real_broker_loses_nothing(tmp_path: Path) -> None:
    """It may deliver again what was delivered since the last checkpoint: it cannot know."""
    base_ms = now_ms()
    with open_store(tmp_path / "s") as store:
        for number in range(5):
            store.put(order(b"%d" % number, deliver_at=base_ms + 10_000 + number))
        step(store, now_ms())
        store.delivery.require_scheduler().timer().keep()
        for number in range(5, 10):
            store.put(order(b"%d" % number, deliver_at=base_ms + 10_000 + number))
        store.wait_dispatched()
        shutil.copytree(tmp_path / "s", tmp_path / "crashed")
    run_broker(tmp_path / "crashed", [{"wait": max(0, base_ms + 16_000 - now_ms())}])
    settled(tmp_path / "crashed", lambda store: {int(b) for b in arrived_bodies(store)} == set(range(10)))
