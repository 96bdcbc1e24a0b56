"""Batch queues of RocketMQ 5 are compared with the log, rebuilt byte for byte, and cost only themselves if damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake import MessageStore, StoreError, check
from mqlake.codec.queue_entry import BATCH_ENTRY, BATCH_ENTRY_SIZE, BatchEntry
from mqlake.files.names import file_name
from mqlake.inspect.repair import repair
from tests.cli.conftest import Cli
from tests.golden.stores import GoldenStore

QUEUE = Path("batchconsumequeue/payments/2")
FILE = QUEUE / file_name(0)


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return GoldenStore("v5-inner-batch", tmp_path)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def remove_queue(file: Path) -> None:
    file.unlink()
    file.parent.rmdir()


def batch_files(path: Path) -> dict[Path, bytes]:
    return {
        file.relative_to(path): file.read_bytes() for file in path.glob("batchconsumequeue/*/*/*") if file.is_file()
    }


def test_batch_queues_of_a_whole_store_are_what_the_log_requires(golden: GoldenStore) -> None:
    assert check(golden.path, config=golden.config).findings == ()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda file: os.truncate(file, 169), "queue-file-size"),
        (os.unlink, "queue-missing"),
        (remove_queue, "queue-missing"),
        (make_folder, "queue-missing"),
        (lambda file: file.write_bytes(bytes(920)), "queue-entry"),
        (lambda file: flip(file, 2 * BATCH_ENTRY_SIZE + 3), "queue-entry"),
        (lambda file: flip(file, 12 * BATCH_ENTRY_SIZE), "queue-entry"),
        (lambda file: file.rename(file.with_name("46")), "queue-file-name"),
        (lambda file: file.rename(file.with_name(file_name(46))), "queue-file-name"),
    ],
    ids=[
        "short",
        "no file",
        "no folder",
        "a folder",
        "zeros",
        "a bit",
        "a bit after the end",
        "another name",
        "no start of a file",
    ],
)
def test_a_damaged_batch_queue_is_found_and_rebuilt_byte_for_byte(
    golden: GoldenStore, damage: Callable[[Path], None], what: str
) -> None:
    whole = batch_files(golden.path)
    damage(golden.path / FILE)
    found = [row for row in check(golden.path, config=golden.config).findings if row.file.startswith(str(QUEUE))]
    assert what in {row.what for row in found}
    assert repair(golden.path, config=golden.config).after.holds
    assert batch_files(golden.path) == whole
    assert repair(golden.path, config=golden.config).actions == ()


def test_entries_of_batches_that_the_log_lost_go_with_the_repair_of_the_log(golden: GoldenStore) -> None:
    entries = (golden.path / FILE).read_bytes()
    lost = BatchEntry(*BATCH_ENTRY.unpack_from(entries, 2 * BATCH_ENTRY_SIZE))
    size = (golden.path / "commitlog" / file_name(0)).stat().st_size
    start = lost.physical_offset - lost.physical_offset % size
    flip(golden.path / "commitlog" / file_name(start), lost.physical_offset - start + lost.size // 2)
    assert {row.what for row in check(golden.path, config=golden.config).findings if row.severity} == {"record-crc"}
    assert repair(golden.path, config=golden.config).after.holds
    kept = entries[: 2 * BATCH_ENTRY_SIZE] + entries[3 * BATCH_ENTRY_SIZE :] + bytes(BATCH_ENTRY_SIZE)
    assert (golden.path / FILE).read_bytes() == kept
    assert repair(golden.path, config=golden.config).actions == ()


def test_a_batch_queue_that_cannot_be_used_costs_only_itself(golden: GoldenStore, tmp_path: Path) -> None:
    with MessageStore.open(golden.path, config=golden.config, read_only=True) as store:
        others = [
            q for topic in store.topics() for q in store.queues(topic) if (q.topic, q.queue_id) != ("payments", 2)
        ]
    os.truncate(golden.path / FILE, 169)
    with MessageStore.open(golden.path, config=golden.config, read_only=True) as store:
        found = [q for topic in store.topics() for q in store.queues(topic) if (q.topic, q.queue_id) != ("payments", 2)]
        assert found == others
        assert all(store.read(q.topic, queue_id=q.queue_id, start=q.first_offset) for q in others if q.end_offset)
        with pytest.raises(StoreError, match="found 169 bytes"):
            store.read("payments", queue_id=2)
    done = Cli(tmp_path).run("dump", golden.path, "--config", golden.properties_file)
    lines = [json.loads(line) for line in done.output.splitlines()]
    (unreadable,) = [line for line in lines if line["kind"] == "unreadable"]
    assert (unreadable["cqTopic"], unreadable["cqQueueId"]) == ("payments", 2)
    assert len([line for line in lines if line["kind"] == "message"]) == 55
