"""A pytest plugin, active wherever mqlake is installed: `mq_store` is a fresh store for each test.

def test_an_order_is_billed(mq_store):
    mq_store.put(Message("orders", b"17"))
    bill_orders(mq_store)
    assert [m.body for m in mq_store.consumer("checks", "bills", idle_s=0)] == [b"17"]

The plugin imports nothing of mqlake until a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mqlake import MessageStore


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
def mq_store_factory(tmp_path: Path, mq_store_settings: dict[str, Any]) -> Iterator[Callable[..., MessageStore]]:
    """Open stores with small files: `mq_store_factory("name", read_only=True)`. All are closed after the test.

    Each name is a folder that belongs to the test: a closed store that is opened again has its messages.
    """
    from mqlake import MessageStore

    opened = []

    def open_store(name: str = "mq_store", **settings: Any) -> MessageStore:
        store = MessageStore.open(tmp_path / name, **{**mq_store_settings, **settings})
        opened.append(store)
        return store

    yield open_store
    for store in reversed(opened):
        store.close()


@pytest.fixture
def mq_store(mq_store_factory: Callable[..., MessageStore]) -> MessageStore:
    """An empty store for one test, with small files and one queue per topic, so that all messages have one order."""
    return mq_store_factory()
