"""The pipeline processes every record once, whatever is repeated and wherever it stopped. These tests need no JVM."""

from __future__ import annotations

import contextlib
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

from click.testing import CliRunner
from pyspark.errors import PySparkException

from mqlake import MessageStore
from mqlake.cli.main import mqlake
from mqlake.errors import (
    InvalidConfig,
    LakeConflict,
    LakeGap,
    LakeInUse,
    NotAStore,
    StageFailed,
    StoreError,
    WrongLake,
)
from mqlake.files.names import file_name
from mqlake.lake import Lake
from mqlake.lake.notes import Notes
from mqlake.report import render
from mqlake.spark import archive, compact
from mqlake.spark import pipeline as run_pipeline
from mqlake.spark.jobs.logs import Logs
from mqlake.spark.jobs.report import report_of
from mqlake.spark.jobs.stages import STAGES
from mqlake.store.gates import Gates
from tests.helpers import LOG_FILE, open_small
from tests.lake.jobs import NO_SPARK, assert_holds, rows_in, run_here, run_jobs_here
from tests.spark.tables import offsets_of, put_messages, stats_here, write_store

module = importlib.import_module("mqlake.spark.jobs.pipeline")  # in the package this name is the function


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


def new_run(lake: Path, *stores: Path | str, limit: int = 80 << 10, **options: Any) -> Any:
    opened = Lake.open(lake, create=True)
    given = {"split_bytes": 30 << 10, "add_store": False, "accept_gap": False, **options}
    strict, told = given.pop("strict", False), given.pop("told", lambda batch, notes: None)
    logs = Logs(opened, [str(store) for store in stores], **given)
    return module.Pipeline(NO_SPARK, opened, logs, limit, strict=strict, told=told)


def take(run: Any) -> int:
    """Run one batch. Return its bytes."""
    size: int = run.batch(run._look())
    return size


def take_all(run: Any) -> int:
    """Run every batch that exists. Return how many there were."""
    return sum(1 for _ in iter(lambda: take(run), 0))


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
    assert take_all(run) > 2
    assert_has_all(lake, store, other)
    ends = {str(path): run._lake.snapshot().stores[str(path)].end for path in (store, other)}
    for stage in run.notes.stages.values():
        assert (stage.rows, stage.position, stage.lag_bytes) == (420, ends, 0)
    for path in (store, other):
        assert list(Gates(path / "mqlake" / "gates").offsets().values()) == [ends[str(path)]]


def test_a_batch_repeated_after_its_commit_writes_nothing(store: Path, lake: Path) -> None:
    run = new_run(lake, store)
    while True:
        logs = run._look()
        planned = {path: replace(log) for path, log in logs.items()}
        if not run.batch(logs):
            break
        before = run._lake.snapshot().version, sorted(lake.rglob("*.parquet"))
        run.batch(planned)
        assert (run._lake.snapshot().version, sorted(lake.rglob("*.parquet"))) == before
    assert_has_all(lake, store)


class Died(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("point", [*STAGES, "before the commit", "after the commit", "before the gates"])
def test_a_run_that_dies_at_any_point_is_resumed_exactly(
    store: Path, lake: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for life in range(3):
        run = new_run(lake, store, limit=(20 if life % 2 else 15) << 10, split_bytes=8 << 10)
        with monkeypatch.context() as patched, pytest.raises(Died):
            die_at(patched, run, point, after=life % 2)
            while True:
                take(run)
    take_all(new_run(lake, store))
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
    run = new_run(lake, store)
    take(run)
    logs = run._look()
    archive(NO_SPARK, str(store), str(lake))
    run.batch(logs)
    assert len(rows_in(lake)) == 300
    with open_small(store) as opened:
        put_messages(opened, 300, 60)
    take_all(run)
    assert len(rows_in(lake)) == 360
    assert_holds(lake)


def test_a_batch_that_overlaps_what_another_job_archived_is_refused_whole(store: Path, lake: Path) -> None:
    run = new_run(lake, store, split_bytes=8 << 10)
    logs = run._look()
    take(new_run(lake, store, limit=20 << 10, split_bytes=5 << 10))
    with pytest.raises(LakeConflict, match="the lake's end"):
        run.batch(logs)
    take_all(run)
    assert_has_all(lake, store)


def test_a_run_fails_if_another_store_replaced_its_only_one(store: Path, lake: Path) -> None:
    run = new_run(lake, store)
    take(run)
    shutil.rmtree(store)
    write_store(store, 300)
    with pytest.raises(WrongLake):
        take(run)


def test_a_store_that_appears_later_is_archived(store: Path, lake: Path, tmp_path: Path) -> None:
    run = new_run(lake, tmp_path / "store*")
    take_all(run)
    (tmp_path / "store-2").mkdir()
    take_all(run)
    assert list(run.notes.failed_stores) == [str(tmp_path / "store-2")], "it is no store yet"
    (tmp_path / "store-2").rmdir()
    write_store(tmp_path / "store-2", 40)
    take_all(run)
    assert_has_all(lake, store, tmp_path / "store-2")
    assert run.notes.failed_stores == {}


@pytest.mark.parametrize("what", ["gone", "replaced", "cleaned too early", "a stage fails"])
def test_a_store_that_fails_is_reported_and_keeps_no_other_from_being_archived(
    store: Path, lake: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, told = tmp_path / "other", []
    write_store(other, 100)
    run = new_run(lake, store, other, told=lambda batch, notes: told.append(batch))
    take(run)
    with MessageStore.open(other) as opened:
        put_messages(opened, 100, 200)
    expected = break_store(other, what, monkeypatch)
    take_all(run)
    rows = [row["physical_offset"] for row in rows_in(lake) if row["store"] == str(store)]
    assert rows == offsets_of(store, includeInternal="true"), "the store that is whole is archived"
    assert_holds(lake)
    assert expected in run.notes.failed_stores[str(other)]
    assert expected in Notes.load(run._lake).failed_stores[str(other)]  # type: ignore[union-attr]
    reported = [batch.failed[str(other)] for batch in told if str(other) in batch.failed]
    assert len(reported) >= 1 and expected in reported[0]
    assert str(other) in status(lake)
    with pytest.raises(StoreError):
        take(new_run(lake, store, other, strict=True))


def test_the_command_names_stores_that_it_left_out_and_exits_with_3(
    store: Path, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqlake.cli.pipeline.spark_session", lambda master: contextlib.nullcontext())
    command = ["pipeline", "run", str(store), str(tmp_path / "gone"), "--lake", str(lake), "--once"]
    result = CliRunner().invoke(mqlake, command)
    assert result.exit_code == 3
    assert f"left out: {tmp_path / 'gone'}: NotAStore" in result.stderr
    assert_has_all(lake, store)
    assert "NotAStore" in CliRunner().invoke(mqlake, [*command, "--strict"]).stderr


@pytest.mark.parametrize("name", ["a-first", "z-last"])
def test_an_empty_folder_is_left_out_wherever_it_comes_under_a_pattern(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("mqlake.cli.pipeline.spark_session", lambda master: contextlib.nullcontext())
    write_store(tmp_path / "brokers" / "good", 40)
    (tmp_path / "brokers" / name).mkdir()
    command = ["pipeline", "run", str(tmp_path / "brokers" / "*"), "--lake", str(lake), "--once"]
    result = CliRunner().invoke(mqlake, command)
    assert result.exit_code == 3
    assert f"left out: {tmp_path / 'brokers' / name}: NotAStore" in result.stderr
    assert_has_all(lake, tmp_path / "brokers" / "good")


def break_store(store: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a store unreadable. Return the name of the error that says so."""
    if what == "cleaned too early":
        for file in sorted((store / "commitlog").iterdir())[:-1]:
            file.unlink()
        return "LakeGap"
    if what == "a stage fails":
        index = STAGES["index"]

        def failing(lake: str, work: Any) -> Any:
            if work.member.path == store:
                raise OSError(5, "Input/output error")
            return index(lake, work)

        monkeypatch.setitem(STAGES, "index", failing)
        return "Input/output error"
    shutil.rmtree(store)
    if what == "replaced":
        write_store(store, 300)
        return "WrongLake"
    return "NotAStore"


def test_damage_is_a_finding_and_a_gap_and_stops_nothing(store: Path, lake: Path) -> None:
    hit = offsets_of(store, includeInternal="true")[100]
    with (store / "commitlog" / file_name(hit - hit % LOG_FILE)).open("r+b") as file:
        file.seek(hit % LOG_FILE + 4)
        file.write(b"????")
    run = new_run(lake, store)
    take_all(run)
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
    take_all(new_run(lake, store))
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
    assert take_all(run) > 2

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
    take_all(run)
    assert len(rows_in(lake)) == 339


def test_invalid_sizes_and_stores_are_refused_before_a_lake_is_created(store: Path, lake: Path, tmp_path: Path) -> None:
    for name, text in (("batch_bytes", "x"), ("split_size", "0"), ("every", "10")):
        given: dict[str, Any] = {name: text}
        with pytest.raises(InvalidConfig, match=f"^{name} = '{text}': "):
            run_pipeline(NO_SPARK, str(store), str(lake), **given)
    with pytest.raises(NotAStore, match="there is no such folder"):
        run_pipeline(NO_SPARK, str(tmp_path / "none"), str(lake))
    assert not lake.exists()


def test_a_store_that_is_gone_or_cleaned_too_early_ends_a_run_that_has_no_other(store: Path, lake: Path) -> None:
    run_pipeline(NO_SPARK, str(store), str(lake), once=True)
    with MessageStore.open(store) as opened:
        put_messages(opened, 300, 500)
    for file in sorted((store / "commitlog").iterdir())[:-1]:
        file.unlink()
    with pytest.raises(LakeGap, match="--accept-gap"):
        run_pipeline(NO_SPARK, str(store), str(lake), once=True)
    assert "LakeGap" in status(lake)
    assert run_pipeline(NO_SPARK, str(store), str(lake), once=True, accept_gap=True).state == "done"
    run = new_run(lake, store)
    shutil.rmtree(store)
    with pytest.raises(NotAStore, match="there is no such folder"):
        run.until(0.01, threading.Event())
    assert "NotAStore" in status(lake)


def test_a_stage_that_fails_names_itself_and_nothing_counts(
    store: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(lake: str, work: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(STAGES, "index", full)
    with pytest.raises(StageFailed, match=r"index of scan of .* No space left") as raised:
        run_pipeline(NO_SPARK, str(store), str(lake), once=True)
    assert Lake.open(lake).snapshot().version == 0
    notes = Notes.load(Lake.open(lake))
    assert notes is not None
    assert notes.stages["index"].last_error == notes.last_error == f"StageFailed: {raised.value}"
    assert notes.stages["archive"].last_error is None
    text = f"Traceback (most recent call last):\nmqlake.errors.StageFailed: {raised.value}\n\n=== Query"
    assert module.failure(PySparkException(text)) == ("index", f"StageFailed: {raised.value}")


def test_a_run_stops_between_two_batches_and_the_next_one_continues(store: Path, lake: Path) -> None:
    stop = threading.Event()

    def stopping(batch: Any, notes: Any) -> None:
        stop.set()

    notes = run_pipeline(NO_SPARK, str(store), str(lake), batch_bytes="50k", split_size="30k", told=stopping, stop=stop)
    assert (notes.state, notes.batches) == ("stopped", 1)
    notes = run_pipeline(NO_SPARK, str(store), str(lake), batch_bytes="50k", split_size="30k", once=True)
    assert notes.state == "done" and notes.batches > 1
    assert_has_all(lake, store)


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
    notes = run_pipeline(NO_SPARK, str(store), str(lake), once=True)
    archived = Lake.open(lake).snapshot().stores[str(store)].end
    lags = {name: stage.lag_bytes for name, stage in notes.stages.items()}
    assert lags == {"check": archived, "archive": 0, "index": 0, "stats": archived}, "nothing was new, and it lags"
    run = new_run(lake, store)
    end = run._lake.snapshot().stores[str(store)].end
    with open_small(store) as opened:
        put_messages(opened, 300, 10)
    take_all(run)
    new_end = run._lake.snapshot().stores[str(store)].end
    found = {name: stage.position[str(store)] for name, stage in run.notes.stages.items()}
    assert found == {"check": 0, "archive": new_end, "index": new_end, "stats": 0}
    assert run.notes.stages["stats"].lag_bytes == new_end > end


def test_status_needs_only_the_files_of_the_lake(store: Path, lake: Path) -> None:
    run = new_run(lake, store, limit=40 << 10)
    assert "never run" in status(lake)
    take(run)
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
