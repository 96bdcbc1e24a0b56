"""A pytest plugin, active wherever mqlake is installed: `mq_store` is a fresh store for a test, `mq_broker` a broker.

def test_an_order_is_billed(mq_store):
    mq_store.put(Message("orders", b"17"))
    bill_orders(mq_store)
    assert [m.body for m in mq_store.consumer("checks", "bills", idle_s=0)] == [b"17"]

def test_a_reminder_is_sent_after_an_hour(mq_store):
    mq_store.put(Message("reminders", b"17", delay_s=3600))
    mq_store.advance(seconds=3600)
    assert [m.body for m in mq_store.consumer("mailer", "reminders", idle_s=0)] == [b"17"]

def test_a_java_service(mq_broker):
    run_service(name_server=mq_broker.name_server)
    assert [m.body for m in mq_broker.store.read("bills", wait_s=10)] == [b"17"]

The plugin imports nothing of mqlake until a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mqlake.testing import ClockedBroker, ClockedStore


@pytest.fixture
def mq_store_settings() -> dict[str, Any]:
    """The settings of `MessageStore.open` for `mq_store`. Override this fixture to change some."""
    from mqlake import CommitLogConfig, ConsumeQueueConfig, DeliveryConfig, IndexConfig, RetentionConfig

    return {
        "commit_log": CommitLogConfig(file_size_bytes=1 << 20, max_message_bytes=1 << 19),
        "consume_queue": ConsumeQueueConfig(file_size_bytes=20_000, queues_per_topic=1),
        "index": IndexConfig(slot_count=1_000, entry_count=4_000),
        "retention": RetentionConfig(enabled=False),
        "delivery": DeliveryConfig(persist_interval_ms=100),
    }


@pytest.fixture
def mq_store_factory(tmp_path: Path, mq_store_settings: dict[str, Any]) -> Iterator[Callable[..., ClockedStore]]:
    """Open stores with small files: `mq_store_factory("name", read_only=True)`. All are closed after the test.

    Each name is a folder that belongs to the test: a closed store that is opened again has its messages. All have one
    clock, which `advance` of any of them moves.
    """
    from mqlake.testing import Clock, ClockedStore

    clock = Clock()

    def open_store(name: str = "mq_store", **settings: Any) -> ClockedStore:
        return clock.add(ClockedStore.open(tmp_path / name, **{**mq_store_settings, **settings}))

    yield open_store
    for store in reversed(clock.stores):
        store.close()


@pytest.fixture
def mq_store(mq_store_factory: Callable[..., ClockedStore]) -> ClockedStore:
    """An empty store for one test, with small files and one queue per topic, so that all messages have one order.

    `mq_store.advance(seconds=10)` moves its clock: what is due then is delivered when it returns.
    """
    return mq_store_factory()


@pytest.fixture
def mq_broker(tmp_path: Path, mq_store_settings: dict[str, Any]) -> Iterator[ClockedBroker]:
    """A RocketMQ name server and broker on free ports, in a thread of the test process, over a store of the test's own.

    `mq_broker.name_server` is the address for clients, `mq_broker.store` the store; `mq_broker.advance(seconds=10)`
    moves its clock.
    """
    from mqlake.config import StoreConfig
    from mqlake.testing import ClockedBroker

    with ClockedBroker(tmp_path / "mq_broker", config=StoreConfig(**mq_store_settings)) as broker:
        yield broker
