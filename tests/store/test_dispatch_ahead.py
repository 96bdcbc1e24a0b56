"""Recovery reads the next stretch of the log while it writes one, with the same queues and keys as the result."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqlake import Message, MessageStore
from mqlake.config import CommitLogConfig
from mqlake.store import dispatch

COUNT = 600
FILE_SIZE = 64 << 10


@pytest.fixture
def rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a store without queues and index, which the next opening rebuilds from several files in many stretches."""
    monkeypatch.setattr(dispatch, "STRETCH_BYTES", 4 << 10)
    monkeypatch.setattr(dispatch, "MAX_STRETCH_BYTES", 4 << 10)
    with MessageStore.open(tmp_path / "s", commit_log=CommitLogConfig(file_size_bytes=FILE_SIZE)) as store:
        for number in range(COUNT):
            store.put(Message("orders", bytes(100 + number % 300), keys=f"k{number}", queue_id=number % 3))
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    shutil.rmtree(tmp_path / "s" / "index")
    return tmp_path / "s"


def found(store: MessageStore) -> set[str]:
    """Return the keys of all messages in the queues, each also found by its key."""
    keys: set[str] = set()
    for queue in store.queues("orders"):
        start = queue.first_offset
        while start < queue.end_offset:
            batch = store.read("orders", queue_id=queue.queue_id, start=start)
            keys.update(message.keys[0] for message in batch)
            start = batch[-1].queue_offset + 1 if batch else queue.end_offset
    assert all(len(store.find("orders", key)) == 1 for key in keys)
    return keys


def test_all_messages_are_in_queues_and_index_again(rebuilt: Path) -> None:
    with MessageStore.open(rebuilt) as store:
        assert store.recovery is not None
        assert (store.recovery.reason, store.recovery.dispatched_count) == ("rebuild", COUNT)
        assert found(store) == {f"k{number}" for number in range(COUNT)}


def test_damage_costs_only_its_own_message(rebuilt: Path) -> None:
    with MessageStore.open(rebuilt, read_only=True) as store:
        lost = store.find("orders", "k250")[0]
    file = rebuilt / "commitlog" / f"{lost.physical_offset - lost.physical_offset % FILE_SIZE:020d}"
    data = bytearray(file.read_bytes())
    data[lost.physical_offset % FILE_SIZE + 4] ^= 0xFF  # its magic number
    file.write_bytes(data)
    with MessageStore.open(rebuilt) as store:
        assert found(store) == {f"k{number}" for number in range(COUNT)} - {"k250"}
