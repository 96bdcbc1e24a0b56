"""Timed messages are delivered once, at their millisecond, unless cancelled; they survive close, crash and damage."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mqlake import InvalidMessage, Message, NotPending, StoredMessage, TimerConfig
from mqlake.delivery.later.routing import round_down
from mqlake.delivery.later.timer_files import CHECK, UNIT, Check, waiting_units
from mqlake.files.layout import Layout
from tests.delivery.later import (
    DAY_MS,
    HOUR_MS,
    arrived,
    arrived_bodies,
    as_a_crash_leaves_it,
    now_ms,
    order,
    step,
)
from tests.helpers import covers, eventually, open_small

TIMER = "rmq_sys_wheel_timer"


def soon_ms() -> int:
    """Return a time one hour ahead, 300 ms after a full second."""
    return now_ms() // 1000 * 1000 + HOUR_MS + 300


@covers("P2")
def test_a_timed_message_is_delivered_at_its_millisecond(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        due_ms = soon_ms()
        receipt = store.put(order(b"x", deliver_at=due_ms, tags="t", born_timestamp=5))
        assert (receipt.topic, receipt.queue_id) == (TIMER, 0)
        waiting = store.get(receipt.physical_offset)
        assert waiting.properties["TIMER_OUT_MS"] == str(due_ms - 300)
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("orders", "0")
        step(store, due_ms - 1)
        assert arrived(store) == []
        step(store, due_ms)
        found = arrived(store)[0]
        assert (found.body, found.tags, found.born_timestamp) == (b"x", "t", 5)
        assert found.properties["TIMER_DEQUEUE_MS"] == str(due_ms)
        step(store, due_ms + DAY_MS)
        assert len(arrived(store)) == 1


def test_the_worker_delivers_without_help_and_never_early(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        first_ms = now_ms() + 1_000
        store.put_many([order(b"%d" % number, deliver_at=first_ms + 10 * number) for number in range(10)])
        assert eventually(lambda: len(arrived(store)) == 10)
        for number, found in enumerate(arrived(store)):
            assert found.body == b"%d" % number
            assert found.store_timestamp >= first_ms + 10 * number


@pytest.mark.parametrize(
    ("due_ms", "out_ms"), [(10_000, 9_000), (10_001, 10_000), (10_999, 10_000), (11_000, 10_000), (1, 0)]
)
def test_due_times_are_rounded_down_as_in_rocketmq(due_ms: int, out_ms: int) -> None:
    assert round_down(due_ms, 1_000) == out_ms


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"delay_s": 30}, "TIMER_DELAY_SEC", "30"),
        ({"delay_s": 1.5}, "TIMER_DELAY_MS", "1500"),
        ({"deliver_at": 17}, "TIMER_DELIVER_MS", "17"),
        ({"deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}, "TIMER_DELIVER_MS", "1767225600000"),
        ({"delay_level": 4}, "DELAY", "4"),
    ],
)
def test_delays_are_stored_in_rocketmqs_properties(fields: dict[str, object], name: str, value: str) -> None:
    assert order(b"x", **fields).properties == {name: value}


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_s": -1},
        {"delay_s": "1"},
        {"delay_s": float("nan")},
        {"delay_s": float("inf")},
        {"deliver_at": "noon"},
        {"deliver_at": 1.5},
        {"deliver_at": -5},
        {"deliver_at": True},
        {"delay_s": 1, "delay_level": 1},
    ],
)
def test_an_invalid_time_is_refused_when_the_message_is_created(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage):
        order(b"x", **fields)


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 19, "٣"])
def test_an_invalid_time_property_is_refused_by_put(tmp_path: Path, name: str, value: str) -> None:
    with open_small(tmp_path) as store:
        with pytest.raises(InvalidMessage, match=f"{name}: found .*; expected a whole number"):
            store.put(order(b"x", properties={name: value}))
        assert store.end_offset == 0


def test_a_time_too_far_ahead_is_refused_and_the_limit_can_be_changed(tmp_path: Path) -> None:
    with open_small(tmp_path / "a") as store:
        store.put(order(b"x", delay_s=259_200))
        with pytest.raises(InvalidMessage, match="at most 259200 s ahead"):
            store.put(order(b"x", delay_s=259_201))
    with open_small(tmp_path / "b", timer=TimerConfig(max_delay_s=10**9)) as store:
        store.put(order(b"in ten years", delay_s=315_360_000))
        step(store, now_ms() + 300_000_000_000)
        assert arrived(store) == []
        step(store, now_ms() + 315_360_000_000)
        assert arrived_bodies(store) == [b"in ten years"]


def test_timed_messages_can_be_switched_off(tmp_path: Path) -> None:
    with open_small(tmp_path, timer=TimerConfig(enabled=False)) as store:
        with pytest.raises(InvalidMessage, match="timerWheelEnable"):
            store.put(order(b"x", delay_s=1))


def test_a_message_that_is_already_due_goes_to_its_queue_at_once(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        assert store.put(order(b"x", deliver_at=now_ms() - 5)).topic == "orders"
        assert store.put(order(b"x", delay_s=0)).topic == "orders"


def test_a_level_takes_precedence_over_a_time(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        receipt = store.put(order(b"x", delay_level=2, properties={"TIMER_DELAY_SEC": "60"}))
        assert receipt.topic == "SCHEDULE_TOPIC_XXXX"
        assert "TIMER_DELAY_SEC" not in store.get(receipt.physical_offset).properties


def test_messages_are_delivered_in_order_of_due_time_and_then_of_put(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        base_ms = soon_ms()
        for number in range(400):
            store.put(order(b"%d %d" % (number * 37 % 40, number), deliver_at=base_ms + number * 37 % 40))
        step(store, base_ms + 1_000)
        found = [tuple(map(int, body.split())) for body in arrived_bodies(store)]
        assert found == sorted(found)
        assert len(found) == 400


def test_waiting_messages_can_be_listed(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        base_ms = soon_ms()
        store.put(order(b"third", deliver_at=base_ms + 5 * HOUR_MS))
        store.put(order(b"first", deliver_at=base_ms))
        store.put(order(b"second", delay_level=18))
        assert [waiting.message.body for waiting in store.waiting()] == [b"first", b"second", b"third"]
        assert [waiting.message.body for waiting in store.waiting(limit=1)] == [b"first"]
        assert store.waiting()[0].due_ms == base_ms


# ---- cancelling


def test_a_cancelled_message_is_not_delivered_and_its_neighbours_are(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        base_ms = soon_ms()
        receipts = [store.put(order(b"%d" % n, deliver_at=base_ms + n)) for n in range(4)]
        store.cancel(receipts[1])
        store.cancel(receipts[2].message_id)
        assert [waiting.message.body for waiting in store.waiting()] == [b"0", b"3"]
        for at_ms in range(base_ms - 300, base_ms + 1_000, 100):
            step(store, at_ms)
        assert arrived_bodies(store) == [b"0", b"3"]
        assert not store.waiting()


def test_a_cancellation_survives_a_crash_at_any_moment(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        base_ms = soon_ms()
        store.put(order(b"stays", deliver_at=base_ms + 600))
        store.cancel(store.put(order(b"goes", deliver_at=base_ms + 500)))
        scheduler = store.delivery.require_scheduler()
        crashed = [as_a_crash_leaves_it(store, tmp_path / "1")]
        step(store, base_ms + 100)  # the cancellation is processed, the cancelled message is not yet due
        scheduler.timer().keep()
        crashed.append(as_a_crash_leaves_it(store, tmp_path / "2"))
    for path in (*crashed, tmp_path / "s"):
        with open_small(path) as store:
            step(store, base_ms + 2_000)
            assert arrived_bodies(store) == [b"stays"]


def test_the_error_for_a_message_that_cannot_be_cancelled_gives_the_reason(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        with pytest.raises(NotPending, match="messages with a delay level cannot be cancelled"):
            store.cancel(store.put(order(b"x", delay_level=5)))
        with pytest.raises(NotPending, match="a message of topic orders"):
            store.cancel(store.put(order(b"x")))
        receipt = store.put(order(b"x", delay_s=0.05))
        assert eventually(lambda: len(arrived(store)) == 2)
        with pytest.raises(NotPending, match="that is already due"):
            store.cancel(receipt)
        with pytest.raises(InvalidMessage, match="the time of a pending message"):
            store.put(order(b"0", deliver_at=now_ms() - 5, properties={"TIMER_DEL_UNIQKEY": "orders+k"}))


@pytest.mark.parametrize("name", ["AB12", "orders+AB12"])
def test_a_cancellation_by_key_works_as_rocketmqs_recall(tmp_path: Path, name: str) -> None:
    """It is due in the same second. The name includes the topic if RocketMQ is configured that way."""
    with open_small(tmp_path) as store:
        due_ms = soon_ms()
        store.put(order(b"x", deliver_at=due_ms, properties={"UNIQ_KEY": "AB12"}))
        store.put(order(b"0", deliver_at=due_ms, properties={"TIMER_DEL_UNIQKEY": name, "UNIQ_KEY": "AB12"}))
        step(store, due_ms + HOUR_MS)
        assert arrived(store) == []


@pytest.mark.parametrize("name", ["AB12", "orders+AB12"])
def test_a_cancellation_reaches_only_its_own_topic(tmp_path: Path, name: str) -> None:
    """Whoever may send to one topic must not take messages from another."""
    with open_small(tmp_path) as store:
        due_ms = soon_ms()
        store.put(order(b"x", deliver_at=due_ms, properties={"UNIQ_KEY": "AB12"}))
        cancel = {"TIMER_DEL_UNIQKEY": name, "REAL_TOPIC": "orders"}
        store.put(Message("mine", b"0", deliver_at=due_ms, properties=cancel))
        assert [waiting.message.body for waiting in store.waiting()] == [b"x"]
        step(store, due_ms + HOUR_MS)
        assert arrived_bodies(store) == [b"x"]


@pytest.mark.parametrize("with_topic", [False, True])
def test_a_cancellation_names_the_topic_if_configured(tmp_path: Path, with_topic: bool) -> None:
    with open_small(tmp_path, timer=TimerConfig(cancel_names_topic=with_topic)) as store:
        receipt = store.put(order(b"x", delay_s=60, properties={"UNIQ_KEY": "AB12"}))
        name = store.get(store.cancel(receipt).physical_offset).properties["TIMER_DEL_UNIQKEY"]
        assert name == ("orders+AB12" if with_topic else "AB12")


# ---- crashes and damage


def fill(path: Path) -> tuple[int, Path]:
    """Copy, as after a crash, a store with ten messages, five of them delivered since its last checkpoint."""
    with open_small(path / "s") as store:
        base_ms = soon_ms()
        for number in range(5):
            store.put(order(b"%d" % number, deliver_at=base_ms + number))
        scheduler = store.delivery.require_scheduler()
        step(store, now_ms())
        scheduler.timer().keep()
        for number in range(5, 10):
            store.put(order(b"%d" % number, deliver_at=base_ms + number))
        store.wait_dispatched()
        step(store, base_ms + 4)
        return base_ms, as_a_crash_leaves_it(store, path / "crashed")


def finish(path: Path, base_ms: int) -> list[bytes]:
    with open_small(path) as store:
        step(store, base_ms + 2)
        assert arrived_bodies(store) == [b"%d" % n for n in range(5)]
        step(store, base_ms + HOUR_MS)
        return arrived_bodies(store)


@pytest.mark.parametrize("harm", ["none", "missing", "damaged", "cut", "no timercheck", "both missing"])
def test_no_message_is_lost_or_repeated_whatever_is_left_of_the_checkpoint(tmp_path: Path, harm: str) -> None:
    base_ms, path = fill(tmp_path)
    layout = Layout(path)
    if harm in ("missing", "both missing"):
        layout.timer.unlink()
    if harm in ("no timercheck", "both missing"):
        layout.timer_check.unlink()
    if harm == "damaged":
        content = bytearray(layout.timer.read_bytes())
        content[-3] ^= 1
        layout.timer.write_bytes(content)
    if harm == "cut":
        os.truncate(layout.timer, layout.timer.stat().st_size - 16)
    assert finish(path, base_ms) == [b"%d" % n for n in range(10)]


def test_a_closed_store_resumes_when_reopened(tmp_path: Path) -> None:
    base_ms = soon_ms()
    for number in range(4):
        with open_small(tmp_path) as store:
            store.put(order(b"%d" % number, deliver_at=base_ms + number))
    with open_small(tmp_path) as store:
        step(store, base_ms + 1)
        assert arrived_bodies(store) == [b"0", b"1"]
    shutil.rmtree(tmp_path / "mqlake")  # only RocketMQ's files are left
    with open_small(tmp_path) as store:
        step(store, base_ms + 1)
        assert arrived_bodies(store) == [b"0", b"1"], "not again"
        step(store, base_ms + 3)
        assert arrived_bodies(store) == [b"0", b"1", b"2", b"3"]


def test_a_damaged_record_is_reported_and_the_others_are_delivered(tmp_path: Path) -> None:
    base_ms = soon_ms()
    with open_small(tmp_path) as store:
        receipts = [store.put(order(b"%d" % n, deliver_at=base_ms + n)) for n in range(3)]
    log = next((tmp_path / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(receipts[1].physical_offset + 88)
        file.write(b"!")
    with open_small(tmp_path) as store:
        step(store, base_ms + HOUR_MS)
        assert arrived_bodies(store) == [b"0", b"2"]
        assert list(store.delivery.require_scheduler().deliveries.failed) == [receipts[1].physical_offset]


def test_a_message_without_a_due_time_does_not_hold_up_others(tmp_path: Path) -> None:
    """RocketMQ retries such a message for ever."""
    with open_small(tmp_path) as store:
        due_ms = soon_ms()
        lost = store.put(Message(TIMER, b"x", queue_id=0, properties={"REAL_TOPIC": "orders", "REAL_QID": "0"}))
        store.put(order(b"y", deliver_at=due_ms))
        step(store, due_ms)
        assert arrived_bodies(store) == [b"y"]
        assert list(store.delivery.require_scheduler().deliveries.failed) == [lost.physical_offset]


def test_retention_keeps_the_log_of_waiting_messages(tmp_path: Path) -> None:
    """RocketMQ loses a message whose delay is longer than its retention."""
    with open_small(tmp_path) as store:
        due_ms = soon_ms()
        for number in range(3):
            store.put(order(bytes(40_000)) if number == 0 else order(b"%d" % number, deliver_at=due_ms))
        for _ in range(5):
            store.put(order(bytes(40_000)))
        assert store.retain(older_than_ms=0).held_by == ("timer",)
        assert store.first_offset == 0
        step(store, due_ms)
        assert store.retain(older_than_ms=0).held_by == ()
        assert store.first_offset > 0


# ---- for RocketMQ


def test_close_writes_a_timer_log_of_exactly_the_pending_messages(tmp_path: Path) -> None:
    due_ms = now_ms() + 3_600_000
    with open_small(tmp_path) as store:
        for number in range(6):
            store.put(order(b"%d" % number, deliver_at=due_ms - (HOUR_MS // 2 if number in (1, 5) else 0)))
        far = store.put(order(b"far", deliver_at=now_ms() + 60 * HOUR_MS))
        store.put(order(b"delivered before", deliver_at=due_ms - HOUR_MS // 2))
        step(store, due_ms - HOUR_MS // 4)
        waiting = {w.message.physical_offset for w in store.waiting()}
        assert len(waiting) == 5
    layout = Layout(tmp_path)
    check = Check.read(layout)
    assert check.queue_offset == check.master_offset == 8
    assert layout.timer_check.stat().st_size == 4096
    assert not layout.timer_wheel.exists()
    assert set(waiting_units(layout, check)) == waiting
    data = (layout.timer_log / ("0" * 20)).read_bytes()
    assert len(data) == 100 << 20
    assert check.log_end == 6 * UNIT.size
    units = [UNIT.unpack_from(data, at) for at in range(0, check.log_end, UNIT.size)]
    times = [unit[3] + unit[4] for unit in units]
    assert times[:4] == [(due_ms - 1) // 1000 * 1000] * 4
    assert [unit[1] for unit in units[:4]] == [-1, 0, 52, 104], "a chain for each second"
    assert (units[4][2], units[4][5]) == (3, far.physical_offset), "RocketMQ reads it again in two days"
    assert times[4] < now_ms() + 49 * HOUR_MS
    assert times[5] < check.read_ms, "the last unit only marks where to resume in the topic"
    assert CHECK.size == 56


def test_a_store_that_rocketmq_wrote_meanwhile_is_read_from_its_files(tmp_path: Path) -> None:
    """RocketMQ left another `timercheck`, so our older checkpoint is not used."""
    due_ms = soon_ms()
    with open_small(tmp_path) as store:
        receipts = [store.put(order(b"%d" % n, deliver_at=due_ms + 10_000 * n)) for n in range(3)]
    layout = Layout(tmp_path)
    check = Check.read(layout)
    read_ms = due_ms // 1000 * 1000 + 5_000  # RocketMQ has delivered the first message
    check._replace(read_ms=read_ms, counter=check.counter + 7).write(layout)
    with open_small(tmp_path) as store:
        assert [w.message.physical_offset for w in store.waiting()] == [r.physical_offset for r in receipts[1:]]


def test_many_due_messages_are_delivered_in_steps(tmp_path: Path) -> None:
    """Delay levels have their turn between the steps, and a checkpoint between them includes the rest."""
    with open_small(tmp_path / "s") as store:
        due_ms = soon_ms()
        for number in range(2_500):
            store.put(order(b"%d" % number, deliver_at=due_ms))
        store.wait_dispatched()
        scheduler = store.delivery.require_scheduler()
        assert scheduler.step(due_ms) == due_ms
        assert len(arrived(store)) == 1_000
        scheduler.timer().keep()
        crashed = as_a_crash_leaves_it(store, tmp_path / "crashed")
    with open_small(crashed) as store:
        step(store, due_ms)
        assert arrived_bodies(store) == [b"%d" % n for n in range(2_500)]


def test_every_waiting_message_has_its_own_key(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        keys = {store.get(store.put(order(b"x", delay_s=60)).physical_offset).properties["UNIQ_KEY"] for _ in range(9)}
        assert len(keys) == 9
        assert all(isinstance(waiting.message, StoredMessage) for waiting in store.waiting())
