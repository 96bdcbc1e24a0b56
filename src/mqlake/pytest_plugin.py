"""A pytest plugin, on wherever mqlake is installed: `mq_store`, a store of the test's own.

def test_an_order_is_billed(mq_store):
    mq_store.put(Message("orders", b"17"))
    bill_orders(mq_store)
    assert [m.body for m in mq_store.consumer("checks", "bills", idle_s=0)] == [b"17"]

Nothing of mqlake is imported before the fixture is asked for.
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
    """What `MessageStore.open` is given for `mq_store`: override it to change something."""
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
    """Opens stores with small files, `mq_store_factory("name", read_only=True)`; all are closed after the test.

    A name stands for a folder of the test's own: opening it again, once it was closed, finds what was there.
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
    """An empty store of the test's own: small files, one queue a topic so that all messages are in one order."""
    return mq_store_factory()
