"""Log and lake read as one: no gap, no overlap, while writer, retention, archiver and compaction run and are killed."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")

from mqlake import MessageStore
from mqlake.errors import ChangedUnderRead, CorruptRecord, InvalidConfig, LakeGap, WrongLake
from mqlake.lake import Lake
from mqlake.lake.gate import release
from mqlake.spark.jobs.archive import archive
from mqlake.spark.jobs.compact import compact
from mqlake.spark.jobs.lake_table import LakeTable
from mqlake.spark.jobs.union import boundaries_of
from mqlake.spark.read_split import read_split
from mqlake.spark.schema import arrow_schema
from mqlake.spark.source import explain
from mqlake.spark.split import Split
from tests.helpers import eventually
from tests.lake.jobs import NO_SPARK, assert_holds, here, rows_in, run_jobs_here
from tests.lake.storm import GRACE_S
from tests.lake.test_archive import flip
from tests.spark.tables import options_for, put_messages, rows_of, splits_of, stats_here, write_store

__all__ = ["here"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    write_store(path, 1000)
    return path


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_a_lake_of_other_stores_is_never_read(here: None, store: Path, lake: Path, tmp_path: Path) -> None:
    """Otherwise messages that the log no longer has would be missing without an error."""
    write_store(tmp_path / "other", 100)
    Lake.open(lake, create=True)
    assert len(rows_of(tmp_path / "other", lake=lake)) == 67, "an empty lake belongs to no other store"
    archive(NO_SPARK, str(store), str(lake))
    opened = Lake.open(lake)
    for read in (
        lambda: rows_of(tmp_path / "other", lake=lake),
        lambda: boundaries_of(opened, opened.snapshot(), str(tmp_path / "other")),
        lambda: stats_here(str(tmp_path / "other"), lake=str(lake)),
    ):
        with pytest.raises(WrongLake, match=r"the lake was made from other stores .* name its own lake"):
            read()
    both = f"{tmp_path}/[so]t*"
    assert len(boundaries_of(opened, opened.snapshot(), both)) == 2, "one of them is in the lake"
    shutil.rmtree(store)
    assert boundaries_of(opened, opened.snapshot(), str(store))[0].state is not None, "known by its path"


def clean(store: Path) -> int:
    """Delete all that gates and the writer allow. Return where the log begins then."""
    with MessageStore.open(store) as opened:
        opened.retain(keep_bytes=0)
        return opened.first_offset


def as_text(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


SELECTIONS: list[dict[str, Any]] = [
    {},
    {"includeInternal": "true"},
    {"topics": "topic-1,topic-3"},
    {"topics": "topic-1", "includeInternal": "true"},
    {"topicsPattern": "topic-[24]", "columns": "topic,body"},
    {"tags": "tag1", "queues": "0,1"},
    {"keys": "key-17,group-3"},
    {"columns": "size"},
    {"startOffset": "10000", "endOffset": "150000"},
]


class Aged(NamedTuple):
    """An archived, compacted and cleaned store, with the rows read and the splits planned before that."""

    store: Path
    lake: Path
    expected: list[list[Any]]
    splits: list[list[Split]]


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Aged:
    store, lake = tmp_path_factory.mktemp("aged") / "store", tmp_path_factory.mktemp("aged") / "lake"
    write_store(store, 1000)
    expected = [rows_of(store, **options) for options in SELECTIONS]
    with pytest.MonkeyPatch.context() as patch:
        run_jobs_here(patch)
        archive(NO_SPARK, str(store), str(lake), split_size="50k")
        splits = [splits_of(store, lake=str(lake), splitSize="80k", **options) for options in SELECTIONS]
        compact(NO_SPARK, str(lake), grace_s=0)
    assert clean(store) > 200_000
    return Aged(store, lake, expected, splits)


@pytest.mark.parametrize("number", range(len(SELECTIONS)), ids=lambda number: ",".join(SELECTIONS[number]) or "all")
def test_rows_deleted_from_the_log_come_from_the_lake_with_every_selection(aged: Aged, number: int) -> None:
    found = rows_of(aged.store, lake=str(aged.lake), splitSize="40k", **SELECTIONS[number])
    assert sorted(found, key=as_text) == sorted(aged.expected[number], key=as_text) and found


@pytest.mark.parametrize("number", range(len(SELECTIONS)), ids=lambda number: ",".join(SELECTIONS[number]) or "all")
def test_a_planned_read_whose_log_files_are_deleted_continues_in_the_lake(aged: Aged, number: int) -> None:
    assert not any(split.archived for split in aged.splits[number])
    found = rows_of(aged.store, aged.splits[number], lake=str(aged.lake), **SELECTIONS[number])
    assert sorted(found, key=as_text) == sorted(aged.expected[number], key=as_text) and found


def test_a_read_opens_only_files_that_the_manifest_and_the_key_index_name(
    here: None, store: Path, lake: Path, tmp_path: Path
) -> None:
    archive(NO_SPARK, str(store), str(lake), split_size="50k", step_bytes=1)
    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    total = len(snapshot.files("messages"))
    assert total > 4

    def table(**options: Any) -> LakeTable:
        return LakeTable(opened, snapshot, None, options_for(store, **options))

    row = next(row for row in rows_of(store) if len(row["keys"]) > 1)
    by_key = table(topics=row["topic"], keys=row["keys"][0])
    assert [file.start <= row["physical_offset"] < file.end for file in by_key.files] == [True]
    assert f"1 of {total} files" in str(by_key) and "the key index names 1 messages" in str(by_key)
    assert len(table(keys="nowhere").files) == 0, "without topics those of the lake are looked up"
    assert len(table(topics="no-such-topic").files) == 0
    assert len(table(keys=row["keys"][0], includeInternal="true").files) == total, (
        "rolled-back messages have no keys there"
    )
    assert len(table(endOffset=str(snapshot.files("messages")[2].start)).files) == 2
    clean(store)
    told = explain(str(store), lake=str(lake), topics="topic-1")
    assert re.search(rf"lake: {lake}, version {snapshot.version}, \[0, \d+\): \d+ of {total} files, [\d,]+ bytes", told)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("via", ["scan", "queue"])
def test_a_read_is_exact_if_log_files_are_deleted_halfway(store: Path, lake: Path, via: str) -> None:
    """It has read the first file. The next rows are only in the lake, the last ones only in the log."""
    archive(NO_SPARK, str(store), str(lake), split_size="50k")
    with MessageStore.open(store) as opened:
        put_messages(opened, 1000, 600)
    options: dict[str, Any] = {"topics": "topic-1,topic-2", "columns": "physical_offset", "lake": str(lake)}
    expected = [row["physical_offset"] for row in rows_of(store, **options)]
    (split,) = splits_of(store, via=via, **options)
    parsed = options_for(store, **options)
    batches = read_split(parsed, arrow_schema(parsed.columns), split)
    found = next(batches).column(0).to_pylist()
    clean(store)
    for batch in batches:
        found += batch.column(0).to_pylist()
    assert 0 < len(set(found)) == len(found) and sorted(found) == expected


@pytest.mark.usefixtures("here")
def test_a_read_without_a_lake_or_with_one_that_has_too_little_fails(store: Path, lake: Path) -> None:
    archive(NO_SPARK, str(store), str(lake))
    with MessageStore.open(store) as opened:
        put_messages(opened, 1000, 600)
    splits, alone = splits_of(store, lake=str(lake)), splits_of(store)
    release(store)
    clean(store)
    with pytest.raises(ChangedUnderRead, match="deleted"):
        rows_of(store, alone)
    with pytest.raises(ChangedUnderRead, match=r"and .*lake has \[0, "):
        rows_of(store, splits, lake=str(lake))
    with pytest.raises(LakeGap):
        splits_of(store, lake=str(lake))


@pytest.mark.usefixtures("here")
def test_a_read_reports_damage_listed_by_the_lake_as_the_log_does(store: Path, lake: Path) -> None:
    hit = rows_of(store)[20]
    flip(store, hit["physical_offset"] + 90)
    expected = rows_of(store, onDamage="rows")
    archive(NO_SPARK, str(store), str(lake), split_size="50k")
    clean(store)
    found = rows_of(store, lake=str(lake), onDamage="rows")
    assert sorted(found, key=as_text) == sorted(expected, key=as_text)
    with pytest.raises(CorruptRecord, match="CRC"):
        rows_of(store, lake=str(lake), onDamage="fail")


def test_raw_bodies_are_not_in_a_lake() -> None:
    with pytest.raises(InvalidConfig, match="raw_body"):
        options_for("x", lake="y", columns="raw_body")


class Storm:
    """A writer with retention and an archiver with compaction, as processes that are killed and restarted."""

    def __init__(self, folder: Path, seed: int, archiver: str) -> None:
        self.archiver = archiver
        self.store, self.lake, self.ledger = folder / "store", folder / "lake", folder / "ledger"
        self._random = random.Random(seed)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.output = (folder / "output").open("wb")

    def __enter__(self) -> Storm:
        Lake.open(self.lake, create=True)
        try:
            self.start("write")
            assert eventually(lambda: len(self.acknowledged()) >= 1000, 60)
            self.start(self.archiver)
            assert eventually(lambda: self.first_offset() > 0, 300), "retention deleted nothing"
        except BaseException:
            self.__exit__()
            raise
        return self

    def first_offset(self) -> int:
        return min((int(entry.name) for entry in (self.store / "commitlog").iterdir()), default=0)

    def start(self, role: str) -> None:
        command = [sys.executable, "-m", "tests.lake.storm", role]
        command += [str(path) for path in (self.store, self.lake, self.ledger)]
        self._running[role] = subprocess.Popen(command, stdout=self.output, stderr=self.output)

    def kill_one(self) -> None:
        """Kill a process at a random moment, mostly while it works, and restart it."""
        role = self._random.choice(["write", self.archiver, self.archiver])
        before = self.progress(role)
        if self._random.random() < 0.8:
            eventually(lambda: self.progress(role) != before)
        time.sleep(self._random.uniform(0, 0.5))
        if role == "spark" and self._random.random() < 0.5:
            os.kill(last_descendant(self._running[role].pid), signal.SIGKILL)
            return
        self.stop(role)
        self.start(role)

    def progress(self, role: str) -> int:
        return self.ledger.stat().st_size if role == "write" else Lake.open(self.lake).snapshot().version

    def stop(self, role: str) -> None:
        process = self._running.pop(role)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def acknowledged(self) -> set[int]:
        lines = self.ledger.read_bytes().split(b"\n")[:-1] if self.ledger.exists() else []
        return {int(line) for line in lines}

    def __exit__(self, *error: object) -> None:
        for role in list(self._running):
            self.stop(role)
        self.output.close()


def last_descendant(pid: int) -> int:
    """Return the newest Python worker of a driver, or its closest ancestor that exists."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for task in Path(f"/proc/{pid}/task").iterdir():  # a JVM starts processes from any of its threads
        children += (task / "children").read_text().split()
    return last_descendant(int(children[-1])) if children else pid


def check_exact(found: list[int], before: set[int]) -> None:
    assert len(found) == len(set(found)), "a row twice"
    assert not before - set(found), "an acknowledged message is missing"


def look_in_time(storm: Storm, look: Callable[[Storm], list[int]]) -> list[int]:
    """Return what `look` sees, checked. If it takes longer than files are kept, a file may be gone: look again."""
    while True:
        before, began = storm.acknowledged(), time.monotonic()
        try:
            found = look(storm)
        except Exception as error:
            if isinstance(error, AssertionError) or time.monotonic() - began < GRACE_S:
                raise
            continue
        check_exact(found, before)
        return found


def ride(folder: Path, seed: int, kills: int, look: Callable[[Storm], list[int]], archiver: str = "archive") -> None:
    """Kill at random and look each time. At the end all is archived, and everything seen is in the lake."""
    seen: set[int] = set()
    with Storm(folder, seed, archiver) as storm:
        for _ in range(kills):
            seen |= set(look_in_time(storm, look))
            storm.kill_one()
        storm.stop("write")
        storm.stop(storm.archiver)
        paths = [str(path) for path in (storm.store, storm.lake, storm.ledger)]
        subprocess.run([sys.executable, "-m", "tests.lake.storm", "finish", *paths], check=True)
        rows = [row["physical_offset"] for row in rows_in(storm.lake)]
        assert rows == sorted(set(rows)) and not storm.acknowledged() - set(rows) and not seen - set(rows)
        assert_holds(storm.lake)
        state = Lake.open(storm.lake).snapshot().stores[str(storm.store)]
        with MessageStore.open(storm.store, read_only=True) as opened:
            assert state.end == opened.end_offset


def by_source(storm: Storm) -> list[int]:
    rows = rows_of(storm.store, lake=str(storm.lake), includeInternal="true", columns="physical_offset")
    return [row["physical_offset"] for row in rows]


def test_log_and_lake_are_exact_while_processes_run_and_are_killed(tmp_path: Path) -> None:
    ride(tmp_path, 1, 3, by_source)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(4))
def test_log_and_lake_are_exact_through_a_hundred_kills(tmp_path: Path, seed: int) -> None:
    ride(tmp_path, seed, 25, by_source)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_log_and_lake_are_exact_while_spark_drivers_and_workers_are_killed(tmp_path: Path) -> None:
    ride(tmp_path, 3, 4, by_source, "spark")
