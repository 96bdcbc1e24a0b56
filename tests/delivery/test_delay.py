"""Messages with a delay level wait in a holding topic and are delivered once when due, whatever happens in between."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path

import pytest

from mqlake import InvalidMessage, Message, MessageStore, StoreConfig
from mqlake.delivery.registry.config_file import decode
from mqlake.delivery.registry.topics import Permission
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
from tests.golden.stores import GoldenStore
from tests.helpers import covers, eventually, message, open_small, writer_of
from tests.interrupting import interrupt_at

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVEL_18_MS = 2 * HOUR_MS


def progress_of(path: Path) -> dict[str, int]:
    table: dict[str, int] = decode((path / "config" / "delayOffset.json").read_bytes())["offsetTable"]
    return table


@covers("P2", "P3")
def test_a_message_with_a_level_waits_in_the_holding_topic_until_it_is_due(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        sent = Message(
            "orders", b"later", tags="t", keys="k", queue_id=2, born_host="10.0.0.7:99", flag=7, delay_level=18
        )
        receipt = store.put(sent)
        assert (receipt.topic, receipt.queue_id, receipt.queue_offset) == (SCHEDULE, 17, 0)
        assert sent.topic == "orders", "the caller's message is not changed"
        due_ms = receipt.store_timestamp + LEVEL_18_MS
        assert step(store, due_ms - 1) == due_ms
        assert arrived(store) == []
        step(store, due_ms)
        found = arrived(store)[0]
        assert (found.queue_id, found.body, found.tags, found.keys) == (2, b"later", "t", ["k"])
        assert (found.born_host, found.born_timestamp, found.flag) == ("10.0.0.7:99", sent.born_timestamp, 7)
        assert found.properties == {
            "TAGS": "t",
            "KEYS": "k",
            "DELAY": "18",
            "REAL_TOPIC": "orders",
            "REAL_QID": "2",
        }, "as RocketMQ leaves them"
    assert progress_of(tmp_path) == {"18": 1}


def test_the_worker_delivers_due_messages_without_help(tmp_path: Path) -> None:
    with open_small(tmp_path, config=StoreConfig(delay_levels="1s 2h")) as store:
        began_ms = now_ms()
        store.put(order(b"soon", delay_level=1))
        store.put(order(b"never in this test", delay_level=2))
        assert eventually(lambda: arrived_bodies(store) == [b"soon"])
        assert arrived(store)[0].store_timestamp - began_ms >= 1_000


def test_retention_keeps_the_log_of_waiting_messages(tmp_path: Path) -> None:
    """RocketMQ loses a message whose delay is longer than its retention."""
    with open_small(tmp_path) as store:
        waiting = store.put(order(b"later", delay_level=18))
        for _ in range(5):
            store.put(order(bytes(40_000)))
        assert store.retain(older_than_ms=0, dry_run=True).held_by == ("delay",)
        assert store.retain(older_than_ms=0).held_by == ("delay",)
        assert store.first_offset == 0
        step(store, waiting.store_timestamp + LEVEL_18_MS)
        assert store.retain(older_than_ms=0).held_by == ()
        assert store.first_offset > 0 and arrived_bodies(store)[-1] == b"later"


@covers("P2")
def test_a_level_above_the_highest_becomes_the_highest(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        receipt = store.put(order(b"x", delay_level=99))
        assert (receipt.topic, receipt.queue_id) == (SCHEDULE, 17)
        assert store.waiting()[0].message.properties["DELAY"] == "18"


@pytest.mark.parametrize("level", ["x", "-1", "1.5", "", "9" * 19, str(1 << 31)])
def test_an_invalid_level_property_is_refused_by_put(tmp_path: Path, level: str) -> None:
    with open_small(tmp_path) as store:
        with pytest.raises(InvalidMessage, match=r"DELAY|properties"):
            store.put(order(b"x", properties={"DELAY": level}))
        assert store.end_offset == 0


@pytest.mark.parametrize("wrong", [{"delay_level": -1}, {"delay_level": 1.5}, {"delay_level": True}])
def test_an_invalid_level_is_refused_when_the_message_is_created(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage, match="delay_level"):
        order(b"x", **wrong)


def test_level_zero_means_no_delay(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        assert store.put(order(b"x", delay_level=0)).topic == "orders"


@covers("P4")
@pytest.mark.parametrize(("kind", "waits"), [(0x0, True), (0x4, False), (0x8, True), (0xC, False)])
def test_only_messages_that_go_to_a_queue_are_delayed(tmp_path: Path, kind: int, waits: bool) -> None:
    """Prepared and rolled back messages go to no queue."""
    with open_small(tmp_path) as store:
        assert (store.put(order(b"x", delay_level=1, sys_flag=kind)).topic == SCHEDULE) is waits


def test_every_kind_of_put_accepts_a_delay(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        batch = store.put_many([order(b"now"), order(b"later", delay_level=3), order(b"now too")])
        assert [receipt.topic for receipt in batch] == ["orders", SCHEDULE, "orders"]
        assert asyncio.run(store.put_async(order(b"x", delay_level=2))).topic == SCHEDULE
        assert store.put_as_is(order(b"as it is", delay_level=2)).topic == "orders"


def test_a_delayed_message_without_a_queue_id_takes_the_next_queue_in_turn(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("orders", 3)
        store.put(Message("orders", b"0"))
        store.put(Message("orders", b"1", delay_level=1))
        store.put(Message("orders", b"2"))
        step(store, now_ms() + HOUR_MS)
        assert {m.body: m.queue_id for m in arrived(store)} == {b"0": 0, b"1": 1, b"2": 2}


def test_light_queues_get_a_delayed_message_when_it_is_delivered(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        for name, fields in (("later", {"delay_level": 18}), ("now", {}), ("timed", {"delay_s": 3 * 3600})):
            store.put(order(name.encode(), properties={"INNER_MULTI_DISPATCH": "%LMQ%one"}, **fields))
        assert arrived_bodies(store, "%LMQ%one") == [b"now"]
        step(store, now_ms() + DAY_MS)
        assert arrived_bodies(store, "%LMQ%one") == [b"now", b"later", b"timed"]
        assert [m.queue_offset for m in arrived(store)] == [0, 1, 2]


def test_each_level_is_delivered_in_order_and_no_level_waits_for_another(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        for number in range(300):
            store.put(order(b"%d" % number, delay_level=18 if number % 3 == 0 else 2))
        step(store, now_ms() + 60_000)
        assert arrived_bodies(store) == [b"%d" % n for n in range(300) if n % 3]
        step(store, now_ms() + DAY_MS)
        assert arrived_bodies(store)[200:] == [b"%d" % n for n in range(0, 300, 3)]


@pytest.mark.parametrize("minutes", [30, 90])
def test_a_shortened_level_applies_to_waiting_messages_too(tmp_path: Path, minutes: int) -> None:
    """Older entries still hold the longer delay; entries after them must not wait for it."""
    with open_small(tmp_path) as store:
        store.put(order(b"by the old levels", delay_level=18))
    with open_small(tmp_path, config=StoreConfig(delay_levels=" ".join(["1s"] * 17 + [f"{minutes}m"]))) as store:
        store.put(order(b"by the new levels", delay_level=18))
        step(store, now_ms() + minutes * HOUR_MS // 120)
        assert arrived(store) == []
        step(store, now_ms() + minutes * HOUR_MS // 60)
        assert arrived_bodies(store) == [b"by the old levels", b"by the new levels"]


@pytest.mark.parametrize("is_written", [True, False], ids=["progress", "no progress"])
def test_a_crash_after_a_delivery_does_not_repeat_it(
    tmp_path: Path, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress was not written after the delivery; the log itself records it."""
    monkeypatch.setattr("mqlake.delivery.later.scheduler.KEEP_MS", 10 * DAY_MS)
    with open_small(tmp_path / "s") as store:
        for number in range(20):
            store.put(order(b"%d" % number, delay_level=17 + number % 2))
        began_ms = now_ms()
        if is_written:
            store.flush()
            step(store, began_ms)
        step(store, began_ms + HOUR_MS)
        crashed = as_a_crash_leaves_it(store, tmp_path / "crashed")
        assert not is_written or progress_of(crashed)["17"] == 0, "this test needs outdated progress"
    with open_small(crashed) as store:
        step(store, began_ms + HOUR_MS)
        assert arrived_bodies(store) == [b"%d" % n for n in range(0, 20, 2)]
        step(store, now_ms() + DAY_MS)
        assert sorted(map(int, arrived_bodies(store))) == list(range(20))


def test_the_record_at_physical_offset_0_is_not_delivered_twice_either(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        assert store.put(order(b"first", delay_level=1)).physical_offset == 0
        began_ms = now_ms()
        step(store, began_ms)
        step(store, began_ms + 2_000)
        crashed = as_a_crash_leaves_it(store, tmp_path / "crashed")
    with open_small(crashed) as store:
        step(store, now_ms() + DAY_MS)
        assert arrived_bodies(store) == [b"first"]


def test_progress_is_written_only_after_the_log_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may cut the log to its durable end. Progress must not be after it."""
    with open_small(tmp_path) as store:
        store.put(order(b"x", delay_level=1))
        ends = store.delivery.require_writer().ends
        durable_at_writing: list[bool] = []
        save = type(store.delivery.topics.file).save

        def watched(file: object, content: dict[str, object]) -> None:
            if "deliveredTo" in content:
                durable_at_writing.append(ends.durable >= int(str(content["deliveredTo"])))
            save(file, content)  # type: ignore[arg-type]

        monkeypatch.setattr("mqlake.delivery.registry.config_file.ConfigFile.save", watched)
        step(store, now_ms() + DAY_MS)
    assert durable_at_writing
    assert all(durable_at_writing)


def test_a_damaged_record_is_reported_and_the_others_are_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_small(tmp_path) as store:
        receipts = [store.put(order(b"%d" % n, delay_level=18)) for n in range(3)]
    log = next((tmp_path / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(receipts[1].physical_offset + 88)
        file.write(b"!")
    with open_small(tmp_path) as store:
        step(store, now_ms() + DAY_MS)
        assert arrived_bodies(store) == [b"0", b"2"]
        assert list(store.delivery.require_scheduler().deliveries.failed) == [receipts[1].physical_offset]
    assert f"offset {receipts[1].physical_offset} cannot be delivered" in caplog.text


def test_a_topic_that_takes_no_messages_does_not_hold_up_others(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_topic("closed", 1)
        refused = store.put(Message("closed", b"x", delay_level=2))
        store.put(order(b"y", delay_level=2))
        store.update_topic("closed", permission=Permission.READ)
        step(store, now_ms() + DAY_MS)
        assert arrived_bodies(store) == [b"y"]
        failed = store.delivery.require_scheduler().deliveries.failed
        assert list(failed) == [refused.physical_offset]
        assert "WRITE is needed" in failed[refused.physical_offset]


def test_a_waiting_message_without_its_real_topic_is_reported(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        lost = store.put(Message(SCHEDULE, b"x", queue_id=1, properties={"DELAY": "2"}))
        step(store, now_ms() + DAY_MS)
        assert list(store.delivery.require_scheduler().deliveries.failed) == [lost.physical_offset]


@pytest.mark.parametrize("name", ["v4-broker-run", "v5-broker-run"])
def test_messages_that_a_real_broker_left_waiting_are_delivered_once(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    with MessageStore.open(golden.path, config=golden.config, read_only=True) as store:
        before = arrived(store)
        waiting = [m for queue in (8, 17) for m in store.read(SCHEDULE, queue_id=queue)]
        by_rocketmq = next(m for m in before if m.properties.get("DELAY") == "2")
    with MessageStore.open(golden.path, config=golden.config) as store:
        step(store, now_ms() + DAY_MS)
        came = arrived(store)[len(before) :]
        assert [m.body for m in came] == [m.body for m in waiting]
        assert [str(m.queue_id) for m in came] == [m.properties["REAL_QID"] for m in waiting]
        assert set(came[0].properties) == set(by_rocketmq.properties)
    assert progress_of(golden.path) == {"1": 6, "2": 1, "3": 1, "9": 1, "18": 1}


@pytest.mark.parametrize("name", ["v4-delay", "v5-delay"])
def test_all_delayed_messages_of_real_stores_are_delivered_to_their_real_queues(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    expected = [line for line in golden.expected("message") if line["cqTopic"] == SCHEDULE]
    with MessageStore.open(golden.path, config=golden.config) as store:
        step(store, now_ms() + DAY_MS)
        came = [m for topic in store.topics() if topic != SCHEDULE for m in arrived(store, topic) if m.prepared_offset]
        assert sorted(m.prepared_offset % (1 << 60) for m in came) == sorted(
            line["physicalOffset"] or (1 << 60) - 1 for line in expected
        )
        assert [(m.topic, m.queue_id) for m in came] == [
            (m.properties["REAL_TOPIC"], int(m.properties["REAL_QID"])) for m in came
        ]


def test_a_first_delayed_put_that_a_signal_interrupts_anywhere_starts_delivery_or_lets_the_next_one_do_it(
    tmp_path: Path,
) -> None:
    """Delivery runs before the message is in the log, so an interrupted put never leaves one that nobody delivers."""
    lines = ("scheduler.py", "housekeeping.py", "routing.py", "log_writer.py", "workers.py", "whole.py")

    def delivers(store: MessageStore) -> bool:
        return any(worker.name == "scheduler" and worker.is_alive for worker in writer_of(store).workers)

    for number in itertools.count(step=2):
        with open_small(tmp_path / str(number)) as store:
            was_interrupted = interrupt_at(number, partial(store.put, message(1, delay_s=0.01)), lines)
            if writer_of(store).ends.appended:
                assert eventually(partial(delivers, store)), f"interrupted at line {number}, in the log"
            store.put(message(2, delay_s=0.01))
            assert eventually(partial(delivers, store)), f"interrupted at line {number}"
            if not was_interrupted:
                assert eventually(lambda store=store: len(arrived(store)) == 2)  # type: ignore[misc]
                assert number > 40, "at least some lines were interrupted"
                break
