"""The clock of the pytest fixtures: a delay or a retry takes no time, and nothing is early."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mqlake import InvalidConfig, Message
from mqlake.client import Consumer, Producer
from mqlake.testing import ClockedBroker, ClockedStore


def bodies(store: ClockedStore, topic: str, group: str = "checks") -> list[bytes]:
    with store.consumer(group, topic, idle_s=0) as consumer:
        return [message.body for message in consumer]


@pytest.mark.parametrize("delay", [{"delay_s": 3600}, {"delay_level": 17}])
def test_a_delay_of_an_hour_takes_no_time_and_is_not_early(mq_store: ClockedStore, delay: dict[str, int]) -> None:
    began = time.monotonic()
    mq_store.put(Message("mails", b"later", **delay))  # type: ignore[arg-type]
    mq_store.advance(seconds=3590)
    assert bodies(mq_store, "mails") == []
    mq_store.advance(seconds=11)
    assert bodies(mq_store, "mails") == [b"later"]
    assert time.monotonic() - began < 30


def test_a_delay_counts_from_the_moved_clock(mq_store: ClockedStore) -> None:
    mq_store.advance(seconds=7200)
    for delay in ({"delay_s": 60}, {"delay_level": 5}):  # a minute each
        mq_store.put(Message("mails", b"later", **delay))  # type: ignore[arg-type]
    mq_store.advance(seconds=50)
    assert bodies(mq_store, "mails") == []
    mq_store.advance(seconds=11)
    assert bodies(mq_store, "mails") == [b"later", b"later"]


def test_store_times_follow_the_clock(mq_store: ClockedStore) -> None:
    before = mq_store.put(Message("orders", b"1")).store_timestamp
    mq_store.advance(seconds=3600)
    after = mq_store.put(Message("orders", b"2")).store_timestamp
    assert 3600_000 <= after - before < 3660_000
    assert mq_store.seek_time("orders", before + 1_800_000) == 1


def test_retries_up_to_the_dead_letter_take_no_time(mq_store: ClockedStore) -> None:
    mq_store.create_group("billing", max_retry_count=2)
    mq_store.put(Message("orders", b"bad"))
    tries = []
    for seconds in (0, 10, 30):
        if seconds:
            mq_store.advance(seconds=seconds - 1)
            assert mq_store.run(print, group="billing", topic="orders", idle_s=0).taken == 0
            mq_store.advance(seconds=1)
        counts = mq_store.run(lambda message: 1 / 0, group="billing", topic="orders", idle_s=0)
        tries.append(counts.failed)
    assert tries == [1, 1, 1]
    assert [dead.body for dead in mq_store.read("%DLQ%billing")] == [b"bad"]


def test_a_store_that_is_opened_again_keeps_the_test_s_clock(mq_store_factory: Callable[..., ClockedStore]) -> None:
    store = mq_store_factory("shop")
    store.advance(seconds=3600)
    first = store.put(Message("orders", b"1")).store_timestamp
    store.put(Message("mails", b"later", delay_s=60))
    store.close()
    again = mq_store_factory("shop")
    assert bodies(again, "mails") == []
    assert again.put(Message("orders", b"2")).store_timestamp >= first
    again.advance(seconds=61)
    assert bodies(again, "mails") == [b"later"]


def test_time_does_not_run_back(mq_store: ClockedStore) -> None:
    for seconds in (-1, float("nan"), True):
        with pytest.raises(InvalidConfig, match="time does not run back"):
            mq_store.advance(seconds=seconds)


def test_clients_of_a_broker_get_delayed_and_failed_messages_at_once(mq_broker: ClockedBroker) -> None:
    with Producer(mq_broker.name_server) as producer:
        producer.send(Message("mails", b"later", delay_s=3600))
    with Consumer(mq_broker.name_server, "mailer", "mails", auto_commit=False) as consumer:
        assert consumer.poll(0.2) == []
        mq_broker.advance(seconds=3601)
        (message,) = consumer.poll(10)
        consumer.fail(message)
        consumer.commit()
        mq_broker.advance(seconds=10)
        (again,) = consumer.poll(10)
        assert again.body == b"later" and again.reconsume_times == 1
