"""A store that appears under a pattern is read from its first record, by the running query, however it comes to be."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mqlake.errors import BadFile
from mqlake.files.names import file_name
from mqlake.spark import arrivals, tails
from tests.helpers import open_small
from tests.spark.streams import Engine
from tests.spark.tables import offsets_of, put_messages, write_store


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A stream over data/*, which has read the one store that is there."""
    for module in (arrivals, tails):
        monkeypatch.setattr(module, "READY_S", 0.5)
    write_store(tmp_path / "data" / "a", 10)
    engine = Engine(tmp_path / "data" / "*", includeInternal="true")
    assert len(engine.all()) == 10
    return engine


def read_until(engine: Engine, path: Path, wanted: list[int], found: list[int] | None = None) -> None:
    """Read on until all these records of a store were returned. Each must be, once, in order, and nothing else."""
    found = found or []
    deadline = time.monotonic() + 20
    while len(found) < len(wanted) and time.monotonic() < deadline:
        rows = engine.all()
        assert {row["store"] for row in rows} <= {str(path)}
        found += [row["physical_offset"] for row in rows]
        time.sleep(0.01)
    assert found == wanted


def all_records(path: Path) -> list[int]:
    return offsets_of(path, includeInternal="true", via="scan")


def copy_slowly(source: Path, target: Path, piece: int, names: list[Path]) -> Iterator[None]:
    """Copy a store in small pieces, file by file. Yields after each piece."""
    target.mkdir()
    yield
    for path in names:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
        content = path.read_bytes()
        with place.open("wb") as file:
            yield
            for start in range(0, len(content), piece):
                file.write(content[start : start + piece])
                file.flush()
                yield


@pytest.mark.parametrize("order", ["as listed", "reversed", "log last"])
@pytest.mark.parametrize("with_ours", [True, False])
def test_a_store_that_is_copied_slowly_is_read_when_it_is_complete(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, with_ours: bool
) -> None:
    """Files appear one after the other and grow, also from the last to the first. They are never at rest."""
    source, path = tmp_path / "source", tmp_path / "data" / "b"
    write_store(source, 300)
    if not with_ours:
        shutil.rmtree(source / "mqlake")
    names = sorted(file for file in source.rglob("*") if file.is_file())
    if order == "reversed":
        names.reverse()
    elif order == "log last":
        names.sort(key=lambda file: file.parent.name == "commitlog")
    found: list[int] = []
    monkeypatch.setattr(arrivals, "READY_S", 3600.0)  # however slow this machine is
    for _ in copy_slowly(source, path, 10_000, names):
        found += [row["physical_offset"] for row in engine.all()]
    monkeypatch.setattr(arrivals, "READY_S", 0.0)
    read_until(engine, path, all_records(source), found)


def test_a_copy_that_pauses_within_a_file_is_followed_to_its_end(engine: Engine, tmp_path: Path) -> None:
    """Nothing tells half of a log's only file from a whole one. It is read as far as it goes, and then further."""
    source, path = tmp_path / "source", tmp_path / "data" / "b"
    write_store(source, 90)
    content = (source / "commitlog" / file_name(0)).read_bytes()
    (path / "commitlog").mkdir(parents=True)
    count = 0
    for stop in (20_000, 40_000, len(content)):
        with (path / "commitlog" / file_name(0)).open("ab") as file:
            file.write(content[file.tell() : stop])
        found = all_records(path)
        read_until(engine, path, found[count:])
        assert len(found) > count
        count = len(found)
    assert found == all_records(source)


def test_a_store_that_is_being_created_with_small_files_is_read_from_its_first_record(
    engine: Engine, tmp_path: Path
) -> None:
    """The writer of this store died while it was creating its first files: they have a size of 0, or a part of it."""
    path = tmp_path / "data" / "b"
    (path / "commitlog").mkdir(parents=True)
    (path / "mqlake").mkdir()
    for size in (0, 4096, 30_000):
        (path / "commitlog" / file_name(0)).write_bytes(bytes(size))
        assert engine.all() == []
    shutil.rmtree(path)
    with open_small(path) as store:
        assert engine.all() == [], "no message yet"
        put_messages(store, 0, 50)
        store.wait_dispatched()
        read_until(engine, path, all_records(path))
        put_messages(store, 50, 50)
        store.wait_dispatched()
        read_until(engine, path, all_records(path)[50:])


def test_a_store_with_a_running_writer_is_read_without_delay(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "READY_S", 3600.0)
    with open_small(tmp_path / "data" / "b") as store:
        put_messages(store, 0, 50)
        store.wait_dispatched()
        assert len(engine.all()) == 50
    write_store(tmp_path / "data" / "c", 20)
    assert len(engine.all()) == 20, "nor does a store that was closed have to wait"


def test_a_store_that_never_gets_complete_is_mentioned_again_and_does_not_stop_the_others(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_store(tmp_path / "data" / "b", 300)
    (tmp_path / "data" / "b" / "commitlog" / file_name(65536)).write_bytes(b"short")
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            with open_small(tmp_path / "data" / "a") as store:
                put_messages(store, 10 + number, 1)
            assert len(engine.all()) == 1
            time.sleep(0.01)
        assert caplog.text.count("it is skipped until it is a store") == 1
        monkeypatch.setattr(tails, "REMIND_S", 0.0)
        engine.batches()
    assert caplog.text.count("it is skipped until it is a store") == 2
    assert "5 bytes" in caplog.text.splitlines()[-1]


def test_damage_to_a_store_that_the_stream_reads_is_still_an_error(engine: Engine, tmp_path: Path) -> None:
    log = tmp_path / "data" / "a" / "commitlog" / file_name(0)
    log.unlink()
    log.write_bytes(b"short")
    with pytest.raises(BadFile):
        engine.batch()


def test_an_empty_store_is_read_when_its_first_file_shows_the_size_of_its_files(tmp_path: Path) -> None:
    """Without files the size of a log's files is a guess, which its first file may prove wrong."""
    source, path = tmp_path / "source", tmp_path / "store"
    write_store(source, 100)
    (path / "commitlog").mkdir(parents=True)
    engine = Engine(path, includeInternal="true")
    assert engine.batches() == [[]]
    shutil.copytree(source / "commitlog", path / "commitlog", dirs_exist_ok=True)
    read_until(engine, path, all_records(source))


def test_a_query_that_ends_by_itself_waits_for_new_stores_that_are_at_rest(tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "data" / "b"
    write_store(path, 30)
    shutil.rmtree(path / "mqlake")
    engine.restart(tmp_path / "data" / "*", includeInternal="true")
    engine.reader.prepareForTriggerAvailableNow()
    assert len(engine.all()) == 30
