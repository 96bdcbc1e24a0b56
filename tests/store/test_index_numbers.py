"""Index files of any size prove their slot and entry counts; if not, the counts are required and nothing else fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake import BadFile, IndexConfig, InvalidConfig, MessageStore, StoreConfig
from mqlake.codec.index_entry import index_file_size
from mqlake.files.layout import Layout
from mqlake.inspect.check import check
from mqlake.inspect.rebuild import Rebuild
from mqlake.inspect.repair import repair
from mqlake.store.index_numbers import numbers_in
from tests.helpers import bodies, message, open_small


def made(path: Path, slots: int, entries: int, count: int, **fields: str) -> Path:
    """Make a closed store as RocketMQ leaves it: without a note of the index's slot and entry counts."""
    with open_small(path, index=IndexConfig(slot_count=slots, entry_count=entries)) as store:
        for number in range(count):
            store.put(message(number, queue_id=0, **fields))
    Layout(path).settings.unlink()
    return path


def spoilt(path: Path) -> Path:
    """Damage the store's index file so that it proves nothing."""
    (file,) = Layout(path).index.iterdir()
    with file.open("r+b") as opened:
        opened.seek(24)
        opened.write((12345).to_bytes(8, "big"))
    return path


@pytest.mark.parametrize(
    ("slots", "entries", "count"),
    [(100, 400, 1), (100, 400, 150), (100, 400, 1000), (7, 2000, 300), (1000, 20, 200), (1, 50, 90), (5000, 9, 3)],
)
def test_index_files_prove_their_slot_and_entry_counts(tmp_path: Path, slots: int, entries: int, count: int) -> None:
    path = made(tmp_path / "s", slots, entries, count)
    files = sorted(Layout(path).index.iterdir())
    assert {numbers_in(file) for file in files} == {(slots, entries)}
    assert check(path).holds
    for read_only in (True, False):
        with MessageStore.open(path, read_only=read_only) as store:
            assert (store.config.index.slot_count, store.config.index.entry_count) == (slots, entries)
            assert [m.body for m in store.find("orders", f"key-{count - 1}")] == [b"body %d" % (count - 1)]
    assert {file.stat().st_size for file in files} == {index_file_size(slots, entries)}


def test_the_index_of_one_message_proves_its_counts(tmp_path: Path) -> None:
    path = made(tmp_path / "s", 30, 40, 1, tags="")
    (file,) = Layout(path).index.iterdir()
    assert numbers_in(file) == (30, 40)


def test_a_damaged_file_proves_nothing(tmp_path: Path) -> None:
    path = made(tmp_path / "s", 30, 400, 100)
    (file,) = Layout(path).index.iterdir()
    whole = file.read_bytes()
    for at in (27, 39, 40, 40 + 4 * 30 + 20 * 7 + 9, 40 + 4 * 30 + 20 * 7 + 19):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert numbers_in(file) in (None, (30, 400)), at
    file.write_bytes(whole[:-20])
    assert numbers_in(file) == (30, 399), "the cut bytes were zero, and the chains hold without them"


def test_what_needs_no_index_works_without_it(tmp_path: Path) -> None:
    path = spoilt(made(tmp_path / "s", 30, 400, 100))
    with MessageStore.open(path, read_only=True) as store:
        assert len(bodies(store)) == 100
        assert store.topics() == ["orders"]
        assert sum(batch.num_rows for batch in store.scan(columns=["body"])) == 100
        with pytest.raises(BadFile, match=r"maxHashSlotNum, maxIndexNum.*--config broker\.conf"):
            store.find("orders", "key-1")
    with pytest.raises(BadFile, match=r"--config broker\.conf"):
        MessageStore.open(path)
    with MessageStore.open(path, read_only=True, index=IndexConfig(slot_count=30, entry_count=400)) as store:
        assert len(store.find("orders", "key-1")) == 1


def test_an_index_is_not_rebuilt_with_unknown_counts(tmp_path: Path) -> None:
    path = spoilt(made(tmp_path / "s", 30, 400, 100))
    (row,) = check(path).findings
    assert (row.what, row.remedy) == ("index-numbers", "give the sizes of index files: --config broker.conf")
    for build in (lambda: repair(path), lambda: Rebuild(path, None, StoreConfig())):
        with pytest.raises(InvalidConfig, match=r"maxHashSlotNum, maxIndexNum = .*--config broker\.conf"):
            build()
    config = StoreConfig(index=IndexConfig(slot_count=30, entry_count=400))
    assert repair(path, config=config).after.holds
    (file,) = Layout(path).index.iterdir()
    assert file.stat().st_size == index_file_size(30, 400)
    with MessageStore.open(path) as store:
        assert len(store.find("orders", "key-1")) == 1
