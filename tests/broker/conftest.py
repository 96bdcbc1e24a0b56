"""A broker for each test, in a thread of the test process, with small files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqlake.broker.in_thread import BrokerThread
from mqlake.config import CommitLogConfig, ConsumeQueueConfig, IndexConfig, RetentionConfig, StoreConfig
from tests.broker.wire import Wire

SMALL = StoreConfig(
    commit_log=CommitLogConfig(file_size_bytes=8 << 20),
    consume_queue=ConsumeQueueConfig(file_size_bytes=20_000),
    index=IndexConfig(slot_count=1_000, entry_count=4_000),
    retention=RetentionConfig(enabled=False),
)


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerThread]]:
    """Start brokers; sections of the store's settings can be given by name."""
    started: list[BrokerThread] = []

    def start(
        name: str = "store", *, settings: Any = None, access: Any = None, tls: Any = None, **sections: Any
    ) -> BrokerThread:
        config = replace(SMALL, **sections)
        broker = BrokerThread(tmp_path / name, config=config, settings=settings, access=access, tls=tls)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.close()


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    return start_broker()


@pytest.fixture
def connect(broker: BrokerThread) -> Iterator[Callable[[], Wire]]:
    opened: list[Wire] = []

    def open_wire() -> Wire:
        opened.append(Wire(broker.address))
        return opened[-1]

    yield open_wire
    for wire in opened:
        wire.close()


@pytest.fixture
def wire(connect: Callable[[], Wire]) -> Wire:
    return connect()
