"""Repaired stores start in real RocketMQ, 4.9 and 5.5, and serve there exactly what mqlake serves from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqlake import MessageStore
from mqlake.store.repair import repair
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
def test_a_repaired_store_is_served_by_rocketmq_as_it_is_here(
    kind: str, seed: int, version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "store"
    store_with_damage(path, kind, seed)
    assert repair(path).after.holds
    count = compare(path, version, SETTINGS, tmp_path)
    record_property(f"compared: RocketMQ {version} on repaired stores", {"stores": 1, "messages": count})


@pytest.mark.parametrize("version", VERSIONS)
def test_of_a_cleaned_and_repaired_log_rocketmq_serves_the_first_messages_too(version: str, tmp_path: Path) -> None:
    """It looks for where a queue begins by the offsets of entries, those of lost messages among them."""
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
    told = {"stores": len(seeds), "messages": count}
    record_property(f"compared: RocketMQ {version} on stores with one flipped bit, repaired", told)


def compare(path: Path, version: str, settings: dict[str, str], scratch: Path) -> int:
    """RocketMQ serves from a copy what is served here; how many messages."""
    with MessageStore.open(path, read_only=True) as store:
        ours = list(store.dump(settings, walk=True, keys=True))
    shutil.copytree(path, scratch / "copy")
    theirs = RocketMQ(version).dump(scratch / "copy", settings)
    assert theirs[0]["load"] is True
    assert messages(theirs) == messages(ours)
    assert log(theirs) == log(ours)
    assert keys(theirs) == keys(ours)
    # A pull that finds nothing but lost numbers up to the end of a queue file is told to go on behind them.
    places = {(line["cqQueueId"], line["cqOffset"]) for line in ours if line["kind"] == "message"}
    for line in theirs:
        if line["kind"] == "unreadable":
            assert line["status"] == "MESSAGE_WAS_REMOVING"
            assert (line["cqQueueId"], line["cqOffset"]) not in places
    return len(messages(ours))
