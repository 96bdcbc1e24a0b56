"""A rebuild writes the same bytes as dispatch, wherever the log is split and whatever it holds."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqlake.inspect.assemble as assembling
import mqlake.inspect.harvest as harvesting
import mqlake.inspect.rebuild as rebuilding
from mqlake import MessageStore, StoreConfig
from mqlake.codec.queue_entry import ENTRY
from mqlake.errors import ChangedUnderRead, NotAStore, StoreLocked
from mqlake.files.mapped_file import MappedFile
from mqlake.inspect.assemble import BuiltQueue, KeyRun, QueueWork, Site, build, index_works
from mqlake.inspect.check import check
from mqlake.inspect.findings import Severity
from mqlake.inspect.harvest import StagedRun, harvest_at
from mqlake.kernel import find_record
from mqlake.logs.key_index import KEY, KeyIndex
from tests.golden.stores import NAMES, GoldenStore
from tests.golden.test_golden_stores import NOT_COMPARABLE, files_of
from tests.helpers import LOG_FILE, QUEUE_FILE, bodies, message, open_bare
from tests.inspect.rebuilding import (
    KINDS,
    delete_topic,
    index_files,
    make_store,
    opened_from_log,
    queue_files,
    rebuild_here,
    times_of,
)


def config_of(golden: GoldenStore) -> StoreConfig:
    """4.9 indexes no tags."""
    index = dataclasses.replace(golden.config.index, tags=golden.name.startswith("v5"))
    return dataclasses.replace(golden.config, index=index)


def require_equal(built: Path, wanted: Path) -> None:
    assert queue_files(built) == queue_files(wanted)
    assert index_files(built) == index_files(wanted)


@pytest.mark.parametrize("part_size", [2000, 1 << 30])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_COMPARABLE])
def test_queues_and_index_of_rocketmqs_stores_are_rebuilt_byte_for_byte(
    name: str, part_size: int, tmp_path: Path
) -> None:
    golden = GoldenStore(name, tmp_path)
    rebuild_here(golden.path, tmp_path / "out", config=config_of(golden), part_size=part_size)
    require_equal(tmp_path / "out", golden.path)


@pytest.mark.parametrize("name", NOT_COMPARABLE)
def test_a_rebuild_of_rocketmqs_other_stores_equals_what_an_opening_writes(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    wanted = opened_from_log(golden.path, tmp_path / "opened", config_of(golden))
    rebuild_here(golden.path, tmp_path / "out", config=config_of(golden), part_size=2000)
    require_equal(tmp_path / "out", wanted)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_the_log_holds_a_rebuild_equals_what_an_opening_writes(kind: str, seed: int, tmp_path: Path) -> None:
    store = make_store(kind, tmp_path / "store", seed)
    before = times_of(store)
    wanted = opened_from_log(store, tmp_path / "opened")
    for part_size in (700, LOG_FILE - 1, 1 << 30):
        out = tmp_path / f"out-{part_size}"
        rebuild_here(store, out, part_size=part_size)
        require_equal(out, wanted)
        assert {path.name for path in out.iterdir()} == {"consumequeue", "index"}
    assert times_of(store) == before


def test_repeated_and_missing_queue_offsets_are_handled_as_in_dispatch(tmp_path: Path) -> None:
    """A topic was deleted and created again, and records were lost from the middle of a queue."""
    with open_bare(tmp_path / "store") as store:
        receipts = [store.put(message(number, queue_id=0, body=bytes(300))) for number in range(150)]
        store.wait_dispatched()
    shutil.rmtree(tmp_path / "store" / "consumequeue" / "orders")
    (tmp_path / "store" / "mqlake" / "checkpoint").unlink()
    for number, to in ((40, 9), (41, 10), (42, 11), (90, 91), (100, 5_000)):
        offset = receipts[number].physical_offset
        with (tmp_path / "store" / "commitlog" / f"{offset - offset % LOG_FILE:020d}").open("r+b") as file:
            file.seek(offset % LOG_FILE + 20)
            file.write(to.to_bytes(8, "big"))
    wanted = opened_from_log(tmp_path / "store", tmp_path / "opened")
    for part_size in (1000, 1 << 30):
        rebuild_here(tmp_path / "store", tmp_path / str(part_size), part_size=part_size)
        require_equal(tmp_path / str(part_size), wanted)


def too_far(file: MappedFile, target: int, limit: int) -> int:
    """Return a boundary, but not the first after the target."""
    return find_record(file.pages, min(limit, target + 1000), limit, file.start)


def test_if_every_guess_is_wrong_the_log_is_walked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store("plain", tmp_path / "store", 2)
    monkeypatch.setattr(harvesting, "boundary_behind", too_far)
    rebuild_here(store, tmp_path / "out", part_size=3000)
    require_equal(tmp_path / "out", store)


def staged(folder: Path, first: int, offsets: range) -> StagedRun:
    """Stage entries for records at these offsets, with queue offsets from `first` on, as a task does."""
    path = folder / "staged.entries"
    place = path.stat().st_size if path.exists() else 0
    with path.open("ab") as file:
        file.write(b"".join(ENTRY.pack(offset, 100, 7) for offset in offsets))
    return StagedRun("orders", 0, first, len(offsets), "staged", place)


def site_in(folder: Path) -> Site:
    (folder / "index").mkdir()
    return Site(
        str(folder),
        str(folder / "built"),
        str(folder / "index"),
        str(folder / "none"),
        QUEUE_FILE,
        10,
        6,
        0,
        1 << 20,
        LOG_FILE,
    )


def test_a_queue_that_restarts_is_one_run_wherever_the_log_was_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembling, "BATCH_ENTRIES", 1)
    parts = (0, range(0, 500, 100)), (0, range(500, 600, 100)), (1, range(600, 900, 100))
    runs = [staged(tmp_path, first, offsets) for first, offsets in parts]
    built = build(site_in(tmp_path), [QueueWork("orders", 0, runs, 0)])
    assert built == [BuiltQueue("orders", 0, 5, 0)]
    data = (tmp_path / "built" / "orders" / "0" / f"{0:020d}").read_bytes()
    assert [ENTRY.unpack_from(data, 20 * number)[0] for number in range(5)] == [500, 600, 700, 800, 400]


def test_index_files_built_separately_equal_those_built_in_sequence(tmp_path: Path) -> None:
    """Hours pass between keys: the first entry of a file counts its time from the end of the file before."""
    keys = [KEY.pack(number * 31, 100 * number, 1_700_000_000_000 + 3_600_000 * number) for number in range(13)]
    index = KeyIndex(tmp_path / "wanted", 10, 6, writable=True)
    index.put(b"".join(keys))
    (tmp_path / "staged.keys").write_bytes(b"".join(keys))
    site = site_in(tmp_path)
    works = index_works([KeyRun("staged", 0, 7), KeyRun("staged", 140, 6)], 6, 20260101000000000)
    for work in reversed(works):
        build(site, work)
    assert index_files(tmp_path) == [path.read_bytes() for path in sorted((tmp_path / "wanted").iterdir())]
    assert len(works) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_rebuild_in_place_the_store_keeps_all_promises_and_opens_without_work(
    kind: str, tmp_path: Path
) -> None:
    store = make_store(kind, tmp_path / "store", 7)
    wanted = opened_from_log(store, tmp_path / "opened")
    clean = not (store / "abort").exists()
    shutil.rmtree(store / "index")
    rebuilt = rebuild_here(store, part_size=5000)
    require_equal(store, wanted)
    assert (store / "abort").exists() == (not clean)
    assert not [path for path in (store / "mqlake" / "scratch").glob("*") if path.name == "rebuild"]
    with open_bare(store) as opened:
        assert opened.recovery is not None
        assert (opened.recovery.reason, opened.recovery.dispatched_count) == ("checkpoint", 0)
        assert opened.end_offset == rebuilt.end_offset
        opened.put(message(1, "orders", queue_id=0))
    if kind != "scarred":
        assert check(store).severity == Severity.NOTE


@pytest.mark.parametrize("dug_only", [False, True])
def test_a_deleted_topic_does_not_come_back(dug_only: bool, tmp_path: Path) -> None:
    """Its records are still in the log, and a crash may have left its queues after the marker was written."""
    path = tmp_path / "store"
    with open_bare(path) as store:
        for number in range(30):
            store.put(message(number, ("orders", "payments")[number % 2], queue_id=0))
        store.wait_dispatched()
        kept = shutil.copytree(path / "consumequeue" / "orders", tmp_path / "orders")
        delete_topic(store, "orders")
        store.put(message(100, "payments", queue_id=0))
    if dug_only:
        shutil.copytree(kept, path / "consumequeue" / "orders")
    assert rebuild_here(path, tmp_path / "out").queue_count == 1
    assert [folder.name for folder in (tmp_path / "out" / "consumequeue").iterdir()] == ["payments"]
    assert rebuild_here(path, part_size=3000).entry_count == 16
    with open_bare(path) as store:
        assert store.recovery is not None and store.recovery.reason == "checkpoint"
        assert store.topics() == ["payments"] and len(bodies(store, "payments")) == 16
        assert store.get(store.first_offset).topic == "orders", "the log still has it"
        assert store.put(message(1, "orders", queue_id=0)).queue_offset == 0
    rebuild_here(path)
    with open_bare(path) as store:
        assert bodies(store) == [b"body 1"]
    assert check(path).findings == ()


@pytest.mark.parametrize("name", ["v4-mixed", "v5-mixed", "v5-inner-batch", "v4-retention"])
def test_rocketmqs_stores_open_from_a_checkpoint_after_a_rebuild_in_place(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    with MessageStore.open(golden.path, config=golden.config, read_only=True) as store:
        before = [line for line in store.dump(golden.properties, walk=True, keys=True) if line["kind"] != "store"]
    rebuild_here(golden.path, config=config_of(golden))
    with MessageStore.open(golden.path, config=golden.config, deliver=False) as store:
        assert store.recovery is not None and store.recovery.reason == "checkpoint"
        after = [line for line in store.dump(golden.properties, walk=True, keys=True) if line["kind"] != "store"]
    assert after == before


def killed_at(step: int, store: Path) -> bool:
    """Rebuild in a child that dies before that step of moving files into place; return whether it died."""
    child = os.fork()
    if child == 0:
        left = step
        put_in_place = rebuilding.Rebuild._replace

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def count(*args: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os._exit(9)
                return call(*args, **named)

            return count

        def armed(*args: Any) -> None:
            for owner, names in ((rebuilding, STEPS), (Path, ("rename", "unlink"))):
                for name in names:
                    setattr(owner, name, counted(getattr(owner, name)))
            put_in_place(*args)

        rebuilding.Rebuild._replace = armed  # type: ignore[method-assign, assignment]
        try:
            rebuild_here(store)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


STEPS = ("sync_directory", "sync_file", "write_checkpoint", "keep_notes")


@pytest.mark.parametrize("known", [True, False], ids=["our store", "RocketMQ's store"])
def test_a_store_whose_rebuild_was_killed_at_any_step_opens_and_is_whole(known: bool, tmp_path: Path) -> None:
    original = make_store("few", tmp_path / "original", 3)
    if not known:
        (original / "mqlake" / "checkpoint").unlink()
        (original / "mqlake" / "positions").unlink()
    with open_bare(original, read_only=True) as opened:
        wanted = list(opened.dump({}, walk=True, keys=True))[1:]
    reasons = []
    for step in range(100):
        store = tmp_path / f"store-{step}"
        shutil.copytree(original, store)
        for index in (store / "index").iterdir():
            index.write_bytes(bytes(index.stat().st_size))  # the reason for the rebuild
        died = killed_at(step, store)
        with open_bare(store) as opened:
            assert list(opened.dump({}, walk=True, keys=True))[1:] == wanted, f"killed at step {step}"
            assert opened.recovery is not None
            reasons.append(opened.recovery.reason)
        assert check(store).severity == Severity.NOTE
        if not died:
            break
    assert step > 10
    assert reasons[-3 if known else -1 :] == ["checkpoint"] * (3 if known else 1)  # the last steps only clean up


def test_a_live_store_is_not_rebuilt_in_place_but_can_be_into_another_folder(tmp_path: Path) -> None:
    with open_bare(tmp_path / "store") as store:
        store.put_many([message(number, queue_id=0) for number in range(50)])
        store.wait_dispatched()
        with pytest.raises(StoreLocked, match=str(os.getpid())):
            rebuild_here(tmp_path / "store")
        assert rebuild_here(tmp_path / "store", tmp_path / "out").record_count == 50
        assert bodies(store) == [b"body %d" % number for number in range(50)]
    require_equal(tmp_path / "out", tmp_path / "store")


def test_a_folder_that_is_not_empty_is_not_rebuilt_into(tmp_path: Path) -> None:
    store = make_store("plain", tmp_path / "store", 0)
    with pytest.raises(NotAStore, match="name an empty or a new folder"):
        rebuild_here(store, store)
    with pytest.raises(NotAStore, match="no such folder"):
        rebuild_here(tmp_path / "nowhere", tmp_path / "out")


def test_a_file_that_vanishes_during_a_rebuild_is_reported(tmp_path: Path) -> None:
    store = make_store("plain", tmp_path / "store", 0)
    with rebuilding.Rebuild(store, tmp_path / "out", StoreConfig()) as job:
        part = job.parts(1 << 30)[0]
        Path(part.path).unlink()
        with pytest.raises(ChangedUnderRead, match="deleted meanwhile"):
            harvest_at(job.staging, part, 0)
    assert not any((tmp_path / "out").iterdir())


def test_files_that_are_not_queues_are_kept(tmp_path: Path) -> None:
    store = make_store("plain", tmp_path / "store", 0)
    (store / "consumequeue" / "orders" / "0" / "notes.txt").write_text("mine")
    rebuild_here(store)
    assert (store / "mqlake" / "set-aside" / "orders" / "0" / "notes.txt").read_text() == "mine"
    assert "orders/0/notes.txt" not in files_of(store / "consumequeue")
