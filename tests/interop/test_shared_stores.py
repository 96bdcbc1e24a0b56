"""Stores that mqlake wrote open in a real RocketMQ, 4.9 and 5.5, with identical messages; both write them in turn."""

from __future__ import annotations

import base64
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import Message, MessageStore, StoreConfig
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq import RocketMQ

SETTINGS = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
VERSIONS = ["4.9.8", "5.5.1"]

pytestmark = WITH_ROCKETMQ


def messages(seed: int, count: int) -> list[Message]:
    """Make messages with many kinds of bodies, tags, keys, flags, properties, hosts, compression and transactions."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        body = draw.randbytes(draw.choice([0, 1, 7, 64, 300, 1024, 5000]))
        compressed = draw.random() < 0.1
        sys_flag = (draw.choice([0x1, 0x301]) if compressed else 0) | draw.choice([0, 0, 0, 0, 0x4, 0x8, 0xC])
        made.append(
            Message(
                draw.choice(["orders", "payments", "audit-log", "%RETRY%group"]),
                zlib.compress(body) if compressed else body,
                tags=draw.choice([None, "TagA", "Aa", "BB", "标签", "polygenelubricants"]),
                keys=[f"key-{number}", "shared"] if draw.random() < 0.7 else (),
                queue_id=draw.choice([None, 0, 1, 5]),
                properties={"color": draw.choice(["red", "绿", "😀"]), "a=b": "c d"} if draw.random() < 0.5 else None,
                flag=draw.choice([0, -1, 2**31 - 1]),
                sys_flag=sys_flag,
                born_timestamp=1_700_000_000_000 + number,
                born_host=draw.choice([None, "10.1.2.3:40000", "[fd00::7]:1"]),
                reconsume_times=draw.choice([0, 3]),
                prepared_offset=draw.choice([0, 12345]),
            )
        )
    return made


def our_lines(path: Path, **kinds: bool) -> list[dict[str, Any]]:
    with MessageStore.open(path, config=StoreConfig.from_properties(SETTINGS), read_only=True) as store:
        return list(store.dump(SETTINGS, walk=True, keys=True, tags=False))


def comparable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what both must say: without versions, and look-ups as sets, because 4.9 may name an offset twice."""
    kept = [dict(line) for line in lines if line["kind"] != "tag"]
    for line in kept:
        if line["kind"] == "key":
            line["offsets"] = sorted(set(line["offsets"]))
        line.pop("version", None)
        line.pop("settings", None)
    return kept


def dumped_by(version: str, path: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """Dump a copy with RocketMQ: opening recovers, and recovery writes."""
    copy = tmp_path / f"copy-{version}"
    shutil.copytree(path, copy)
    return RocketMQ(version).dump(copy, SETTINGS)


@pytest.fixture
def our_store(tmp_path: Path) -> Path:
    path = tmp_path / "ours"
    with MessageStore.open(path, config=StoreConfig.from_properties(SETTINGS)) as store:
        for number, message in enumerate(messages(1, 300)):
            store.put(message)
            if number % 50 == 0:
                store.put_many([Message("batch", b"%d" % i, keys=f"batch-{number}-{i}") for i in range(20)])
        for number in range(30):  # two light queues in addition to the topic's own
            lights = {"INNER_MULTI_DISPATCH": "%LMQ%one,%LMQ%two"}
            store.put(Message("orders", b"light %d" % number, properties=lights))
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmq_serves_every_message_that_mqlake_wrote(
    version: str, our_store: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ours = comparable(our_lines(our_store))
    theirs = comparable(dumped_by(version, our_store, tmp_path))
    assert theirs == ours
    counts = counts_of(theirs)
    record_property(f"compared: RocketMQ {version} on a store of mqlake", counts)
    assert counts["messages"] > 300


@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmq_and_mqlake_write_the_same_store_in_turn(
    version: str, our_store: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each continues where the other stopped: queue offsets, queues and keys have no break."""
    rocketmq = RocketMQ(version)
    rocketmq.write(our_store, SETTINGS, plain_lines(2, 60))
    with MessageStore.open(our_store, config=StoreConfig.from_properties(SETTINGS)) as store:
        before = {queue.queue_id: queue.end_offset for queue in store.queues("orders")}
        receipt = store.put(Message("orders", b"after RocketMQ", keys="after", queue_id=0))
        assert receipt.queue_offset == before[0]
    rocketmq.write(our_store, SETTINGS, plain_lines(3, 60))
    ours = comparable(our_lines(our_store))
    assert comparable(dumped_by(version, our_store, tmp_path)) == ours
    assert sum(line["kind"] == "message" and line["cqTopic"] == "orders" for line in ours) > 120
    record_property(f"compared: RocketMQ {version} and mqlake in turn on one store", counts_of(ours))


def counts_of(lines: list[dict[str, Any]]) -> dict[str, int]:
    return {f"{kind}s": sum(line["kind"] == kind for line in lines) for kind in ("message", "record", "key")}


def plain_lines(seed: int, count: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "topic": "orders",
            "queueId": draw.choice([0, 1]),
            "body": base64.b64encode(draw.randbytes(draw.choice([1, 200, 3000]))).decode(),
            "tags": "TagA",
            "keys": f"theirs-{seed}-{number}",
            "flag": 0,
            "properties": {},
            "bornTimestamp": 1_700_000_000_000,
            "sysFlag": 0,
        }
        for number in range(count)
    ]
