"""DuckDB in this process and Spark give the same answer to the same query, and read no more than they need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import mqlake.spark
from mqlake import Message
from mqlake.cli.main import mqlake as root
from tests.helpers import open_small

pytest.importorskip("duckdb")

from mqlake.embedded import messages
from mqlake.embedded.need import topics_of
from mqlake.embedded.tables import EmbeddedTables

QUERIES = [
    "select topic, count(*) n, sum(size) bytes, min(queue_offset) a, max(queue_id) b from messages group by topic "
    "order by topic",
    "select count(*) n from messages",
    "select tags, count(*) n from messages where topic = 'orders' group by tags order by tags",
    "select physical_offset, topic, keys, properties, body from messages order by physical_offset",
    "select physical_offset, store_timestamp, born_timestamp, born_host from messages order by 1",
    "select a.physical_offset x from messages a join messages b on a.physical_offset = b.physical_offset order by x",
    "select count(*) n from messages where topic in ('orders', 'its') and queue_id >= 0 and size > 10",
    "select count(*) n from messages where topic = 'orders' or size > 1",
    "select count(*) n from messages where array_contains(keys, 'key-7')",
    "select topic, queue_id, min_offset, max_offset, entries, first_time from queues order by topic, queue_id",
    "select topic, tags, sum(messages) m, sum(bytes) b from stats group by topic, tags order by topic, tags",
    "select size / 2 half, size * 1.5 more, topic is null x, coalesce(tags, '-') t from messages "
    "order by physical_offset",
    "select store_timestamp from messages where 1 = 0",
    "with m as (select topic, size from messages) select topic, avg(size) mean from m group by topic order by topic",
    "select topic, row_number() over (partition by topic order by physical_offset) r from messages order by 1, 2",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders and others, a delayed message, a transaction, and one damaged record."""
    path = tmp_path_factory.mktemp("answers") / "store"
    with open_small(path) as opened:
        for number in range(30):
            topic = ("orders", "its", "clicks")[number % 3]
            fields: dict[str, Any] = {"tags": "paid", "properties": {"amount": str(number)}} if number % 2 else {}
            opened.put(Message(topic, b"body %d \xff" % number, keys=f"key-{number}", queue_id=number % 2, **fields))
        opened.put(Message("orders", b"later", delay_s=3600))
        with opened.transaction() as transaction:
            transaction.put(Message("orders", b"together"))
    log = path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(b"body 8 ")] ^= 1
    log.write_bytes(data)
    return path


def answers(store: Path, query: str, *more: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(root, ["sql", str(store), query, "--format", "json", *more], prog_name="mqlake")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("query", QUERIES)
def test_both_engines_give_the_same_answer(spark: SparkSession, store: Path, query: str) -> None:
    assert answers(store, query) == answers(store, query, "--master", "local[*]")


@pytest.mark.parametrize("form", ["json", "csv", "table"])
def test_both_engines_print_maps_and_intervals_alike(
    spark: SparkSession, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with open_small(tmp_path / "store") as opened:
        opened.put(Message("orders", b"", properties={"z": "1", "a": "2", "ü": "3", "b": "4"}))
    query = (
        "select properties, timestamp '2026-10-25 00:30:00' - timestamp '2026-10-24 00:30:01.5' less, "
        "interval '1' day i, interval '-1' day j, interval '2' hour k from messages"
    )
    command = ["sql", str(tmp_path / "store"), query, "--format", form]
    here, there = (CliRunner().invoke(root, [*command, *more]) for more in ([], ["--master", "local[*]"]))
    assert here.stdout == there.stdout and "1 day, 0:00:00" in here.stdout and "23:59:58.500000" in here.stdout


@pytest.mark.parametrize("form", ["json", "csv", "table"])
def test_both_engines_print_times_inside_of_lists_alike(spark: SparkSession, store: Path, form: str) -> None:
    inner = "(select store_timestamp from messages order by physical_offset limit 2)"
    command = ["sql", str(store), f"select array_agg(store_timestamp) t from {inner}", "--format", form]
    here, there = (CliRunner().invoke(root, [*command, *more]) for more in ([], ["--master", "local[*]"]))
    assert here.stdout == there.stdout != ""


@pytest.mark.parametrize("form", ["json", "csv", "table"])
def test_both_engines_print_dates_after_the_year_9999_alike(spark: SparkSession, tmp_path: Path, form: str) -> None:
    with open_small(tmp_path / "store") as opened:
        for born_timestamp in (1_500_000_000_000, 1_800_000_000_000_000):  # microseconds for milliseconds
            opened.put(Message("orders", b"", born_timestamp=born_timestamp))
    day = "cast(born_timestamp as date)"
    query = f"select {day} d, born_timestamp t, array_agg({day}) l from messages group by born_timestamp order by 1"
    command = ["sql", str(tmp_path / "store"), query, "--format", form]
    here, there = (CliRunner().invoke(root, [*command, *more]) for more in ([], ["--master", "local[*]"]))
    assert here.stdout == there.stdout and "2017-07-14" in here.stdout and "+59009-" in here.stdout


def test_times_and_sums_inside_of_others_are_printed_as_such(store: Path) -> None:
    noon = "timestamptz '2026-01-02 12:00:00.25Z'"
    struct = f"""{{'a "b': {noon}, 'c': '2026-01-02 12:00:00+00', 'd': {{'e': [{noon}, null]}}, 'n': sum(size) * 0}}"""
    query = (
        f"select {struct} s, map {{{noon}: timestamp '2026-01-02 12:00:00'}} m, [null::timestamptz] l, "
        "null::timestamptz[] n, [sum(size) * 0] h, timestamp '2026-01-02 12:00:00.5' t from messages"
    )
    shown = "2026-01-02T12:00:00.250000Z"
    (row,) = answers(store, query)
    assert row == {
        "s": {'a "b': shown, "c": "2026-01-02 12:00:00+00", "d": {"e": [shown, None]}, "n": 0},
        "m": {shown: "2026-01-02T12:00:00"},
        "l": [None],
        "n": None,
        "h": [0],
        "t": "2026-01-02T12:00:00.500000",
    }


@pytest.mark.parametrize(
    "command", [["sql", "select count(*) n from messages", "--format", "json"], ["stats", "--json"]]
)
@pytest.mark.parametrize("engine", [[], ["--master", "local[*]"]])
def test_both_engines_take_the_same_paths(
    spark: SparkSession, store: Path, command: list[str], engine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(path: str) -> tuple[int, str, str]:
        told = CliRunner().invoke(root, [command[0], path, *command[1:], *engine], prog_name="mqlake")
        return told.exit_code, told.stdout, told.stderr

    monkeypatch.setenv("HOME", str(store.parent))
    plain = said(str(store))
    assert plain[0] == 0
    assert [said(path) for path in (f"file://{store}", f"file:{store}", "~/store", f"{store}/")] == [plain] * 4
    for path in ("hdfs://host/store", "s3://bucket/store"):
        assert said(path)[::2] == (
            3,
            f"mqlake: InvalidConfig: store = '{path}': a folder of a file system that every worker can see, or file:///…\n",
        )


@pytest.mark.parametrize("engine", [[], ["--master", "local[*]"]])
def test_both_engines_print_the_plan_of_a_query_in_lines(spark: SparkSession, store: Path, engine: list[str]) -> None:
    told = CliRunner().invoke(root, ["sql", str(store), "explain select topic from messages where size > 3", *engine])
    assert told.exit_code == 0 and len(told.stdout.splitlines()) > 3 and "\\n" not in told.stdout


def test_a_plan_is_not_measured_over_the_empty_table_that_it_is_made_with(store: Path) -> None:
    told = CliRunner().invoke(root, ["sql", str(store), "explain analyze select topic from messages"])
    assert told.exit_code == 3
    assert told.stderr == "mqlake: QueryFailed: EXPLAIN ANALYZE is not possible here; use EXPLAIN\n"


def test_statistics_without_spark_are_those_of_spark(spark: SparkSession, store: Path) -> None:
    ours, theirs = mqlake.spark.stats(None, str(store)), mqlake.spark.stats(spark, str(store))
    assert ours.traffic("topic", "tags").equals(theirs.traffic("topic", "tags"))
    assert ours.keys().equals(theirs.keys()) and ours.queues.equals(theirs.queues)
    assert ours.kind("damage").to_pylist() == theirs.kind("damage").to_pylist() != []


@pytest.mark.parametrize(
    ("query", "columns", "topics"),
    [
        ("select topic, size from messages", {"topic", "size"}, None),
        ("select size from messages where topic = 'orders'", {"topic", "size"}, {"orders"}),
        ("select size from messages where topic in ('a', 'b''c')", {"topic", "size"}, {"a", "b'c"}),
        ("select size from messages where topic = 'a' or size = 1", {"topic", "size"}, None),
        ("select size from messages where topic <> 'a'", {"topic", "size"}, None),
    ],
)
def test_only_needed_columns_and_topics_are_scanned(
    store: Path, monkeypatch: pytest.MonkeyPatch, query: str, columns: set[str], topics: set[str] | None
) -> None:
    asked: list[tuple[set[str], set[str] | None]] = []
    scan = messages.batches

    def watched(path: str, names: Any, only: Any) -> Any:
        asked.append((set(names), None if only is None else set(only)))
        return scan(path, names, only)

    monkeypatch.setattr("mqlake.embedded.tables.batches", watched)
    tables = EmbeddedTables([str(store)])
    found = tables.query(query)
    assert found is not None
    list(tables.rows_of(found)[2])
    tables.close()
    assert asked == [(columns, topics)]


@pytest.mark.parametrize(
    "query",
    [
        "select topic from messages",
        "select count(*) from messages",
        "select a.topic from messages a join messages b on a.physical_offset = b.physical_offset",
        "select topic, first_time from queues",
        "select topic, messages from stats",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_folder_without_a_store_is_named_as_such(store: Path, tmp_path: Path, query: str, first: bool) -> None:
    folders = [str(tmp_path), str(store)] if first else [str(store), str(tmp_path)]
    told = CliRunner().invoke(root, ["sql", *folders, query], prog_name="mqlake")
    assert told.exit_code == 3
    assert told.stderr == f"mqlake: NotAStore: {tmp_path}: it holds no store; put a message first, or check the path\n"


def test_an_error_while_rows_are_read_is_one_of_the_query(store: Path) -> None:
    late = "select cast(if(n < 200_000, '1', 'x') as int) from range(300_000) numbers(n)"
    told = CliRunner().invoke(root, ["sql", str(store), late, "--format", "csv"])
    assert told.exit_code == 3
    assert told.stderr.startswith("mqlake: QueryFailed: Could not convert"), told.stderr


def test_the_shell_continues_after_a_folder_without_a_store(tmp_path: Path) -> None:
    told = CliRunner().invoke(root, ["sql", str(tmp_path)], input="select size from queues;\nselect 'still here';\n")
    assert told.exit_code == 0 and told.stderr.startswith(f"mqlake: {tmp_path}: it holds no store")
    assert "still here" in told.stdout


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("topic = 'a'", {"a"}),
        ("((size > 3) AND (topic = 'a AND (b'))", {"a AND (b"}),
        ("((topic = 'a') = false)", None),
        ("(NOT (topic = 'a'))", None),
        ("((topic = 'a') OR (tags = 'b'))", None),
        ("(lower(topic) = 'a')", None),
    ],
)
def test_a_filter_names_topics_only_if_nothing_else_passes_it(condition: str, expected: set[str] | None) -> None:
    assert topics_of(condition) == expected
