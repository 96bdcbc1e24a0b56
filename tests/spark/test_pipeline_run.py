"""The pipeline on Spark: once, live until it is stopped, and killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from mqlake.lake import Lake
from mqlake.lake.notes import Notes
from mqlake.spark import pipeline, stats
from tests.helpers import eventually, open_small
from tests.lake.jobs import assert_holds, rows_in
from tests.spark.tables import offsets_of, put_messages, write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


def assert_has_all(lake: Path, *stores: Path) -> None:
    expected = [(str(store), offset) for store in stores for offset in offsets_of(store, includeInternal="true")]
    assert [(row["store"], row["physical_offset"]) for row in rows_in(lake)] == sorted(expected)
    keys = sum(len(row["keys"]) for row in rows_in(lake) if row["sys_flag"] & 0xC != 0xC)
    assert len(rows_in(lake, "index")) == keys
    assert_holds(lake)


def test_the_pipeline_processes_what_exists_and_then_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    stores, lake = [tmp_path / "a", tmp_path / "b"], tmp_path / "lake"
    for path in stores:
        write_store(path, 150)
    batches = []
    notes = pipeline(
        spark,
        str(tmp_path / "[ab]"),
        str(lake),
        once=True,
        batch_bytes="100k",
        told=lambda batch, notes: batches.append(batch),
    )
    assert_has_all(lake, *stores)
    assert (notes.state, notes.stages["stats"].rows, notes.batches) == ("done", 300, len(batches))
    assert len(batches) >= 2
    with open_small(stores[0]) as store:
        put_messages(store, 150, 30)
    notes = pipeline(spark, str(tmp_path / "[ab]"), str(lake), once=True)
    assert_has_all(lake, *stores)
    assert notes.stages["archive"].rows == 30
    counted = stats(spark, lake=str(lake)).traffic("store", internal=True).to_pylist()
    assert {row["store"]: row["messages"] for row in counted} == {str(stores[0]): 180, str(stores[1]): 150}
    noted = json.loads((lake / "_mqlake" / "pipeline.json").read_bytes())["stages"]
    assert list(noted) == ["check", "archive", "index", "stats"]
    for stage in noted.values():  # what the report reads
        assert {"position", "lag_bytes", "rows_per_s", "last_error", "at"} <= stage.keys()


def test_a_live_pipeline_follows_the_log_and_stops_after_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    path, lake, stop = tmp_path / "store", tmp_path / "lake", threading.Event()
    states: list[str] = []

    def run() -> None:
        states.append(pipeline(spark, str(path), str(lake), every="50ms", stop=stop).state)

    with open_small(path) as store:
        put_messages(store, 0, 20)
        running = threading.Thread(target=run)
        running.start()
        try:
            for number in (20, 40):
                put_messages(store, number, 20)
                store.wait_dispatched()
                end = store.end_offset

                def arrived(end: int = end) -> bool:
                    known = Lake.open(lake).snapshot().stores if (lake / "_mqlake" / "lake.json").exists() else {}
                    return str(path) in known and known[str(path)].end == end

                assert eventually(arrived, 60)
        finally:
            stop.set()
            running.join(60)
    assert states == ["stopped"]
    assert_has_all(lake, path)
    found = Notes.load(Lake.open(lake))
    assert found is not None and found.state == "stopped" and found.last_error is None


def start_command(path: Path, lake: Path, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mqlake", "pipeline", "run", str(path), "--lake", str(lake), "--every", "10ms"]
    command += ["--batch-bytes", "20k", "--split-size", "8k", "--master", "local[2,3]"]
    with output.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)


def batches_in(output: Path) -> int:
    return output.read_bytes().count(b"\nbatch ") + output.read_bytes().startswith(b"batch ")


def kill_command(path: Path, lake: Path, output: Path, batches: int, rng: random.Random) -> None:
    """Run the command and kill it, with its JVM and workers, at a random moment after so many batches."""
    wanted = (batches_in(output) if output.exists() else 0) + batches
    command = start_command(path, lake, output)
    try:
        assert eventually(lambda: batches_in(output) >= wanted or command.poll() is not None, 200)
        time.sleep(rng.random() * 0.5)
    finally:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()


def archived_end(lake: Path, store: Path) -> int:
    return Lake.open(lake).snapshot().stores[str(store)].end


def test_a_killed_pipeline_resumes_without_a_gap_or_a_repeat(spark: SparkSession, tmp_path: Path) -> None:
    path, lake = tmp_path / "store", tmp_path / "lake"
    count = 400
    write_store(path, count)
    kill_command(path, lake, tmp_path / "output", 2, random.Random())
    while archived_end(lake, path) > offsets_of(path, includeInternal="true")[-1]:  # it finished before the kill
        with open_small(path) as store:
            put_messages(store, count, 400)
        count += 400
        kill_command(path, lake, tmp_path / "output", 2, random.Random())
    assert archived_end(lake, path) > 0
    assert_holds(lake, after_kill=True)
    pipeline(spark, str(path), str(lake), once=True)
    assert_has_all(lake, path)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_command_after_its_batch_with_a_report(tmp_path: Path, number: int) -> None:
    path, lake, output = tmp_path / "store", tmp_path / "lake", tmp_path / "output"
    write_store(path, 100)
    command = start_command(path, lake, output)
    try:
        assert eventually(lambda: batches_in(output) >= 1 or command.poll() is not None, 200)
        os.killpg(command.pid, number)  # to the whole group, as a terminal does
        assert command.wait(120) == 0, output.read_text()
    finally:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
    assert "stopped: " in output.read_text()
    found = Notes.load(Lake.open(lake))
    assert found is not None and found.state == "stopped"
    assert_holds(lake)
    with Lake.open(lake).lock():
        assert start_command(path, lake, output).wait(120) == 3
    assert "LakeInUse" in output.read_text()
