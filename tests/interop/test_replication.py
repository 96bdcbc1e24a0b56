"""Real RocketMQ masters replicate into mqlake: the logs are equal, byte for byte, through cut connections."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqlake import CommitLogConfig, MessageStore, RetentionConfig, StoreConfig, check
from mqlake.client import Admin, Producer
from mqlake.message import Message
from mqlake.replication import follow
from mqlake.replication.metadata import MetadataSync, ask_facts
from tests.clients.endpoints import Endpoint, Ports, start
from tests.helpers import covers
from tests.interop.marks import WITH_ROCKETMQ
from tests.replication.masters import log_bytes
from tests.replication.relay import Relay

pytestmark = WITH_ROCKETMQ
FILE_BYTES = 1 << 20
IN_TIME_S = 120.0
BATCH = 100


@contextmanager
def running_master(kind: str, folder: Path, **settings: str) -> Iterator[Endpoint]:
    """Run a real name server and master until the block ends."""
    settings = {"mappedFileSizeCommitLog": str(FILE_BYTES), "brokerRole": "ASYNC_MASTER", **settings}
    endpoint = start(kind, folder, Ports.free(), **settings)
    try:
        yield endpoint
    finally:
        endpoint.kill()


def slave_config() -> StoreConfig:
    return StoreConfig(commit_log=CommitLogConfig(file_size_bytes=FILE_BYTES), retention=RetentionConfig(enabled=False))


def send(endpoint: Endpoint, count: int, seed: int) -> None:
    """Send messages of many sizes, with keys and tags."""
    chance = random.Random(seed)
    with Producer(endpoint.name_server) as producer:
        for first in range(0, count, BATCH):
            batch = [
                Message("orders", chance.randbytes(chance.randrange(1, 1500)), tags=f"t{n % 3}", keys=f"{seed}-{n}")
                for n in range(first, min(count, first + BATCH))
            ]
            producer.send_many(batch)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + IN_TIME_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


def replicate(kind: str, tmp_path: Path, count: int, cuts: int) -> None:
    """Send messages to a real master in parts, cut the slave's connection in between, and compare the logs."""
    with running_master(kind, tmp_path / "master") as endpoint, Relay(endpoint.ports.replication) as relay:
        send(endpoint, BATCH, seed=0)
        with follow(tmp_path / "slave", relay.address, begin_offset=0, config=slave_config()) as slave:
            assert slave.slave is not None
            for part in range(1, cuts + 2):
                sender = threading.Thread(target=send, args=(endpoint, count // (cuts + 1), part))
                sender.start()
                seen = relay.count
                if part <= cuts:
                    time.sleep(random.Random(part).random() / 2)
                    relay.cut()
                    until(lambda seen=seen: relay.count > seen, "a new connection")  # type: ignore[misc]
                sender.join()
            end = ask_facts(endpoint.broker).end_offset
            assert slave.slave.wait_caught_up(IN_TIME_S, end_offset=end)
            assert slave.slave.status().connection_count > cuts
            compare(endpoint, slave, tmp_path / "master", end)
            sync = MetadataSync(slave, endpoint.broker)
            sync.step()
            assert slave.topic("orders").read_queue_count == 4
    assert check(tmp_path / "slave").holds


def compare(endpoint: Endpoint, slave: MessageStore, master: Path, end: int) -> None:
    """Assert that both have the same bytes, and the same number of messages in each queue."""
    assert end > 2 * FILE_BYTES
    assert slave.port.ends.appended == end
    assert log_bytes(slave.path, 0, end, FILE_BYTES) == log_bytes(master, 0, end, FILE_BYTES)
    slave.wait_dispatched(IN_TIME_S)
    with Admin(endpoint.name_server) as admin:
        theirs = {queue.queue_id: (queue.first_offset, queue.end_offset) for queue in admin.queues("orders")}
    ours = {queue.queue_id: (queue.first_offset, queue.end_offset) for queue in slave.queues("orders")}
    assert {queue_id: ends for queue_id, ends in theirs.items() if ends[1]} == ours


@covers("P6")
def test_a_real_master_replicates_into_mqlake_through_cut_connections(tmp_path: Path) -> None:
    replicate("rocketmq-5.5", tmp_path, 3_000, cuts=2)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["rocketmq-4.9", "rocketmq-5.5"])
def test_a_hundred_thousand_messages_of_a_real_master_survive_ten_cuts(tmp_path: Path, kind: str) -> None:
    replicate(kind, tmp_path, 100_000, cuts=10)
