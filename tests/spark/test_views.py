"""SQL over the views: exact results, reading no more of `messages` than a query needs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqlake import Message
from mqlake.errors import InvalidConfig
from mqlake.spark.jobs import narrow
from mqlake.spark.jobs.narrow import EVERYTHING, Need, need_of
from mqlake.spark.jobs.statement import plan_query
from mqlake.spark.jobs.views import Views, views
from mqlake.spark.predicate import NO_ROWS
from tests.helpers import open_small
from tests.spark.tables import put_messages, rows_of, write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

QUERIES = [
    "select count(*), count(body), count(tags), count(distinct keys) from messages",
    "select count(*) from (select * from messages order by 3)",
    "select topic, max(length(body)) from messages where tags = 'tag1' and queue_id in (1, 2) "
    "group by topic order by 1",
    "select physical_offset from messages where physical_offset >= 4000 and 90000 > physical_offset order by 1",
    "select count(*) from messages where topic = 'SCHEDULE_TOPIC_XXXX' or topic = 'topic-1'",
    "select a.topic, count(*) from messages a join messages b on a.physical_offset = b.physical_offset "
    "where a.topic = 'topic-1' and b.tags = 'tag1' group by a.topic",
    "select topic, tags from messages where size = (select max(size) from messages) order by 1",
]
MORE_QUERIES = [
    "select count(*) from messages",
    "select * from messages order by physical_offset limit 7",
    "select topic, count(*), sum(size) from messages group by topic order by topic",
    "select physical_offset from messages where 'topic-1' = topic or tags is null order by 1",
    "select physical_offset from messages where array_contains(keys, 'group-7') order by 1",
    "select count(*) from messages where store_timestamp >= '2020-01-01' and store_timestamp < '2100-01-01'",
    "select count(*) from messages where topic = 'topic-1' and topic = 'topic-2'",
    "select count(*) from messages where topic = 'SCHEDULE_TOPIC_XXXX'",
    "select count(*) from messages natural join (select topic, queue_id, physical_offset from messages)",
    "with m as (select * from messages where queue_id = 1) select count(*) from m a, m b where a.size = b.size",
    "select tags from messages union all select topic from messages order by 1",
    "select topic, rank() over (partition by topic order by size desc, physical_offset) r from messages order by 1, 2",
    "select distinct topic, tags from messages order by 1, 2",
    "select properties['number'] n from messages where size > 500 order by cast(n as int)",
    "select count(*) from messages where exists (select 1 from queues q where q.topic = messages.topic)",
    "select count(*) from messages where rand(3) >= 0 and topic = 'topic-1'",
    "select count(*) from messages where body is not null and keys is not null",
    "select topic, count(*) from messages group by topic having count(*) > (select max(size) from messages) order by 1",
    "select max(struct(size, topic)) from messages where queue_offset between 3 and 9",
    "select k, count(*) from (select explode(keys) k from messages) group by k order by 2 desc, 1 limit 9",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("views") / "store"
    write_store(path, 240)
    with open_small(path) as opened:
        for _ in range(3):
            opened.put(Message("SCHEDULE_TOPIC_XXXX", b"later"))
    return path


@pytest.fixture(scope="module")
def tables(spark: SparkSession, store: Path) -> Views:
    return views(spark, str(store))


@pytest.mark.parametrize("queries", [QUERIES, pytest.param(MORE_QUERIES, marks=pytest.mark.long)])
def test_a_narrowed_read_gives_the_same_result_as_the_whole_table(
    spark: SparkSession, tables: Views, store: Path, queries: list[str]
) -> None:
    narrow = [tables.sql(query).collect() for query in queries]
    whole = spark.read.format("mqlake").load(str(store)).cache()
    whole.createOrReplaceTempView("messages")
    for query, answer in zip(queries, narrow, strict=True):
        assert answer == spark.sql(query).collect(), query
    whole.unpersist()


NEEDS: list[tuple[str, str, dict[str, str]]] = [
    ("select count(*) from messages", "", {}),
    ("select count(body) from messages", "", {}),
    ("select topic from messages where size > 10", "topic size", {}),
    ("select topic, max(size) from messages where tags = 'a' group by topic", "topic size tags", {"tags": '["a"]'}),
    ("select 1 from messages where topic = 'o\\'k'", "topic", {"topics": '["o\'k"]'}),
    (
        "select 1 from messages where queue_id in (1, 2) and physical_offset > 7",
        "queue_id physical_offset",
        {"queues": '["1", "2"]', "startOffset": "7", "failOnDataLoss": "false"},
    ),
    ("select 1 from messages where array_contains(keys, 'k')", "keys", {"keys": '["k"]'}),
    ("select 1 from messages where topic in ('a', 'b')", "topic", {"topics": '["a", "b"]'}),
    ("select 1 from messages where topic = 'a' or queue_id = 1", "topic queue_id", {}),
    ("select 1 from messages where topic = 'SCHEDULE_TOPIC_XXXX'", "topic", NO_ROWS),
    ("select 1 from messages where store_timestamp > '1970-01-02'", "store_timestamp", {"startTime": "86400000"}),
    (
        "select a.topic from messages a join messages b on a.size = b.queue_id where a.topic = 'x'",
        "topic size queue_id",
        {},
    ),
]


def test_the_plan_shows_what_a_query_needs(spark: SparkSession, tables: Views) -> None:
    for query, columns, options in NEEDS:
        expected = Need(frozenset(columns.split()), {**options, "via": "scan"} if options else {})
        assert need(spark, query) == expected, query


def need(spark: SparkSession, query: str) -> Need | None:
    return need_of(plan_query(spark, query).optimizedPlan())


def test_a_query_with_unknown_needs_is_not_narrowed(spark: SparkSession, tables: Views) -> None:
    assert need(spark, "select * from messages") == EVERYTHING
    assert need(spark, "select 'RelationV2[', topic from messages") == EVERYTHING
    for query in ("select 1", "select * from queues"):
        assert need(spark, query) is None


class Fake:
    """The parts of a plan node that `narrow` uses. Also stands for Spark's sequences, sets and attributes."""

    def __init__(self, kind: str = "", *items: str) -> None:
        self.kind, self.items = kind, items

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self  # getClass, references, toSeq, output, exprId, condition, left, right

    def getSimpleName(self) -> str:
        return self.kind

    def size(self) -> int:
        return len(self.items)

    def apply(self, number: int) -> Fake:
        return Fake(self.items[number])

    def id(self) -> str:
        return self.kind

    def name(self) -> str:
        return self.kind


@pytest.mark.parametrize("between", ["Join", "Union", "Sort", "GlobalLimit", "Window", "SomethingNew"])
def test_only_a_projection_or_an_aggregate_right_above_the_filters_shows_what_is_needed(between: str) -> None:
    relation, top, filtered = Fake("", "a", "b"), Fake("Project", "a"), Fake("Filter", "b")
    found = narrow._asked(relation, [top, filtered])
    assert found is not None and found[0] == {"a", "b"}
    aggregated = narrow._asked(relation, [Fake(between), Fake("Aggregate", "b")])
    assert aggregated is not None and aggregated[0] == {"b"}
    assert narrow._asked(relation, [top, Fake(between), filtered]) is None
    assert narrow._asked(relation, [filtered]) is None


READING = [
    "select 1",
    "values (1), (2)",
    "table messages",
    "from messages select topic where size > 1",
    "from messages |> where size > 1 |> select topic",
    "select * from (select topic from messages) m limit 1",
    "with m as (select * from messages), n as (select * from m) select count(*) from n union select 1 order by 1",
    "select topic, count(*) from messages group by topic having count(*) > 1 order by 2 limit 3 offset 1",
    "select topic, count(*) from messages group by rollup (topic)",
    "select k, rank() over w from messages lateral view explode(keys) as k window w as (order by topic)",
    "select * from messages tablesample (10 percent), lateral (select 1)",
    "select /*+ broadcast(b) */ a.topic from messages a, messages b where exists (select 1 from messages c)",
    "select * from range(3) r(n) intersect select 1 except select 2",
    "select * from (select topic, size from messages) pivot (sum(size) for topic in ('a', 'b'))",
    "select * from (select 1 a, 2 b) unpivot (n for name in (a, b))",
]
COMMANDS = [
    "create table t (a int)",
    "create table t as select 1",
    "create temporary view v as select 1",
    "insert into t select 1",
    "with m as (select 1) insert into t select * from m",
    "from messages insert into t select 1 insert into u select 2",
    "insert overwrite directory '/t' using json select 1",
    "cache table t as select 1",
    "set x = 1",
    "declare variable x int",
    "execute immediate 'insert into t select 1'",
    "explain select 1",
    "describe messages",
    "show tables",
    "begin insert into t select 1; select 2; end",
    "call c.p(1)",
    "merge into t using u on t.a = u.a when matched then delete",
    "delete from t",
    "analyze table t compute statistics",
]


def test_only_queries_are_planned_before_they_run(spark: SparkSession, tables: Views) -> None:
    """To plan any other statement could be to execute it."""
    assert [query for query in READING if plan_query(spark, query) is None] == []
    assert [command for command in COMMANDS if plan_query(spark, command) is not None] == []


def test_every_statement_runs_exactly_once(spark: SparkSession, tables: Views, tmp_path: Path) -> None:
    (count,) = tables.sql("select count(*) from messages").collect()[0]

    def rows() -> int:
        return spark.read.json(str(tmp_path / "t")).count()

    tables.sql(f"create table once (n bigint) using json location '{tmp_path}/t'")
    try:
        tables.sql("insert into once select size from messages")
        assert rows() == count
        tables.sql("with m as (select size from messages) insert into once select * from m")
        assert rows() == 2 * count
        tables.sql("from messages insert into once select size insert into once select queue_id")
        assert rows() == 4 * count
        tables.sql("execute immediate 'insert into once select 1'")
        assert rows() == 4 * count + 1
        tables.sql("begin insert into once select 1; insert into once select 2; end")
        assert rows() == 4 * count + 3
        tables.sql(f"create table made using json location '{tmp_path}/made' as select topic from messages")
        tables.sql("create temporary view seen as select topic, size from messages")
        tables.sql("cache table kept as select topic from messages")
        for table in ("made", "seen", "kept"):
            assert tables.sql(f"select count(*) from {table}").collect() == [(count,)]
    finally:
        for statement in ("table once", "table made", "view seen", "view kept"):
            spark.sql(f"drop {statement.replace(' ', ' if exists ')}")


def test_queries_of_several_threads_do_not_see_each_others_tables(spark: SparkSession, tables: Views) -> None:
    expected = [tables.sql(query).collect() for query in QUERIES[:4]]
    whole = sorted(spark.table("messages").select("tags", "size").collect(), key=str)
    with ThreadPoolExecutor(6) as pool:
        again = pool.map(lambda query: tables.sql(query).collect(), QUERIES[:4] * 3)
        seen = pool.map(lambda query: spark.sql(query).collect(), ["select tags, size from messages"] * 4)
        assert [*again] == expected * 3
        assert all(sorted(rows, key=str) == whole for rows in seen)


def test_a_statement_sees_the_whole_table_and_leaves_it_as_it_is(
    spark: SparkSession, tables: Views, store: Path
) -> None:
    tables.sql("create or replace temporary view big as select * from messages where size > 500")
    assert tables.sql("select count(*) from big").collect() == spark.sql("select count(*) from big").collect()
    assert len(tables.sql("select * from big limit 1").columns) == 19
    tables.sql("select topic from messages").createOrReplaceTempView("topics_only")
    assert spark.sql("select topic from topics_only").count() == spark.read.format("mqlake").load(str(store)).count()
    assert tables.sql("select 1 from messages").sparkSession is spark
    whole = spark.table("messages").select("tags", "size").collect()
    assert {row.tags for row in whole} == {None, "tag0", "tag1", "tag2"} and all(row.size for row in whole)


def test_queues_have_their_ends_and_times(spark: SparkSession, tables: Views, store: Path) -> None:
    found = {(row.topic, row.queue_id): row for row in tables.sql("select * from queues").collect()}
    with open_small(store) as opened:
        ranges = [queue for topic in opened.topics() for queue in opened.queues(topic)]
        assert len(found) == len(ranges)
        for queue in ranges:
            row = found[queue.topic, queue.queue_id]
            assert (row.min_offset, row.max_offset, row.entries) == (0, queue.end_offset, queue.end_offset)
            last = opened.read(queue.topic, queue_id=queue.queue_id, start=queue.end_offset - 1)[0]
            assert round(row.last_time.timestamp() * 1000) == last.store_timestamp


def test_stats_by_minute_equal_the_sums_over_messages(tables: Views, store: Path) -> None:
    found: dict[str, Any] = {
        row.topic: (row.n, row.b)
        for row in tables.sql("select topic, sum(messages) n, sum(bytes) b from stats group by topic").collect()
    }
    rows = rows_of(store, columns="topic,size")
    expected = {topic: [row["size"] for row in rows if row["topic"] == topic] for topic in {r["topic"] for r in rows}}
    assert found == {topic: (len(sizes), sum(sizes)) for topic, sizes in expected.items()}


def test_each_query_sees_the_store_as_it_is_at_that_time(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path, 5)
    tables = views(spark, [str(tmp_path)])
    counts = (
        "select (select count(*) from messages), (select sum(messages) from stats), (select sum(entries) from queues)"
    )
    before = tables.sql(counts).collect()[0]
    with open_small(tmp_path) as opened:
        put_messages(opened, 6, 2)  # neither is a half message
    after = tables.sql(counts).collect()[0]
    assert [new - old for old, new in zip(before, after, strict=True)] == [2, 2, 2]


def test_a_view_over_the_tables_and_a_command_see_the_store_as_it_is_too(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path / "store", 5)
    tables = views(spark, [str(tmp_path / "store")])
    counts = "select (select count(*) from messages) m, (select sum(messages) from stats) s"
    tables.sql(f"create or replace temporary view counted as {counts}")
    before = tables.sql("select * from counted").collect()[0]
    with open_small(tmp_path / "store") as opened:
        put_messages(opened, 6, 2)
    after = tables.sql("select * from counted").collect()[0]
    assert [new - old for old, new in zip(before, after, strict=True)] == [2, 2]
    tables.sql(f"insert overwrite directory '{tmp_path}/out' using json select count(*) n from messages")
    assert spark.read.json(str(tmp_path / "out")).collect()[0].n == after[0]


def test_views_without_stores_are_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidConfig, match="name a store's folder, or a lake"):
        views(spark)
