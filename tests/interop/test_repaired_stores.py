"""Repaired stores start in a real RocketMQ, 4.9 and 5.5, which serves exactly what mqlake serves from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import MessageStore
from mqlake.inspect.repair import repair
from mqlake.torture.faults.damage import damage
from mqlake.torture.pristine import CONFIG
from tests.helpers import LOG_FILE, message, open_small
from tests.interop.marks import WITH_ROCKETMQ
from tests.interop.rocketmq import VERSIONS, RocketMQ
from tests.interop.test_shared_stores import SETTINGS
from tests.torture.repaired import flip_and_repair

pytestmark = WITH_ROCKETMQ

Line = dict[str, Any]
DAMAGES = [("flip_bit", 3), ("zero_pages", 2), ("truncate", 4), ("delete", 9), ("swap", 1)]


def store_with_damage(path: Path, kind: str, seed: int) -> None:
    with open_small(path) as store:
        for number in range(500):
            store.put(message(number, queue_id=number % 3, body=b"%d" % number * 90))
    damage(path, seed, files="commitlog/*", kind=kind)


def messages(lines: list[Line]) -> set[tuple[str, int, str]]:
    return {(line["cqTopic"], line["cqQueueId"], line["recordSha1"]) for line in lines if line["kind"] == "message"}


def log(lines: list[Line]) -> list[tuple[str, int]]:
    return [(line["kind"], line["physicalOffset"]) for line in lines if line["kind"] in ("record", "blank", "end")]


def keys(lines: list[Line]) -> dict[str, set[int]]:
    return {line["key"]: set(line["offsets"]) for line in lines if line["kind"] == "key"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("kind", "seed"), DAMAGES)
def test_rocketmq_serves_from_a_repaired_store_what_mqlake_serves(
    kind: str, seed: int, version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "store"
    store_with_damage(path, kind, seed)
    assert repair(path).after.holds
    count = compare(path, version, SETTINGS, tmp_path)
    record_property(f"compared: RocketMQ {version} on repaired stores", {"stores": 1, "messages": count})


@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmq_serves_the_first_messages_of_a_cleaned_and_repaired_log(version: str, tmp_path: Path) -> None:
    """RocketMQ finds the beginning of a queue by the offsets of its entries, including those of lost messages."""
    path = tmp_path / "store"
    with open_small(path) as store:
        for number in range(650):
            store.put(message(number, queue_id=number % 8, body=b"%d" % number * 90))
        store.wait_dispatched()
        assert store.retain(before_offset=LOG_FILE).first_offset == LOG_FILE
    for file_start in (LOG_FILE, 2 * LOG_FILE):
        with (path / "commitlog" / f"{file_start:020d}").open("r+b") as log:
            log.seek(LOG_FILE // 3)
            log.write(b"?" * (LOG_FILE // 2))
    assert repair(path).after.holds
    assert compare(path, version, SETTINGS, tmp_path) > 100


@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmq_goes_on_after_the_queue_offsets_of_a_lost_end(version: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        receipts = [store.put(message(number, queue_id=0, body=b"%d" % number * 90)) for number in range(300)]
    file = path / "commitlog" / f"{receipts[-1].physical_offset // LOG_FILE * LOG_FILE:020d}"
    with file.open("r+b") as log:
        log.seek(receipts[-1].physical_offset % LOG_FILE + 92)
        log.write(b"?")
    assert repair(path).after.holds
    for number in range(2):
        (written,) = RocketMQ(version).write(path, SETTINGS, [{"topic": "orders", "queueId": 0}])
        assert written["queueOffset"] == 300 + number
    theirs = RocketMQ(version).dump(path, SETTINGS)
    read = {line["cqOffset"] for line in theirs if line["kind"] == "message" and line["cqTopic"] == "orders"}
    assert read >= {*range(299), 300, 301}


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_stores_with_one_flipped_bit_start_in_rocketmq_once_repaired(
    version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    log_size, queue_size = CONFIG.commit_log.file_size_bytes, CONFIG.consume_queue.file_size_bytes
    settings = {
        "mappedFileSizeCommitLog": str(log_size),
        "mappedFileSizeConsumeQueue": str(queue_size),
        "maxHashSlotNum": str(CONFIG.index.slot_count),
        "maxIndexNum": str(CONFIG.index.entry_count),
    }
    seeds = range(20)
    count = 0
    for seed in seeds:
        folder = tmp_path / str(seed)
        count += compare(flip_and_repair(seed, folder), version, settings, folder)
    counts = {"stores": len(seeds), "messages": count}
    record_property(f"compared: RocketMQ {version} on stores with one flipped bit, repaired", counts)


def compare(path: Path, version: str, settings: dict[str, str], scratch: Path) -> int:
    """Check that RocketMQ serves from a copy what is served here. Return the number of messages."""
    with MessageStore.open(path, read_only=True) as store:
        ours = list(store.dump(settings, walk=True, keys=True))
    shutil.copytree(path, scratch / "copy")
    theirs = RocketMQ(version).dump(scratch / "copy", settings)
    assert theirs[0]["load"] is True
    assert messages(theirs) == messages(ours)
    assert log(theirs) == log(ours)
    assert keys(theirs) == keys(ours)
    # If only lost messages remain up to the end of a queue file, a pull is told to continue after them.
    places = {(line["cqQueueId"], line["cqOffset"]) for line in ours if line["kind"] == "message"}
    for line in theirs:
        if line["kind"] == "unreadable":
            assert line["status"] == "MESSAGE_WAS_REMOVING"
            assert (line["cqQueueId"], line["cqOffset"]) not in places
    return len(messages(ours))
