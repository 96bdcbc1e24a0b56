"""The pipeline processes every record once, whatever is repeated and wherever it stopped. These tests need no JVM."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from mqlake import MessageStore
from mqlake.errors import InvalidConfig, LakeGap, LakeInUse, NotAStore, StageFailed, WrongLake
from mqlake.files.names import file_name
from mqlake.lake import Lake
from mqlake.lake.notes import Notes
from mqlake.lake.stores import Member, admit
from mqlake.report import render
from mqlake.spark import archive, compact
from mqlake.spark import pipeline as run_pipeline
from mqlake.spark.jobs.archive import prepare
from mqlake.spark.jobs.ranges import RANGES, RangeReader
from mqlake.spark.jobs.report import report_of
from mqlake.spark.jobs.stages import STAGES
from mqlake.spark.options import parse_stream_options
from mqlake.store.gates import Gates
from tests.helpers import LOG_FILE, open_small
from tests.lake.jobs import NO_SPARK, assert_holds, rows_in, run_here, run_jobs_here
from tests.spark.streams import Engine
from tests.spark.tables import offsets_of, put_messages, stats_here, write_store

module = importlib.import_module("mqlake.spark.jobs.pipeline")  # in the package this name is the function


class Row(dict[str, Any]):
    def asDict(self) -> dict[str, Any]:
        return dict(self)


class Rows:
    """A DataFrame of ranges."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def collect(self) -> list[Row]:
        return [Row(row) for row in self._rows]


class Ranges(Engine):
    """Call the stream of ranges as Spark does."""

    def restart(self, path: Path | str, **options: Any) -> None:
        given = {"via": "scan", "includeInternal": "true", "splitSize": "30k", "maxBytesPerTrigger": "80k"}
        given |= {"path": str(path), **{name: str(value) for name, value in options.items()}}
        self.reader = RangeReader(*parse_stream_options(given), RANGES)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_jobs_here(monkeypatch)
    monkeypatch.setattr(module, "run_tasks", run_here)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    write_store(path, 300)
    return path


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def new_run(lake: Path, *stores: Path, **options: Any) -> Any:
    opened = Lake.open(lake, create=True)
    members = {str(member.path): prepare(opened, member) for member in admit(opened, stores, **options)}
    return module.Pipeline(NO_SPARK, opened, members, lambda batch, notes: None)


def take_all(run: Any, ranges: Ranges) -> int:
    """Run every batch that exists. Return how many there were."""
    batches = ranges.batches()
    for number, rows in enumerate(batches):
        run.batch(Rows(rows), number)
    return len(batches)


def assert_has_all(lake: Path, *stores: Path) -> None:
    """Assert that each record of the logs is in one row, all tables cover the logs, and the index has each key once."""
    expected = [(str(store), offset) for store in stores for offset in offsets_of(store, includeInternal="true")]
    assert [(row["store"], row["physical_offset"]) for row in rows_in(lake)] == sorted(expected)
    assert_holds(lake)
    keys = sum(len(row["keys"]) for row in rows_in(lake) if row["sys_flag"] & 0xC != 0xC)
    assert len(rows_in(lake, "index")) == keys
    snapshot = Lake.open(lake).snapshot()
    for table in ("findings", "messages", "index", "stats"):
        for name, state in snapshot.stores.items():
            parts = sorted({(file.start, file.end) for file in snapshot.files(table, name)})
            assert (parts[0][0], parts[-1][1]) == (state.start, state.end), table
            assert all(before[1] == after[0] for before, after in itertools.pairwise(parts)), table


def test_every_stage_has_every_byte_of_every_store(store: Path, lake: Path, tmp_path: Path) -> None:
    other = tmp_path / "store-2"
    write_store(other, 120)
    run = new_run(lake, store, other)
    assert take_all(run, Ranges(tmp_path / "store*")) > 3
    assert_has_all(lake, store, other)
    ends = {str(path): run._lake.snapshot().stores[str(path)].end for path in (store, other)}
    for stage in run.notes.stages.values():
        assert (stage.rows, stage.position, stage.lag_bytes) == (420, ends, 0)
    for path in (store, other):
        assert list(Gates(path / "mqlake" / "gates").offsets().values()) == [ends[str(path)]]


def test_a_batch_repeated_after_its_commit_writes_nothing(store: Path, lake: Path) -> None:
    run = new_run(lake, store)
    for number, rows in enumerate(Ranges(store).batches()):
        run.batch(Rows(rows), number)
        before = run._lake.snapshot().version, sorted(lake.rglob("*.parquet"))
        run.batch(Rows(rows), number)
        assert (run._lake.snapshot().version, sorted(lake.rglob("*.parquet"))) == before
    assert_has_all(lake, store)


class Died(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("point", [*STAGES, "before the commit", "after the commit", "before the gates"])
def test_a_run_that_dies_at_any_point_is_resumed_exactly(
    store: Path, lake: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = Ranges(store)
    for life in range(3):
        run, committed = new_run(lake, store), list(ranges.offsets)
        with monkeypatch.context() as patched, pytest.raises(Died):
            die_at(patched, run, point, after=life % 2)
            while True:
                run.batch(Rows(ranges.batch()), 0)
                committed = list(ranges.offsets)
        ranges.offsets = committed  # Spark repeats a batch that it has not marked as done
        ranges.restart(store, maxBytesPerTrigger="50k")
    take_all(new_run(lake, store), ranges)
    assert_has_all(lake, store)


def die_at(patched: pytest.MonkeyPatch, run: Any, point: str, after: int) -> None:
    """Let a point pass so many times, and die the next time."""
    passes = itertools.count()

    def dying(work: Callable[..., Any], *, works_first: bool) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            dies = next(passes) == after
            if dies and not works_first:
                raise Died
            found = work(*given, **named)
            if dies:
                raise Died
            return found

        return wrapped

    if point in STAGES:
        patched.setitem(STAGES, point, dying(STAGES[point], works_first=True))
    elif point == "before the gates":
        patched.setattr(module, "move", dying(module.move, works_first=False))
    else:
        patched.setattr(run._lake, "commit", dying(run._lake.commit, works_first=point == "after the commit"))


def test_what_another_job_archived_meanwhile_is_not_archived_again(store: Path, lake: Path) -> None:
    ranges = Ranges(store)
    run = new_run(lake, store)
    run.batch(Rows(ranges.batch()), 0)
    run.batch(Rows(ranges.batch()), 1)
    planned = ranges.batch()
    with open_small(store) as opened:
        put_messages(opened, 300, 60)
    run._lake.commit(*cut_archive(lake, store, planned))
    run.batch(Rows(planned), 2)
    take_all(run, ranges)
    assert len(rows_in(lake)) == 360
    assert_holds(lake)


def cut_archive(lake: Path, store: Path, planned: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Return the first half of the first planned range, as the archive job writes it."""
    from mqlake.lake import harvest
    from mqlake.spark.jobs.archive_split import archive_split
    from mqlake.spark.split import Split

    row = {name: value for name, value in planned[0].items() if name != "queues"}
    middle = next(o for o in offsets_of(store, includeInternal="true") if o > (row["start"] + row["end"]) // 2)
    [member] = admit(Lake.open(lake), [store])
    return harvest(archive_split(str(lake), member, Split(**{**row, "end": middle})))


def test_the_pipeline_stops_at_a_gap_in_the_lake(store: Path, lake: Path) -> None:
    run, ranges = new_run(lake, store), Ranges(store)
    run.batch(Rows(ranges.batch()), 0)
    ranges.batch()
    with pytest.raises(LakeGap, match="the lake ends at 0"):
        run.batch(Rows(ranges.batch()), 2)
    assert run._lake.snapshot().version == 0


def test_the_pipeline_stops_if_another_store_replaced_a_known_one(store: Path, lake: Path) -> None:
    run, ranges = new_run(lake, store), Ranges(store)
    for number in range(3):
        run.batch(Rows(ranges.batch()), number)
    planned = ranges.batch()
    shutil.rmtree(store)
    write_store(store, 300)
    with pytest.raises(WrongLake):
        run.batch(Rows(planned), 3)


def test_a_store_that_appears_later_is_archived(store: Path, lake: Path, tmp_path: Path) -> None:
    run, ranges = new_run(lake, store), Ranges(tmp_path / "store*")
    take_all(run, ranges)
    write_store(tmp_path / "store-2", 40)
    take_all(run, ranges)
    assert_has_all(lake, store, tmp_path / "store-2")


def test_damage_is_a_finding_and_a_gap_and_stops_nothing(store: Path, lake: Path) -> None:
    hit = offsets_of(store, includeInternal="true")[100]
    with (store / "commitlog" / file_name(hit - hit % LOG_FILE)).open("r+b") as file:
        file.seek(hit % LOG_FILE + 4)
        file.write(b"????")
    run = new_run(lake, store)
    take_all(run, Ranges(store))
    assert len(rows_in(lake)) == 299
    assert_holds(lake)
    found = [row for row in rows_in(lake, "findings") if row["severity"] == "error"]
    assert hit in {row["physical_offset"] for row in found}
    assert {row["store"] for row in found} == {str(store)}


def test_a_report_shows_findings_of_the_lake_and_damage_of_the_log(store: Path, lake: Path) -> None:
    hit = offsets_of(store, includeInternal="true")[100]
    with (store / "commitlog" / file_name(hit - hit % LOG_FILE)).open("r+b") as file:
        file.seek(hit % LOG_FILE + 4)
        file.write(b"????")
    take_all(new_run(lake, store), Ranges(store))
    made = report_of(stats_here(str(store), lake=str(lake)), lake=str(lake))
    assert [(row.store, row.offset) for row in made.damage] == [(str(store), hit)]
    assert made.lake is not None and made.lake.check is not None and made.lake.run is not None
    state = Lake.open(lake).snapshot().stores[str(store)]
    found = made.lake.check
    assert found.bytes == state.end - state.start
    assert sum(found.counts.values()) == len(found.worst) == len(rows_in(lake, "findings"))
    first = found.worst[0]
    assert (first.store, first.severity, first.promise) == (str(store), "error", "record-magic")
    assert first.place == f"commitlog/{file_name(hit - hit % LOG_FILE)} at {hit % LOG_FILE:,}"
    assert [row.severity for row in found.worst] == sorted(row.severity for row in found.worst), "the worst first"
    assert made.lake.stages[0].messages == 299
    text = render(made)
    assert "record-magic" in text and escape(first.found) in text


def test_a_compaction_merges_all_tables_and_changes_no_result(store: Path, lake: Path) -> None:
    hit = offsets_of(store, includeInternal="true")[100]
    with (store / "commitlog" / file_name(hit - hit % LOG_FILE)).open("r+b") as file:
        file.seek(hit % LOG_FILE + 4)
        file.write(b"????")
    run = new_run(lake, store)
    assert take_all(run, Ranges(store)) > 2

    def answers() -> tuple[Any, ...]:
        made = report_of(stats_here((), lake=str(lake)), lake=str(lake), title="")
        assert made.lake is not None
        positions = [(stage.name, stage.position) for stage in made.lake.stages]
        return (
            replace(made, made_ms=0, lake=None),
            made.lake.check,
            positions,
            rows_in(lake),
            sorted(map(repr, rows_in(lake, "index"))),
        )

    before = answers()
    done = compact(NO_SPARK, str(lake))
    assert answers() == before
    assert_holds(lake)
    snapshot = Lake.open(lake).snapshot()
    assert [len(snapshot.files(table)) for table in ("index", "stats", "findings")] == [1, 1, 1]
    assert done.files_before > done.files_after == 3 + len(snapshot.files("messages"))
    with open_small(store) as opened:
        put_messages(opened, 300, 40)
    state = snapshot.stores[str(store)]
    take_all(run, Ranges(store, startingOffsets=json.dumps({str(store): state.end})))
    assert len(rows_in(lake)) == 339


def test_invalid_sizes_and_stores_are_refused_before_a_lake_is_created(store: Path, lake: Path, tmp_path: Path) -> None:
    for name, text in (("batch_bytes", "x"), ("split_size", "0"), ("every", "10")):
        given: dict[str, Any] = {name: text}
        with pytest.raises(InvalidConfig, match=f"^{name} = '{text}': "):
            run_pipeline(NO_SPARK, str(store), str(lake), **given)
    with pytest.raises(NotAStore, match="there is no such folder"):
        run_pipeline(NO_SPARK, str(tmp_path / "none"), str(lake))
    assert not lake.exists()


class FailedQuery:
    """A query that ended with an error of Spark's."""

    isActive = False

    def awaitTermination(self, timeout: float) -> bool:
        raise PySparkException("PositionLost: set failOnDataLoss=false")


def test_a_store_that_is_gone_or_cleaned_too_early_raises_the_error_of_the_next_run(store: Path, lake: Path) -> None:
    run = new_run(lake, store)
    take_all(run, Ranges(store))
    with pytest.raises(PySparkException, match="PositionLost"):
        run.until(FailedQuery(), threading.Event())
    with MessageStore.open(store) as opened:
        put_messages(opened, 300, 500)
    for file in sorted((store / "commitlog").iterdir())[:-1]:
        file.unlink()
    with pytest.raises(LakeGap, match="--accept-gap"):
        run.until(FailedQuery(), threading.Event())
    assert "LakeGap" in status(lake)
    shutil.rmtree(store)
    with pytest.raises(NotAStore, match="there is no such folder"):
        run.until(FailedQuery(), threading.Event())


def test_a_stage_that_fails_names_itself_and_nothing_counts(
    store: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ranges = new_run(lake, store), Ranges(store)
    run.batch(Rows(ranges.batch()), 0)

    def full(lake: str, work: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(STAGES, "index", full)
    with pytest.raises(StageFailed, match=r"index of scan of .* No space left") as raised:
        run.batch(Rows(ranges.batch()), 1)
    assert run._lake.snapshot().version == 0
    text = (
        f"[STREAM_FAILED] …\nTraceback (most recent call last):\nmqlake.errors.StageFailed: {raised.value}\n\n=== Query"
    )
    assert module.failure(text) == ("index", f"StageFailed: {raised.value}")
    run.notes.failed(*module.failure(text))
    assert run.notes.stages["index"].last_error == run.notes.last_error != run.notes.stages["archive"].last_error


# ---- the checkpoint


def write_checkpoint(folder: Path, ends: list[dict[str, int]], commits: int) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, stores in enumerate(ends):
        content = "v1\n{}\n" + json.dumps({"v": 1, "stores": stores})
        (folder / "offsets" / str(number)).write_text(content)
    for number in range(commits):
        (folder / "commits" / str(number)).write_text("v1\n{}")


def test_a_checkpoint_is_resumed_only_if_the_lake_has_as_much(store: Path, tmp_path: Path) -> None:
    a, b, c = offsets_of(store, includeInternal="true")[10:40:10]
    ends = [{str(store): end} for end in (a, b, c)]

    def agrees(commits: int, lake_end: int, *, path: Path = store) -> bool:
        folder = tmp_path / f"checkpoint-{commits}"
        if not folder.exists():
            write_checkpoint(folder, ends, commits)
        found: bool = module.agrees(folder, [Member(str(path), "id", path, lake_end)])
        return found

    assert agrees(3, c) and agrees(3, c + 1000)
    assert not agrees(3, b), "the lake was restored from an older copy"
    assert agrees(2, b) and agrees(2, c), "the last batch is repeated"
    assert not agrees(2, a)
    other = tmp_path / "other"
    write_store(other, 3)
    assert not agrees(3, c, path=other)
    assert not module.agrees(tmp_path / "none", [])
    (tmp_path / "checkpoint-3" / "offsets" / "2").write_bytes(b"")
    assert not agrees(3, c), "a power cut may leave the file empty"


# ---- refusals and status


def test_a_second_pipeline_on_a_lake_is_refused(store: Path, lake: Path) -> None:
    with Lake.open(lake, create=True).lock(), pytest.raises(LakeInUse, match=f"process {os.getpid()}"):
        run_pipeline(NO_SPARK, str(store), str(lake), once=True)


def test_a_lake_of_other_stores_is_refused(store: Path, lake: Path, tmp_path: Path) -> None:
    archive(NO_SPARK, str(store), str(lake))
    write_store(tmp_path / "other", 3)
    with pytest.raises(WrongLake, match="--add-store"):
        run_pipeline(NO_SPARK, str(tmp_path / "other"), str(lake), once=True)


def test_an_interval_without_a_unit_is_refused() -> None:
    assert [module.milliseconds(text) for text in ("500ms", "10s", "2 m", "1h")] == [500, 10_000, 120_000, 3_600_000]
    with pytest.raises(InvalidConfig, match="every = 'soon': a time like"):
        module.milliseconds("soon")


STATUS = """
import sys
sys.modules["pyspark"] = None
from mqlake.cli.main import main
sys.argv = ["mqlake", "pipeline", "status", "--lake", *sys.argv[1:]]
main()
"""


def status(lake: Path, *more: str) -> str:
    command = [sys.executable, "-c", STATUS, str(lake), *more]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_ranges_archived_outside_the_pipeline_are_missing_from_the_other_stages(store: Path, lake: Path) -> None:
    archive(NO_SPARK, str(store), str(lake))
    run = new_run(lake, store)
    end = run._lake.snapshot().stores[str(store)].end
    with open_small(store) as opened:
        put_messages(opened, 300, 10)
    take_all(run, Ranges(store, startingOffsets=json.dumps({str(store): end})))
    new_end = run._lake.snapshot().stores[str(store)].end
    found = {name: stage.position[str(store)] for name, stage in run.notes.stages.items()}
    assert found == {"check": 0, "archive": new_end, "index": new_end, "stats": 0}
    assert run.notes.stages["stats"].lag_bytes == new_end > end


def test_status_needs_only_the_files_of_the_lake(store: Path, lake: Path) -> None:
    run, ranges = new_run(lake, store), Ranges(store)
    assert "never run" in status(lake)
    for number in range(3):
        run.batch(Rows(ranges.batch()), number)
    shutil.rmtree(store)
    end = run._lake.snapshot().stores[str(store)].end
    printed = json.loads(status(lake, "--json"))
    assert printed["state"] == "running"
    assert printed["stages"]["index"]["position"] == {str(store): end}
    assert printed["stages"]["stats"]["lag_bytes"] == printed["latest"][str(store)] - end > 0
    notes = Notes.load(run._lake)
    assert notes is not None
    notes.pid = 2**22 - 1
    notes.failed("archive", "StageFailed: archive of it: no")
    notes.save(run._lake)
    assert "no" in status(lake)
    notes.state = "running"
    notes.save(run._lake)
    assert json.loads(status(lake, "--json"))["state"] == "died"
    (lake / "_mqlake" / "pipeline.json").write_bytes(b"{")
    assert "never run" in status(lake)
