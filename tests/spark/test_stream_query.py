"""Streams on Spark: restarts, a killed driver, lag in the progress report, a live tail."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException

from mqlake.spark import lag
from tests.helpers import eventually, open_small
from tests.spark.tables import offsets_of, put_messages, write_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]


class Ledger:
    """What foreachBatch saw: one line per batch, written after its rows were read. A repeated batch has two lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        found = sorted(row[0] for row in rows.select("physical_offset").collect())
        with self._path.open("a") as file:
            file.write(json.dumps([batch_id, found]) + "\n")

    def offsets(self) -> list[int]:
        """Return all rows, with those of a repeated batch once. Asserts that both runs read the same."""
        batches: dict[int, list[list[int]]] = defaultdict(list)
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            if line.endswith("]]"):  # otherwise the driver died while writing the line
                number, found = json.loads(line)
                batches[number].append(found)
        for number, runs in batches.items():
            assert all(run == runs[0] for run in runs), f"batch {number} changed when repeated"
        return sorted(offset for runs in batches.values() for offset in runs[0])


def start(
    spark: SparkSession, path: Path, ledger: Ledger, checkpoint: Path, now: bool, **options: Any
) -> StreamingQuery:
    given = {"columns": "physical_offset", **{name: str(value) for name, value in options.items()}}
    rows = spark.readStream.format("mqlake").options(**given).load(str(path))
    trigger = {"availableNow": True} if now else {"processingTime": "0 seconds"}
    writer = rows.writeStream.foreachBatch(ledger).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


def test_a_query_reads_everything_once_over_restarts_and_reports_its_lag(spark: SparkSession, tmp_path: Path) -> None:
    path, ledger = tmp_path / "store", Ledger(tmp_path / "ledger")
    write_store(path)
    query = start(spark, path, ledger, tmp_path / "checkpoint", True, maxBytesPerTrigger="150k")
    query.awaitTermination()
    assert ledger.offsets() == offsets_of(path)
    reports = [progress["sources"][0] for progress in query.recentProgress]
    assert len(reports) >= 3
    ends = [json.loads(report["latestOffset"])["stores"][str(path)] for report in reports]
    assert len(set(ends)) == 1
    reached = [json.loads(report["endOffset"])["stores"][str(path)] for report in reports]
    assert reached == sorted(reached) and reached[-1] == ends[0]
    assert lag(query) == {str(path): 0}
    with open_small(path) as store:
        put_messages(store, 600, 20)
    start(spark, path, ledger, tmp_path / "checkpoint", True, maxRowsPerTrigger=12).awaitTermination()
    assert ledger.offsets() == offsets_of(path)


def test_a_live_query_follows_the_writer(spark: SparkSession, tmp_path: Path) -> None:
    path, ledger = tmp_path / "store", Ledger(tmp_path / "ledger")
    write_store(path, 30)
    before = len(offsets_of(path, topics="topic-1"))
    with open_small(path) as store:
        query = start(spark, path, ledger, tmp_path / "checkpoint", False, startingOffsets="latest", topics="topic-1")
        try:
            assert eventually(lambda: query.lastProgress is not None, 30)
            for number in range(3):
                put_messages(store, 30 + number * 10, 10)
                store.wait_dispatched()
                expected = offsets_of(path, topics="topic-1")[before:]
                assert eventually(lambda wanted=expected: ledger.offsets() == wanted, 30)  # type: ignore[misc]
        finally:
            query.stop()
    assert ledger.offsets() == offsets_of(path, topics="topic-1")[before:]


def test_a_live_query_reads_a_store_that_is_created_under_its_pattern(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    write_store(tmp_path / "data" / "a", 30)
    expected = offsets_of(tmp_path / "data" / "a")
    query = start(spark, tmp_path / "data" / "*", ledger, tmp_path / "checkpoint", False)
    try:
        assert eventually(lambda: ledger.offsets() == expected, 60)
        (tmp_path / "data" / "b" / "commitlog").mkdir(parents=True)
        time.sleep(0.2)
        with open_small(tmp_path / "data" / "b") as store:
            put_messages(store, 0, 40)
            store.wait_dispatched()
            expected = sorted(expected + offsets_of(tmp_path / "data" / "b"))
            assert eventually(lambda: ledger.offsets() == expected, 60)
    finally:
        query.stop()


def test_a_query_whose_store_was_replaced_fails_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    path, ledger = tmp_path / "store", Ledger(tmp_path / "ledger")
    write_store(path, 300)
    start(spark, path, ledger, tmp_path / "checkpoint", True).awaitTermination()
    shutil.rmtree(path)
    write_store(path, 800)
    with pytest.raises(StreamingQueryException, match=f"PositionLost: {path}: the stream is at .* another store"):
        start(spark, path, ledger, tmp_path / "checkpoint", True).awaitTermination()


def test_mistakes_are_reported_when_a_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    path, ledger = tmp_path / "store", Ledger(tmp_path / "ledger")
    write_store(path, 3)

    def failing(place: Path, **options: Any) -> str:
        with pytest.raises((AnalysisException, StreamingQueryException)) as raised:
            start(spark, place, ledger, tmp_path / "checkpoint", True, **options).awaitTermination()
        return str(raised.value)

    assert "option endOffset = '5': not in a stream" in failing(path, endOffset=5)
    assert "there is no such folder" in failing(tmp_path / "nothing")
    with pytest.raises(AnalysisException, match="only for readStream"):
        spark.read.format("mqlake").option("startingOffsets", "latest").load(str(path)).count()


DRIVER = """
import sys
from pathlib import Path
from mqlake.spark import session
from tests.spark.test_stream_query import Ledger, start
path, ledger, checkpoint = map(Path, sys.argv[1:])
spark = session(
    "local[2]", spark_ui_enabled="false", spark_driver_memory="600m", spark_ui_showConsoleProgress="false",
    spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
spark.sparkContext.setLogLevel("OFF")
start(spark, path, Ledger(ledger), checkpoint, False, maxRowsPerTrigger=7).awaitTermination()
"""


def run_and_kill(path: Path, ledger: Path, checkpoint: Path, after_batches: int, rng: random.Random) -> None:
    """Run a separate driver with its JVM and workers, and kill it at a random moment."""
    before = len(ledger.read_text().splitlines()) if ledger.exists() else 0
    command = [sys.executable, "-c", DRIVER, str(path), str(ledger), str(checkpoint)]
    driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        wanted = before + after_batches
        assert eventually(lambda: ledger.exists() and len(ledger.read_text().splitlines()) >= wanted, 120)
        time.sleep(rng.random() * 0.4)
        assert driver.poll() is None
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_the_next_driver_resumes_a_killed_one_without_a_gap_or_a_repeat(spark: SparkSession, tmp_path: Path) -> None:
    path, ledger, checkpoint = tmp_path / "store", tmp_path / "ledger", tmp_path / "checkpoint"
    count = 600
    write_store(path, count)
    run_and_kill(path, ledger, checkpoint, 3, random.Random())
    while len(Ledger(ledger).offsets()) == len(offsets_of(path)):  # it had read everything before the kill
        with open_small(path) as store:
            put_messages(store, count, 600)
        count += 600
        run_and_kill(path, ledger, checkpoint, 3, random.Random())
    assert Ledger(ledger).offsets()
    start(spark, path, Ledger(ledger), checkpoint, True, maxBytesPerTrigger="100k").awaitTermination()
    assert Ledger(ledger).offsets() == offsets_of(path)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_driver_killed_again_and_again_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Messages are appended between the kills."""
    path, ledger, checkpoint = tmp_path / "store", tmp_path / "ledger", tmp_path / "checkpoint"
    rng = random.Random()
    write_store(path, 100)
    for round_number in range(12):
        with open_small(path) as store:
            put_messages(store, 100 + round_number * 60, 60)
        run_and_kill(path, ledger, checkpoint, rng.randint(1, 6), rng)
        found = Ledger(ledger).offsets()
        assert found == offsets_of(path)[: len(found)]
    start(spark, path, Ledger(ledger), checkpoint, True).awaitTermination()
    assert Ledger(ledger).offsets() == offsets_of(path)
