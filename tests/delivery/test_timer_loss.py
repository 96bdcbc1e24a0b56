"""What is left of the timer's files, RocketMQ's or its own, loses no waiting message and repeats none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mqlake import Message
from mqlake.delivery.later.routing import round_down
from mqlake.delivery.later.timer_files import UNIT, Check
from mqlake.files.layout import Layout
from tests.delivery.later import HOUR_MS, arrived_bodies, now_ms, order, step
from tests.helpers import open_bare, open_small

TIMER = "rmq_sys_wheel_timer"


def soon_ms() -> int:
    """Return a time one hour ahead, 300 ms after a full second."""
    return now_ms() // 1000 * 1000 + HOUR_MS + 300


@pytest.mark.parametrize("harm", ["gone", "empty", "zeros", "other bytes", "cut"])
def test_waiting_messages_survive_the_loss_of_both_the_checkpoint_and_the_timer_log(tmp_path: Path, harm: str) -> None:
    """The timer topic holds them. One that was delivered or cancelled does not come back."""
    due_ms = soon_ms()
    with open_small(tmp_path) as store:
        receipts = [store.put(order(b"%d" % n, deliver_at=due_ms + 10_000 * n)) for n in range(5)]
        store.cancel(receipts[4])
        step(store, due_ms)
    layout = Layout(tmp_path)
    layout.timer.unlink()
    units = layout.timer_log / ("0" * 20)
    if harm == "gone":
        shutil.rmtree(layout.timer_log)
    elif harm in ("empty", "cut"):
        os.truncate(units, UNIT.size if harm == "cut" else 0)
    else:
        units.write_bytes((b"\0" if harm == "zeros" else b"\xff") * 4096)
    with open_small(tmp_path) as store:
        assert [w.message.body for w in store.waiting()] == [b"1", b"2", b"3"]
        step(store, due_ms + HOUR_MS)
        assert arrived_bodies(store) == [b"%d" % n for n in range(4)]


def test_what_rocketmq_had_delivered_stays_delivered_if_its_timer_log_is_lost(tmp_path: Path) -> None:
    past_ms, future_ms = now_ms() - HOUR_MS, soon_ms()
    with open_bare(tmp_path) as store:
        for due_ms in (past_ms, future_ms):
            timed = {"REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_OUT_MS": str(round_down(due_ms, 1000))}
            store.put_as_is(Message(TIMER, b"x", queue_id=0, properties=timed | {"TIMER_DELIVER_MS": str(due_ms)}))
    Check(past_ms + 10_000, 2 * UNIT.size, 2, 2, 0, past_ms, 1).write(Layout(tmp_path))
    with open_small(tmp_path) as store:
        assert [w.due_ms for w in store.waiting()] == [future_ms]


@pytest.mark.parametrize("checkpoint_is_left", [True, False])
@pytest.mark.parametrize("garbage", ["ff" * 4096, "00" * 100 + "55" * 100, "7f" * 56, "00" * 55 + "05"])
def test_garbage_in_timercheck_neither_loses_nor_doubles_a_message(
    tmp_path: Path, garbage: str, checkpoint_is_left: bool
) -> None:
    due_ms = soon_ms()
    with open_small(tmp_path) as store:
        for number in range(11):
            store.put(order(b"%d" % number, deliver_at=due_ms + number))
    layout = Layout(tmp_path)
    layout.timer_check.write_bytes(bytes.fromhex(garbage))
    if not checkpoint_is_left:
        layout.timer.unlink()
    with open_small(tmp_path) as store:
        assert len(store.waiting()) == 11
        step(store, due_ms + HOUR_MS)
        assert arrived_bodies(store) == [b"%d" % n for n in range(11)]
