"""The table in Spark: exact rows, however one DataFrame is used, and while the store is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mqlake import MessageStore
from mqlake.files.names import file_name
from mqlake.spark import MqlakeSource, read
from mqlake.spark.source import MqlakeReader
from tests.helpers import LOG_FILE, eventually, open_small
from tests.spark.tables import rows_of, write_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spark") / "store"
    write_store(path)
    return path


def load(spark: SparkSession, path: Path | list[str], **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("mqlake").options(**given).load(path if isinstance(path, list) else str(path))


def test_the_format_needs_no_registration_and_returns_every_message_once(spark: SparkSession, store: Path) -> None:
    expected = rows_of(store)
    found = [row.asDict() for row in load(spark, store, splitSize="50k").collect()]
    found.sort(key=lambda row: row["physical_offset"])
    for row, wanted in zip(found, expected, strict=True):
        for name in ("born_timestamp", "store_timestamp"):
            assert row.pop(name).timestamp() == wanted.pop(name).timestamp()
        assert row == wanted


def test_a_table_scanned_more_than_once_is_right_every_time(spark: SparkSession, store: Path) -> None:
    """Push-down through `pushFilters` would get each of these wrong: one scan's filter would apply to the others."""
    assert "pushFilters" not in {*vars(MqlakeReader), *vars(MqlakeSource)}
    table = load(spark, store, columns="topic,queue_id,size,physical_offset")
    everything = table.count()
    assert everything == 400
    first = table.filter("topic = 'topic-1'").count()
    second = table.filter("topic = 'topic-2'").count()
    assert (first, second) == (80, 80)
    assert table.filter("physical_offset = 0").count() == 1
    assert table.count() == everything
    left, right = table.filter("topic = 'topic-1'"), table.filter("topic = 'topic-2'")
    joined = left.alias("l").join(right.alias("r"), "queue_id").groupBy("l.topic", "r.topic").count().collect()
    assert [(row[0], row[1]) for row in joined] == [("topic-1", "topic-2")]
    assert left.union(right).count() == first + second
    table.createOrReplaceTempView("messages")
    both = spark.sql(
        "select (select count(*) from messages where topic = 'topic-1') a, "
        "(select count(*) from messages where topic = 'topic-2') b, (select count(*) from messages) c"
    ).first()
    assert both is not None and tuple(both) == (first, second, everything)


def test_a_schema_without_columns_is_an_error_and_not_a_count_of_0(spark: SparkSession, store: Path) -> None:
    with pytest.raises(AnalysisException, match="at least one; size is the cheapest for counting"):
        spark.read.format("mqlake").schema(StructType([])).load(str(store)).count()


def test_a_predicate_becomes_options_and_stays_a_filter(spark: SparkSession, store: Path) -> None:
    table = load(spark, store)
    middle = table.selectExpr("percentile_approx(store_timestamp, 0.5)").first()
    assert middle is not None
    for where in (
        "topic = 'topic-1' and tags in ('tag1', 'tag2')",
        f"store_timestamp >= '{middle[0]}' and topic in ('topic-1', 'topic-2')",
        "array_contains(keys, 'group-7') and size > 300",
        "physical_offset >= 70000 and physical_offset < 90000 and queue_id = 1",
        "topic = 'topic-1' or tags = 'tag2'",
    ):
        expected = sorted(row[0] for row in table.where(where).select("physical_offset").collect())
        found = read(spark, str(store), where=where, columns=["physical_offset"])
        assert found.columns == ["physical_offset"]
        assert sorted(row[0] for row in found.collect()) == expected
        assert expected


def test_views_and_schemas_select_what_is_read(spark: SparkSession, store: Path) -> None:
    spark.sql(
        f"create or replace temporary view orders using mqlake options (path '{store}', topics 'topic-3', tags 'tag2')"
    )
    counted = spark.sql("select count(*), count(distinct topic) from orders").first()
    expected = [row for row in rows_of(store) if row["topic"] == "topic-3" and row["tags"] == "tag2"]
    assert counted is not None and tuple(counted) == (len(expected), 1)
    chosen = spark.read.format("mqlake").schema("body binary, topic string").load(str(store))
    assert chosen.columns == ["body", "topic"]
    assert chosen.where("topic = 'topic-1'").count() == 80
    with pytest.raises(AnalysisException, match="topic is string; cast it after the read"):
        spark.read.format("mqlake").schema("topic int").load(str(store)).count()


def test_mistakes_are_reported_before_anything_runs(spark: SparkSession, store: Path) -> None:
    with pytest.raises(AnalysisException, match="option topicz = 'a': there is no such option"):
        load(spark, store, topicz="a")
    with pytest.raises(AnalysisException, match="there is no such folder"):
        load(spark, store / "nothing").count()
    with pytest.raises(AnalysisException, match="name the store's folder"):
        spark.read.format("mqlake").load()


def test_a_selection_without_rows_is_an_empty_table(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    assert load(spark, store, topics="nobody").count() == 0
    with open_small(tmp_path / "empty"):
        pass
    assert load(spark, tmp_path / "empty").count() == 0


def test_damage_can_be_counted(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path, 60)
    with (path / "commitlog" / file_name(0)).open("r+b") as file:
        file.seek(4)
        file.write(b"????")
    assert load(spark, path).count() == 39
    damage = load(spark, path, onDamage="rows").where("damage is not null").collect()
    assert [(row.physical_offset, row.topic) for row in damage] == [(0, None)]
    with pytest.raises(PythonException, match="record at 0: the magic number"):
        load(spark, path, onDamage="fail").count()


def test_a_log_file_deleted_under_a_dataframe_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path)
    table = load(spark, path, columns="size")
    assert table.count() == 400
    (path / "commitlog" / file_name(0)).unlink()
    with pytest.raises(PythonException, match="deleted after this read was planned"):
        table.count()
    assert 0 < load(spark, path, columns="size").count() < 400


WRITER = """
import itertools, sys, time
from pathlib import Path
from tests.helpers import open_small
from tests.spark.tables import put_messages
store = open_small(Path(sys.argv[1]))
log = store._reading.log_files
for number in itertools.count(1):
    put_messages(store, number * 100, 100)
    log.delete_before(store.end_offset - 100 * 65536)
    if log.first_offset:
        time.sleep(0.2)  # gives a read seconds before its files are deleted
"""


def first_file(path: Path) -> str:
    return min(file.name for file in (path / "commitlog").iterdir())


def read_or_error(table: DataFrame) -> list[Any] | str:
    """Return first and last queue offset and message count of each queue, or the error of the read."""
    try:
        ends = table.selectExpr("topic", "queue_id", "queue_offset o")
        return ends.groupBy("topic", "queue_id").agg(F.min("o"), F.max("o"), F.count("o")).collect()
    except (AnalysisException, PythonException) as error:
        return str(error)


def test_a_live_store_is_read_exactly_to_its_end_while_old_files_are_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Gapless queue offsets prove that no row is missing or repeated. They must end at the given end."""
    path = tmp_path / "store"
    write_store(path, 100)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=Path(__file__).parents[2])
    try:
        assert eventually(lambda: first_file(path) > file_name(0), 120)
        began, exact = first_file(path), 0
        while exact < 3 or first_file(path) == began:  # until some reads succeeded and files were deleted meanwhile
            assert writer.poll() is None, "the writer died"
            with MessageStore.open(path, read_only=True) as opened:
                stated = opened.end_offset
            options = {"endOffset": stated, "columns": "topic,queue_id,queue_offset"}
            found = read_or_error(load(spark, path, startOffset=stated - 60 * LOG_FILE, **options))
            if isinstance(found, str):  # deletion was faster: the read must report that, never return fewer rows
                assert "deleted" in found or "is outside of" in found
                continue
            assert len(found) == 20
            assert all(count == last - first + 1 for _, _, first, last, count in found)
            with MessageStore.open(path, read_only=True) as opened:
                for topic, queue_id, _, last, _ in found:
                    after = opened.read(topic, queue_id=queue_id, start=last + 1, limit=1)
                    assert all(message.physical_offset >= stated for message in after)
            exact += 1
    finally:
        writer.kill()
        writer.wait()
