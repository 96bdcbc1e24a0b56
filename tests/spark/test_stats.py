"""Statistics and reports over stores on Spark, and the commands that show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner, Result

from mqlake import Message
from mqlake.cli.main import mqlake
from mqlake.errors import InvalidConfig
from mqlake.spark.jobs.report import report_of
from mqlake.spark.jobs.stats import Stats, plans_of, stats
from mqlake.spark.jobs.stats_rows import merge
from mqlake.spark.jobs.stats_split import stats_split
from mqlake.store.gates import Gates
from tests.helpers import open_small
from tests.spark.tables import rows_of, stats_here, write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two stores: one with consumers, a gate and damage, and one with the same topics and keys."""
    folder = tmp_path_factory.mktemp("fleet")
    paths = [folder / "a", folder / "b"]
    for path in paths:
        write_store(path, 120)
    with open_small(paths[0]) as store:
        for _ in range(40):
            store.put(Message("topic-0", b"<&>", keys="<hot>", queue_id=0))
    offsets = {"topic-0@billing": {"0": 5, "1": 6}, "topic-1@billing": {"0": 0}, "gone@billing": {"0": 1}}
    (paths[0] / "config").mkdir(exist_ok=True)
    (paths[0] / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    Gates(paths[0] / "mqlake" / "gates").hold("archive", 77)
    row = rows_of(paths[0], via="scan", columns="physical_offset")[50]
    with (paths[0] / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(row["physical_offset"] + 95)
        log.write(b"!!")
    return paths


@pytest.fixture(scope="module")
def found(fleet: list[Path]) -> Stats:
    return stats_here([str(path) for path in fleet], split_size=32 << 10)


def run(*arguments: object, input: str | None = None) -> Result:
    runner = CliRunner(env={"COLUMNS": "200"})
    return runner.invoke(mqlake, [str(argument) for argument in arguments], input=input)


def test_spark_counts_what_this_process_counts(spark: SparkSession, fleet: list[Path], found: Stats) -> None:
    on_spark = stats(spark, [str(path) for path in fleet], split_size=64 << 10)
    for kind in ("traffic", "size", "latency"):
        assert on_spark.kind(kind, internal=True) == found.kind(kind, internal=True)
    assert (
        on_spark.lag == found.lag
        and on_spark.queues == found.queues
        and on_spark.keys()["distinct"] == found.keys()["distinct"]
    )


def test_traffic_of_several_stores_equals_a_count_of_their_rows(found: Stats, fleet: list[Path]) -> None:
    rows = [row for path in fleet for row in rows_of(path, via="scan", columns="store,topic,size")]
    (total,) = found.traffic().to_pylist()
    assert (total["messages"], total["bytes"]) == (len(rows), sum(row["size"] for row in rows))
    by_store = dict(zip(*(found.traffic("store")[name].to_pylist() for name in ("store", "messages")), strict=True))
    assert by_store == {str(path): sum(row["store"] == str(path) for row in rows) for path in fleet}
    assert found.traffic("topic", internal=True).num_rows >= found.traffic("topic").num_rows
    with pytest.raises(InvalidConfig, match="one of store, topic, queue_id, tags, time"):
        found.traffic("queue")  # type: ignore[arg-type]


def test_each_log_is_counted_once(found: Stats) -> None:
    assert {part.store: (part.start, part.end) for part in found.counted} == found.logs
    assert {part.source for part in found.counted} == {"log"}


def test_keys_of_several_stores_are_counted_together(found: Stats, fleet: list[Path]) -> None:
    """Both stores have the same keys, so together they have no more distinct ones than each."""
    rows = [row for path in fleet for row in rows_of(path, via="scan", columns="topic,keys")]
    for row in found.keys().to_pylist():
        keys = [key for message in rows if message["topic"] == row["topic"] for key in message["keys"]]
        assert row["messages"] == len(keys)
        assert abs(row["distinct"] - len(set(keys))) <= 1
    top = found.top_keys().to_pylist()
    assert next(row["name"] for row in top if row["topic"] == "topic-0") == "<hot>"
    assert all(row["messages"] <= row["at_most"] for row in top)


def test_lag_is_the_distance_from_a_groups_progress_to_the_queues_end(found: Stats, fleet: list[Path]) -> None:
    rows = {(row["topic"], row["queue_id"]): row for row in found.lag.to_pylist()}
    queues = [row for row in found.queues.to_pylist() if row["store"] == str(fleet[0])]
    ends = {(row["topic"], row["queue_id"]): row["max_offset"] for row in queues}
    assert set(rows) == {("topic-0", 0), ("topic-0", 1), ("topic-1", 0)}
    assert rows["topic-0", 0]["lag"] == ends["topic-0", 0] - 5
    assert rows["topic-0", 1]["lag"] == max(0, ends["topic-0", 1] - 6)
    assert rows["topic-1", 0]["lag"] == ends["topic-1", 0] and rows["topic-1", 0]["waiting_since"] is not None


def test_a_counted_part_is_not_read_again(fleet: list[Path]) -> None:
    """The counted part and what lies before and after it add up to the whole, each record once."""
    path = str(fleet[1])
    (whole,) = plans_of(path, None, 16 << 10)
    parts = whole.splits
    middle = parts[2].start, parts[-2].end
    rest = [split for made in plans_of(path, middle, 16 << 10) for split in made.splits]
    assert all(split.end <= middle[0] or split.start >= middle[1] for split in rest)
    known = [stats_split(split) for split in parts[2:-1]]
    summed = merge([*known, *(stats_split(split) for split in rest)])
    at_once = merge([stats_split(split) for split in parts])
    chosen = [table.filter(pc.is_in(table["kind"], pa.array(["traffic", "size"]))) for table in (summed, at_once)]
    assert chosen[0] == chosen[1]


def test_a_report_shows_all_that_was_found(found: Stats, fleet: list[Path]) -> None:
    made = report_of(found, title="<b>")
    (total,) = found.traffic().to_pylist()
    assert made.messages == total["messages"] == sum(step.messages for step in made.steps)
    assert sum(topic.messages for topic in made.topics) == made.messages
    for buckets in (made.sizes, made.latencies):
        assert sum(bucket.messages for bucket in buckets) == made.messages
    assert made.internal_messages == 2 * 40
    lag = [(row.group, row.topic, row.queue_count) for row in made.lag]
    assert lag == [("billing", "topic-0", 2), ("billing", "topic-1", 1)]
    assert [row.store for row in made.damage] == [str(fleet[0])]
    assert [(gate.name, gate.offset) for gate in made.gates] == [("archive", 77)]
    assert [store.path for store in made.stores] == [str(path) for path in fleet]
    assert all(store.log_end == store.counted_end for store in made.stores)


def test_a_report_does_not_take_rocketmqs_own_bookkeeping_for_lag(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for topic in ("orders", "RMQ_SYS_TRANS_HALF_TOPIC"):
            store.put_as_is(Message(topic, b"1", queue_id=0))
    offsets = {"orders@billing": {"0": 0}, "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 0}}
    (tmp_path / "store" / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    counted = stats_here([str(tmp_path / "store")])
    assert len(counted.lag) == 2
    assert [(row.group, row.messages) for row in report_of(counted).lag] == [("billing", 1)]


def test_a_report_is_named_after_its_stores_and_follows_each_topic_over_time(found: Stats, fleet: list[Path]) -> None:
    made = report_of(found)
    assert made.title == "a and b"
    tags = {(row["topic"], row["tags"]) for path in fleet for row in rows_of(path, via="scan", columns="topic,tags")}
    assert len({len(topic.trend) for topic in made.topics}) == 1, "one time axis"
    for topic in made.topics:
        assert sum(topic.trend) == topic.messages
        assert topic.tag_count == len([tag for name, tag in tags if name == topic.name and tag is not None])


def test_a_report_names_the_workers_that_have_failed(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        assert report_of(stats_here(str(tmp_path))).workers == []
        path = tmp_path / "mqlake" / "health.json"
        told = json.loads(path.read_text())
        told["workers"][0] |= {"state": "failed", "error": "OSError: no", "since_ms": 7}
        path.write_text(json.dumps(told))
        (worker,) = report_of(stats_here(str(tmp_path))).workers
        assert worker == (str(tmp_path), told["workers"][0]["name"], "failed", "OSError: no", 7)
        assert store.health().ok, "only what others are told was changed"


def test_a_topic_whose_messages_are_gone_still_has_its_retries(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(Message("%RETRY%billing", b"", properties={"RETRY_TOPIC": "orders"}))
    made = {topic.name: topic for topic in report_of(stats_here(str(tmp_path))).topics}
    assert (made["orders"].messages, made["orders"].retries) == (0, 1)
    assert made["%RETRY%billing"].messages == 1


def test_stats_without_stores_are_refused_and_those_of_an_empty_store_are_empty(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="name a store's folder, or a lake"):
        stats_here(())
    open_small(tmp_path).close()
    nothing = stats_here(str(tmp_path))
    assert nothing.rows.num_rows == 0 and nothing.queues.num_rows == 0
    assert report_of(nothing).messages == 0


# ---- commands


def test_stats_prints_a_table_or_json(spark: SparkSession, fleet: list[Path]) -> None:
    lines = run("stats", fleet[1], "--by", "topic", "--json").stdout.splitlines()
    expected = [row["topic"] for row in rows_of(fleet[1], columns="topic")]
    assert {row["topic"]: row["messages"] for row in map(json.loads, lines)} == {t: expected.count(t) for t in expected}
    wrong = run("stats", fleet[1], "--by", "colour")
    assert wrong.exit_code == 2 and "store, topic, queue, tag, minute" in wrong.stderr
    assert "name a store, or a lake" in run("stats").stderr


def test_report_writes_one_page(spark: SparkSession, fleet: list[Path], tmp_path: Path) -> None:
    result = run("report", *fleet, "--out", tmp_path / "page.html", "--title", "A <title>")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    assert "<h1>A &lt;title&gt;</h1>" in page and "&lt;hot&gt;" in page and "<hot>" not in page
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def sql(*arguments: Any, input: str | None = None) -> Result:
    return run("sql", "--master", "local[*]", *arguments, input=input)


def test_sql_answers_a_query_as_table_csv_or_json(spark: SparkSession, fleet: list[Path]) -> None:
    query = "select topic, size, body from messages where topic = 'topic-1' and length(body) < 50"
    rows = [row for row in rows_of(fleet[1], via="scan", columns="topic,size,body") if row["topic"] == "topic-1"]
    rows = [row for row in rows if len(row["body"]) < 50]
    table = sql(fleet[1], query).stdout.splitlines()
    assert table[0].split() == ["topic", "size", "body"]
    assert sorted(line.split()[1] for line in table[1:]) == sorted(str(row["size"]) for row in rows)
    values = "select * from values (1, 'a,b', x'ff', array(1)), (2, null, x'', array())"
    assert (
        sql(fleet[1], f"{values} as t(a, b, c, d)", "--format", "csv").stdout == 'a,b,c,d\n1,"a,b",/w==,[1]\n2,,,[]\n'
    )
    lines = sql(fleet[1], f"{values} as t(a, b, c, d)", "--format", "json").stdout.splitlines()
    assert json.loads(lines[0]) == {"a": 1, "b": "a,b", "c": "/w==", "d": [1]}
    assert json.loads(lines[1]) == {"a": 2, "b": None, "c": "", "d": []}


def test_sql_reports_in_one_line_what_is_wrong_and_where(spark: SparkSession, fleet: list[Path]) -> None:
    result = sql(fleet[1], "select topc from messages")
    assert result.exit_code == 3 and result.stdout == ""
    assert result.stderr.startswith("mqlake: QueryFailed: line 1, column 8: ") and "`topc`" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Syntax error at or near 'form'" in sql(fleet[1], "select 1 x form y").stderr


def test_the_shell_continues_after_an_error(spark: SparkSession, fleet: list[Path]) -> None:
    typed = ".tables\nselect nothing;\nselect\n 'a;b' x; select 2 y;\n.schema stats\n.what\n.quit\nselect 3 z;\n"
    result = sql(fleet[1], input=typed)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:3] == ["messages", "queues", "stats"]
    for expected in ("a;b", "y", "latency_ms"):
        assert expected in result.stdout
    assert "line 1, column 8" in result.stderr and ".what: no such command" in result.stderr
    assert "z" not in result.stdout.split()
