"""What the client's tests talk to: ``mqlake serve``, and in the long run real RocketMQ brokers of both releases."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from mqlake import Message, StoredMessage
from mqlake.client import Admin, Consumer, Producer
from tests.clients.endpoints import Endpoint, start
from tests.interop.marks import WITH_ROCKETMQ

Value = TypeVar("Value")
WAIT_S = 60.0
_numbers = itertools.count(1)
REAL = [pytest.mark.long, *WITH_ROCKETMQ]


@pytest.fixture(
    scope="session",
    params=["mqlake", pytest.param("rocketmq-5.5", marks=REAL), pytest.param("rocketmq-4.9", marks=REAL)],
)
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A running broker that many tests share: each uses topics and groups of its own."""
    running = start(request.param, Path(tmp_path_factory.mktemp("endpoint")) / "store")
    yield running
    running.stop()


@pytest.fixture
def at(endpoint: Endpoint) -> str:
    """The address for clients."""
    return endpoint.name_server


@pytest.fixture
def topic(at: str) -> str:
    """A new topic with four queues."""
    name = new_name("topic")
    with Admin(at) as admin:
        admin.create_topic(name, 4)
        until(lambda: name in admin.topics())
    return name


@pytest.fixture
def group() -> str:
    return new_name("group")


@pytest.fixture
def producer(at: str) -> Iterator[Producer]:
    with Producer(at, new_name("producers"), timeout_s=WAIT_S) as made:
        yield made


def new_name(kind: str) -> str:
    return f"{kind}-{time.time_ns()}-{next(_numbers)}"


def until(condition: Callable[[], Value]) -> Value:
    """Return the first true value of a condition; fail if none comes in time."""
    end = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)
    return value


def put(producer: Producer, topic: str, count: int, **more: str) -> list[bytes]:
    """Send messages to the topic's queues in turn; return their bodies."""
    bodies = [f"{topic}-{number}".encode() for number in range(count)]
    for body in bodies:
        producer.send(Message(topic, body, **more))  # type: ignore[arg-type]
    return bodies


def take(consumer: Consumer, count: int) -> list[StoredMessage]:
    """Return the next messages, exactly so many; fail if they do not come in time."""
    found: list[StoredMessage] = []
    end = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} messages"
        found += consumer.poll(1.0, limit=count - len(found))
    return found
