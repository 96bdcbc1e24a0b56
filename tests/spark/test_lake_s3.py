"""The lake's jobs on Spark with a lake in a bucket: no jar, workers read and write it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from mqlake import MessageStore
from mqlake.lake import Lake
from mqlake.lake.verify import verify
from mqlake.spark import archive, compact, pipeline, replay, stats, union, views
from tests.lake.s3 import Server, running, versitygw
from tests.lake.test_archived import SELECTIONS
from tests.spark.tables import put_messages, rows_of, write_store
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
