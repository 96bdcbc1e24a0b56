"""The lake's jobs on Spark: archive, compaction and union."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from mqlake import Message, MessageStore
from mqlake.errors import CorruptRecord, InvalidConfig, WrongLake
from mqlake.lake import Lake
from mqlake.lake.paths import table_path
from mqlake.lake.stores import admit
from mqlake.lake.verify import verify
from mqlake.spark import archive, compact, typed, union, views
from mqlake.spark.jobs.archive import plan_splits
from tests.helpers import open_small
from tests.lake.test_archive import flip
from tests.lake.test_archived import SELECTIONS, Storm, as_text, ride
from tests.spark.tables import put_messages, rows_of, write_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

SOME = [SELECTIONS[number] for number in (1, 3, 4, 6)]
"""The others are similar. `tests/lake` has all of them, without a JVM."""


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.collect()]
    for row in found:
        for name in ("born_timestamp", "store_timestamp"):
            if name in row:
                row[name] = row[name].timestamp()
    return sorted(found, key=as_text)


def expected_rows(store: Path, **options: Any) -> list[dict[str, Any]]:
    found = rows_of(store, **options)
    for row in found:
        for name in ("born_timestamp", "store_timestamp"):
            if name in row:
                row[name] = row[name].timestamp()
    return sorted(found, key=as_text)


def test_archive_compaction_and_union_give_every_message_once_with_every_selection(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The union was made before more was archived and deleted, and is run after."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    write_store(store, 700)
    (done,) = archive(spark, str(store), str(lake), split_size="200k", step_bytes=200_000)
    assert done.rows == 700 and Lake.open(lake).snapshot().version > 1
    with MessageStore.open(store) as opened:
        put_messages(opened, 700, 700)
        opened.wait_dispatched()
        expected = [expected_rows(store, **options) for options in SOME]
        frames = [union(spark, str(store), str(lake), **options) for options in SOME]
        assert frames[0].count() == 1400, "this plans the read of the log"
        archive(spark, str(store), str(lake))
        compact(spark, str(lake))
        opened.retain(keep_bytes=0)
        assert opened.first_offset > 200_000
    for frame, wanted, options in zip(frames, expected, SOME, strict=True):
        assert rows(frame) == wanted, options
    assert rows(union(spark, None, str(lake), topics="topic-3", via="queue", columns="body,store")) == expected_rows(
        store, topics="topic-3", columns="body,store", lake=str(lake)
    )
    assert verify(Lake.open(lake)) == []
    times = sorted(row["store_timestamp"] for row in expected[0])
    middle = int(times[len(times) // 2] * 1000)
    for bounds in ({"startTime": middle}, {"endTime": middle}):
        wanted = expected_rows(store, lake=str(lake), **bounds)
        assert rows(union(spark, str(store), str(lake), **bounds)) == wanted and wanted


def test_a_union_has_the_new_name_of_a_moved_store_and_the_archive_of_a_lost_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, lake, moved = tmp_path / "store", tmp_path / "lake", tmp_path / "moved"
    write_store(store, 100)
    archive(spark, str(store), str(lake))
    store.rename(moved)
    with MessageStore.open(moved) as opened:
        put_messages(opened, 100, 10)
    frame = union(spark, str(moved), str(lake), includeInternal=True, columns="store,body")
    assert {row["store"] for row in rows(frame)} == {str(moved)} and frame.count() == 110
    assert union(spark, None, str(lake), includeInternal=True).count() == 100, "its folder is gone"
    other = tmp_path / "store"
    write_store(other, 10)
    with pytest.raises(WrongLake):
        union(spark, str(other), str(lake))
    with pytest.raises(InvalidConfig, match="onDamage"):
        union(spark, str(moved), str(lake), onDamage="rows")


@pytest.mark.parametrize("name", ["lake[12]", "lake?", "*", "{lake1,lake2}", "back\\slash", "new\nline", "a:b %41#"])
def test_a_lake_is_read_from_its_own_folder_whatever_its_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark takes such names as patterns, which match the other lakes here, or nothing."""
    store, lake = tmp_path / "store", tmp_path / name
    with open_small(store) as opened:
        for number in range(20):
            opened.put(Message("orders", b'{"id": %d}' % number))
    archive(spark, str(store), str(tmp_path / "lake1"), schema={"orders": "id BIGINT"})
    for other in (tmp_path / "lake2", lake):
        shutil.copytree(tmp_path / "lake1", other)
    assert union(spark, str(store), str(lake)).count() == 20
    assert views(spark, lake=str(lake)).sql("select * from archive").count() == 20
    assert typed(spark, str(lake), "orders").count() == 20


def test_a_look_up_by_key_alone_reads_only_row_groups_with_the_topics_of_its_hits(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Offsets cannot tell row groups apart: a file is ordered by topic, so each group spans nearly all of them."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    with open_small(store) as opened:
        for number in range(60):
            opened.put(Message(f"topic-{number % 6}", b"", keys=[f"k{number}", f"shared-{number % 4}"]))
    archive(spark, str(store), str(lake))
    by_key = union(spark, None, str(lake), keys="k13")
    assert [row.topic for row in by_key.collect()] == ["topic-1"]
    plan = by_key._jdf.queryExecution().toString()
    assert "topic-1" in plan and "topic-2" not in plan
    found = {row.topic for row in union(spark, None, str(lake), keys="shared-1").collect()}
    assert found == {"topic-1", "topic-3", "topic-5"}


def test_an_error_in_a_worker_is_raised_and_nothing_is_committed(spark: SparkSession, tmp_path: Path) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    write_store(store, 100)
    opened = Lake.open(lake, create=True)
    [member] = admit(opened, [store])
    [split, *_] = plan_splits(opened, member, "256m")
    in_the_way = lake / table_path("messages", member.identity, split.start, split.end)
    in_the_way.mkdir()
    with pytest.raises(PySparkException, match="IsADirectoryError"):
        archive(spark, str(store), str(lake))
    assert Lake.open(lake).snapshot().version == 0
    in_the_way.rmdir()
    (done,) = archive(spark, str(store), str(lake))
    assert done.rows == 100


def test_damage_in_the_archive_fails_a_union_with_on_damage_fail(spark: SparkSession, tmp_path: Path) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    write_store(store, 100)
    flip(store, rows_of(store)[5]["physical_offset"] + 90)
    archive(spark, str(store), str(lake))
    assert union(spark, str(store), str(lake), includeInternal=True, columns="size").count() == 99
    with pytest.raises(CorruptRecord, match="CRC"):
        union(spark, str(store), str(lake), onDamage="fail")


def test_a_union_is_exact_while_processes_run_and_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    def by_union(storm: Storm) -> list[int]:
        frame = union(spark, str(storm.store), str(storm.lake), includeInternal=True, columns="store,physical_offset")
        found = [row["physical_offset"] for row in frame.collect()]
        assert frame.count() == len(found), "one DataFrame is one snapshot"
        return found

    ride(tmp_path, 7, 2, by_union)
