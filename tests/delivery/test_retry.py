"""A failed message is delivered again with growing delays, to its group only, and ends as a dead letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake import InvalidMessage, Message, MessageStore, NotPermitted, ReadOnlyStore, StoredMessage
from tests.delivery.later import DAY_MS, arrived, arrived_bodies, now_ms, order, step
from tests.golden.stores import GoldenStore
from tests.helpers import covers, open_small

RETRY, DEAD = "%RETRY%billing", "%DLQ%billing"
DELAYS_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
"""Levels 3 to 18."""


def take(store: MessageStore) -> list[StoredMessage]:
    with store.consumer("billing", "orders", idle_s=0) as consumer:
        return list(consumer)


@covers("P9")
def test_a_failed_message_is_retried_with_growing_delays_and_ends_as_a_dead_letter(
    tmp_path: Path,
) -> None:
    with open_small(tmp_path) as store:
        first = store.put(order(b"x", tags="t", keys="k"))
        at_ms = now_ms()
        for times, delay_s in enumerate(DELAYS_S):
            with store.consumer("billing", "orders", idle_s=0) as consumer:
                (message,) = list(consumer)
                assert message.reconsume_times == times
                receipt = consumer.fail(message)
            assert receipt is not None
            due_ms = receipt.store_timestamp + delay_s * 1000
            step(store, due_ms - 1)
            assert take(store) == []
            step(store, due_ms)
        with store.consumer("billing", "orders", idle_s=0) as consumer:
            (message,) = list(consumer)
            assert (message.topic, message.reconsume_times) == (RETRY, 16)
            assert consumer.fail(message).topic == DEAD  # type: ignore[union-attr]
        (dead,) = arrived(store, DEAD)
        assert (dead.reconsume_times, dead.body, dead.tags, dead.keys) == (17, b"x", "t", ["k"])
        assert (dead.properties["RETRY_TOPIC"], dead.properties["ORIGIN_MESSAGE_ID"]) == ("orders", first.message_id)
        step(store, at_ms + 30 * DAY_MS)
        assert take(store) == [], "a dead letter is not delivered again"


def test_only_the_group_that_failed_gets_the_retry(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(order(b"x"))
        (message,) = take(store)
        store.retry("billing", message)
        step(store, now_ms() + DAY_MS)
        assert [m.body for m in take(store)] == [b"x"]
        with store.consumer("shipping", "orders", idle_s=0) as consumer:
            assert len(list(consumer)) == 1


def test_the_caller_may_choose_a_level_and_a_negative_one_makes_a_dead_letter(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(order(b"x"))
        (message,) = take(store)
        receipt = store.retry("billing", message, level=5)
        assert receipt is not None
        assert (receipt.topic, receipt.queue_id) == ("SCHEDULE_TOPIC_XXXX", 4)
        assert store.retry("billing", message, level=-1).topic == DEAD  # type: ignore[union-attr]
        for wrong in (1.5, True, "3", 1 << 40):
            with pytest.raises(InvalidMessage, match="level"):
                store.retry("billing", message, level=wrong)  # type: ignore[arg-type]


def test_group_settings_limit_or_disable_retries(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.create_group("billing", max_retry_count=0)
        store.create_group("careless", retry_queue_count=0)
        store.put(order(b"x"))
        (message,) = take(store)
        assert store.retry("billing", message).topic == DEAD  # type: ignore[union-attr]
        assert store.retry("careless", message) is None


def test_a_consumer_with_its_own_progress_cannot_fail_a_message(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(order(b"x"))
        with store.consumer("billing", "orders", progress="memory", idle_s=0) as consumer:
            for message in consumer:
                with pytest.raises(NotPermitted, match="only groups have a retry topic"):
                    consumer.fail(message)
    with open_small(tmp_path, read_only=True) as reader:
        with pytest.raises(ReadOnlyStore):
            reader.retry("billing", message)


def test_the_retry_of_a_delayed_message_has_its_own_delay(tmp_path: Path) -> None:
    """The message still has its first delay level or time in its properties."""
    with open_small(tmp_path) as store:
        store.put(order(b"by level", delay_level=18))
        store.put(order(b"by time", delay_s=60))
        step(store, now_ms() + DAY_MS)
        for message in take(store):
            receipt = store.retry("billing", message)
            assert receipt is not None
            assert (receipt.topic, receipt.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
            store.retry("billing", message, level=-1)
        assert arrived_bodies(store, DEAD) == [b"by level", b"by time"]


def test_a_resent_dead_letter_starts_again_with_zero_retries(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(order(b"x"))
        (message,) = take(store)
        store.retry("billing", message, level=-1)
        (dead,) = arrived(store, DEAD)
        store.resend(dead)
        (again,) = take(store)
        assert (again.topic, again.body, again.reconsume_times) == (RETRY, b"x", 0)
        assert again.properties["RETRY_TOPIC"] == "orders"
        assert len(arrived(store)) == 1, "other groups of the topic do not get it again"
        assert len(arrived(store, DEAD)) == 1, "the dead letter stays until retention deletes it"
        with pytest.raises(InvalidMessage, match="dead letter"):
            store.resend(again)


def test_a_retry_has_the_same_properties_as_in_rocketmq(tmp_path: Path) -> None:
    golden = GoldenStore("v5-broker-run", tmp_path)
    with MessageStore.open(golden.path, config=golden.config, read_only=True) as store:
        theirs = store.read(RETRY.replace("billing", "retriers"))[0]
        original = next(m for m in arrived(store, "payments") if m.message_id == theirs.properties["ORIGIN_MESSAGE_ID"])
    with open_small(tmp_path / "ours") as store:
        store.put(Message("payments", original.body, properties=original.properties, queue_id=original.queue_id))
        (mine,) = arrived(store, "payments")
        store.retry("retriers", mine, level=1)
        step(store, now_ms() + DAY_MS)
        (came,) = arrived(store, "%RETRY%retriers")
    assert came.properties | {"ORIGIN_MESSAGE_ID": ""} == theirs.properties | {"ORIGIN_MESSAGE_ID": ""}
    assert came.reconsume_times == theirs.reconsume_times
