"""The lake's jobs on Spark with a lake in a bucket: no jar, workers read and write it themselves."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from mqlake import MessageStore
from mqlake.errors import StoreError
from mqlake.lake import Lake
from mqlake.lake.verify import verify
from mqlake.spark import archive, compact, pipeline, replay, stats, union, views
from mqlake.torture.pipeline import kill_worker, put, start
from tests.helpers import eventually
from tests.lake.jobs import rows_in
from tests.lake.s3 import Server, running, versitygw
from tests.lake.test_archived import SELECTIONS
from tests.lake.test_delta import by_deltalake, by_mqlake
from tests.spark.tables import offsets_of, put_messages, rows_of, write_store
from tests.spark.test_lake import expected_rows, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server(s3_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("versitygw" if versitygw() else "moto", tmp_path_factory.mktemp("s3"), s3_port) as started:
        yield started


@pytest.fixture
def bucket(server: Server) -> str:
    return f"s3://{server.new_bucket()}"


def test_archive_union_compaction_and_replay_work_with_a_bucket(
    spark: SparkSession, tmp_path: Path, bucket: str
) -> None:
    store, lake = tmp_path / "store", f"{bucket}/lake"
    write_store(store, 500)
    archive(spark, str(store), lake, split_size="200k", step_bytes=200_000)
    with MessageStore.open(store) as opened:
        put_messages(opened, 500, 200)
    for options in SELECTIONS:
        assert rows(union(spark, str(store), lake, **options)) == expected_rows(store, **options), options
    pinned = union(spark, str(store), lake, includeInternal=True)
    archive(spark, str(store), lake)
    compact(spark, lake)
    assert rows(pinned) == expected_rows(store, includeInternal="true"), "the old files are still there"
    assert rows(union(spark, None, lake, keys="key-17", topics="topic-1")) == expected_rows(
        store, keys="key-17", topics="topic-1"
    )
    assert views(spark, (), lake).sql("select count(*) from archive").collect()[0][0] == len(rows_of(store))
    assert verify(Lake.open(lake)) == []
    replay(spark, lake, str(tmp_path / "again"))
    bodies = [row["body"] for row in rows_of(tmp_path / "again", includeInternal="true")]
    assert bodies == [row["body"] for row in rows_of(store, includeInternal="true")]


def test_the_pipeline_fills_a_lake_in_a_bucket(spark: SparkSession, tmp_path: Path, bucket: str) -> None:
    store, lake = tmp_path / "store", f"{bucket}/lake"
    write_store(store, 300)
    notes = pipeline(spark, str(store), lake, once=True, batch_bytes="60k", split_size="30k")
    assert (notes.state, notes.stages["stats"].rows) == ("done", 300) and notes.batches > 1
    assert verify(Lake.open(lake)) == []
    counted = stats(spark, lake=lake).traffic("store", internal=True).to_pylist()
    assert [row["messages"] for row in counted] == [300]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_pipeline_into_a_bucket_is_exact_while_it_and_the_server_are_killed(
    tmp_path: Path, s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver, workers and server die at random moments. In the end every engine has every record once."""
    rng = random.Random(13)
    with running("versitygw", tmp_path, s3_port) as server:
        for name, value in server.options.items():
            monkeypatch.setenv(name, value)
        lake = f"s3://{server.new_bucket()}/lake"
        for life in range(5):
            put(tmp_path / "store", life)
            command = start(tmp_path, lake, rng, *(["--every", "10ms"] if life < 4 else ["--once"]))
            if life == 4:
                assert command.wait(400) == 0, (tmp_path / "command.txt").read_text()[-2000:]
                break
            before = version_of(lake)
            assert eventually(lambda before=before: version_of(lake) > before + 1, 200)  # type: ignore[misc]
            for _ in range(2):
                time.sleep(rng.uniform(0, 1))
                server.kill()
                kill_worker(command.pid, rng)
                time.sleep(rng.uniform(0, 0.5))
                server.start()
            time.sleep(rng.uniform(0, 1))
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
        opened = Lake.open(lake)
        assert verify(opened) == []
        offsets = sorted(row["physical_offset"] for row in rows_in(lake))
        assert offsets == offsets_of(tmp_path / "store", includeInternal="true")
        newest = opened.snapshot().version
        assert by_deltalake(lake, newest, server.options) == by_mqlake(opened, newest)


def version_of(lake: str) -> int:
    try:
        return Lake.open(lake).snapshot().version
    except StoreError:
        return 0
