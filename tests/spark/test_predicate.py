"""`read(where=…)` returns what a filter after the read returns, whatever the predicate and the log."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from mqlake.errors import InvalidConfig
from mqlake.spark.predicate import added, asked_by, options_of, read
from mqlake.spark.schema import DEFAULT_COLUMNS, spark_schema
from tests.spark.odd_log import FIRST_MS, KEYS, QUEUES, TAGS, TOPICS, write_odd_log
from tests.spark.tables import offsets_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

TABLE = spark_schema(DEFAULT_COLUMNS)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "store"
    write_odd_log(path)
    return path


@pytest.fixture(scope="module")
def whole(spark: SparkSession, log: Path) -> DataFrame:
    """The table without any selection."""
    rows = spark.read.format("mqlake").load(str(log)).drop("store", "properties", "body").cache()
    assert rows.count() > 500
    return rows


def options(spark: SparkSession, where: str) -> dict[str, str]:
    return options_of(asked_by(spark, where, TABLE).conditions)


DAY = {"startTime": str(FIRST_MS)}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("topic = 'orders'", {"topics": '["orders"]'}),
        ("Topic == 'a' AND tags IN ('x', 'y,z')", {"topics": '["a"]', "tags": '["x", "y,z"]'}),
        ("topic in ('a', 'b') and 'b' = topic", {"topics": '["b"]'}),
        ("queue_id in (1, 2)", {"queues": '["1", "2"]'}),
        ("queue_id = '1'", {"queues": '["1"]'}),
        ("array_contains(keys, 'k 1')", {"keys": '["k 1"]'}),
        ("store_timestamp >= '2026-01-01'", DAY),
        ("store_timestamp > timestamp '2026-01-01T00:00:00.0009Z'", DAY),
        ("store_timestamp >= date '2026-01-01'", DAY),
        ("store_timestamp < '2026-01-01'", {"endTime": str(FIRST_MS + 1)}),
        ("store_timestamp = '2026-01-01'", DAY | {"endTime": str(FIRST_MS + 1)}),
        ("topic = 'it''s'", {"topics": '["it\'s"]'}),
        ("topic = 'it\\'s'", {"topics": '["it\'s"]'}),
        ('topic = "a"', {"topics": '["a"]'}),
        ("`topic` = 'a' || 'b'", {"topics": '["ab"]'}),
        (
            "physical_offset >= 10 and physical_offset < 20 and physical_offset < 30",
            {"startOffset": "10", "endOffset": "21", "failOnDataLoss": "false"},
        ),
        ("topic = 'a' and length(body) > 3 and tags like 'x%'", {"topics": '["a"]'}),
        ("topic = 'a' and (tags = 'x' or flag = 1)", {"topics": '["a"]'}),
        ("size between 1 and 2 and topic = 'a' -- and so on", {"topics": '["a"]'}),
        ("topic in ('SCHEDULE_TOPIC_XXXX', 'a')", {"topics": '["a"]'}),
    ],
)
def test_comparisons_with_literals_become_options(spark: SparkSession, where: str, expected: dict[str, str]) -> None:
    assert options(spark, where) == expected


def test_a_long_list_becomes_options_too(spark: SparkSession) -> None:
    names = [f"topic-{number}" for number in range(99)]
    found = options(spark, f"topic in ({', '.join(map(repr, names))})")
    assert found["topics"] == str(sorted(names)).replace("'", '"')


@pytest.mark.parametrize(
    "where",
    [
        "topic = 'a' or tags = 'x'",
        "topic = 'a' and tags = 'x' OR queue_id = 1",
        "not (topic = 'a')",
        "topic not in ('a', 'b')",
        "topic = tags",
        "queue_id = 1.5",
        "queue_id = -1",
        "upper(topic) = 'A'",
        "topic = '' or false",
        "tags = ''",
        "array_contains(keys, '')",
        "topic in ('', 'a')",
        "topic collate utf8_lcase = 'a'",
        "store_timestamp >= '1960-01-01'",
        "store_timestamp < timestamp '+99999-01-01'",
        "store_timestamp >= now() - interval 1 day or size > 1",
    ],
)
def test_what_options_cannot_say_stays_a_filter(spark: SparkSession, where: str) -> None:
    assert options(spark, where) == {}


@pytest.mark.parametrize(
    "where",
    [
        "topic in ('a', 'b') and topic in ('c', 'd')",
        "topic = 'SCHEDULE_TOPIC_XXXX'",
        "store_timestamp > '2026-01-02' and store_timestamp < '2026-01-01'",
    ],
)
def test_a_predicate_that_no_row_fulfils_reads_nothing(spark: SparkSession, log: Path, where: str) -> None:
    assert offsets_of(log, **options(spark, where)) == []


def test_times_are_in_the_sessions_zone(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert options(spark, "store_timestamp >= '2026-01-01'") == {"startTime": str(FIRST_MS - 3_600_000)}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


# ---- any predicate


def quoted(chosen: Random, text: str | None) -> str:
    if text is None:
        return "null"
    quote, escaped = chosen.choice("'\""), text.replace("\\", "\\\\")
    inside = escaped.replace(quote, chosen.choice(["\\" + quote, quote * 2]))
    return f"{quote}{inside}{quote}"


def moment(chosen: Random) -> str:
    date = chosen.choice(["2025-12-27", "2025-12-30", "2026-01-01", "2026-01-02"])
    time = f"{chosen.randint(0, 23):02}:{chosen.randint(0, 59):02}"
    odd = ["'1969-12-31 23:59:00'", "'1970-01-01'", "'2026-01-01 00:00:00.001'"]
    return chosen.choice([f"'{date} {time}'", f"timestamp '{date} {time}:00.0005'", f"'{date}'", *odd])


def atom(chosen: Random) -> str:
    """Return a condition: mostly one that could become an option, written in one of many ways."""
    sign = chosen.choice(["=", "<", "<=", ">", ">=", "<>", "<=>", "=="])
    column = chosen.choice(["topic", "Topic", "`TOPIC`"])
    kinds = [
        f"{column} = {quoted(chosen, chosen.choice(TOPICS))}",
        f"{column} in ({', '.join(quoted(chosen, name) for name in chosen.choices(TOPICS, k=chosen.randint(1, 12)))})",
        f"tags {chosen.choice(['=', '<=>', '<>', '>'])} {quoted(chosen, chosen.choice(TAGS))}",
        f"tags in ({', '.join(quoted(chosen, tag) for tag in chosen.choices(TAGS, k=chosen.randint(1, 4)))})",
        f"array_contains(keys, {quoted(chosen, chosen.choice(KEYS))})",
        f"queue_id {sign} {chosen.choice(QUEUES)}",
        f"queue_id in ({', '.join(map(str, chosen.choices(QUEUES, k=3)))})",
        f"store_timestamp {sign} {moment(chosen)}",
        f"{moment(chosen)} {sign} store_timestamp",
        f"store_timestamp between {moment(chosen)} and {moment(chosen)}",
        f"physical_offset {sign} {chosen.randint(-5, 250_000)}",
        f"size % {chosen.randint(2, 5)} = 0",
        f"lower(topic) like '%{chosen.choice('abox')}%'",
        "tags is null",
        "sys_flag = 8",
    ]
    return chosen.choice(kinds)


def predicate(chosen: Random, depth: int = 2) -> str:
    """Return a random predicate. Conjunctions are the most likely."""
    if depth == 0 or chosen.random() < 0.2:
        return f"not ({atom(chosen)})" if chosen.random() < 0.1 else atom(chosen)
    word = chosen.choice([" and ", " AND ", "\nand\n", " /* or */ and ", " or "])
    joined = word.join(predicate(chosen, depth - 1) for _ in range(chosen.randint(2, 3)))
    return f"({joined})" if chosen.random() < 0.5 or word == " or " else joined


def wanted(whole: DataFrame, where: str) -> list[int]:
    return sorted(row[0] for row in whole.where(where).select("physical_offset").collect())


@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.long)])
def test_options_select_every_row_of_any_predicate_and_none_that_a_read_leaves_out(
    spark: SparkSession, log: Path, whole: DataFrame, count: int
) -> None:
    """So Spark's filter over them gives what it gives over the whole table."""
    chosen, table = Random(count), {*wanted(whole, "true")}
    narrowed = 0
    for _ in range(count):
        where = predicate(chosen)
        added = options(spark, where)
        found = {*offsets_of(log, columns="physical_offset", via="scan", **added)}
        assert {*wanted(whole, where)} <= found <= table, (where, added)
        narrowed += len(found) < len(table)
    assert narrowed > count / 3


GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("topic = 'orders' and store_timestamp >= '2025-12-31'", {}),
    ("topic = 'SCHEDULE_TOPIC_XXXX'", {}),
    ("topic = 'SCHEDULE_TOPIC_XXXX'", {"includeInternal": True}),
    ("topic in ('SCHEDULE_TOPIC_XXXX', 'orders')", {"topics": "SCHEDULE_TOPIC_XXXX,Orders"}),
    ("topic = 'orders'", {"TOPICSPATTERN": ".*s"}),
    ("array_contains(keys, '')", {}),
    ("store_timestamp < '2020-01-01'", {"startTime": "2026-01-01"}),
    ("physical_offset < 7 and tags = 'a'", {"startOffset": 8}),
    ("physical_offset >= 10000 and tags = 'a'", {"onDamage": "rows"}),
    ("length(to_json(struct(*))) % 2 = 0 and topic = 'orders'", {}),
    ("(size > 0 or true) and topic = 'orders'", {}),
    ("topic = (select max(id) || 'rders' from (select 'o' id))", {}),
]


@pytest.mark.parametrize(("where", "given"), GIVEN)
def test_a_read_with_a_predicate_equals_a_filter_after_the_read(
    spark: SparkSession, log: Path, where: str, given: dict[str, Any]
) -> None:
    table = read(spark, str(log), **given)
    expected = sorted(table.where(where).select("physical_offset", "topic").collect())
    found = read(spark, str(log), where=where, columns=["physical_offset", "topic"], **given)
    assert found.columns == ["physical_offset", "topic"]
    assert sorted(found.collect()) == expected


def test_a_predicate_makes_a_read_scan_unless_the_user_chose_what_to_find(spark: SparkSession) -> None:
    """Queues and index can have less than the log: RocketMQ deletes a topic's queue and leaves its messages."""
    where = "topic = 'orders' and array_contains(keys, 'k1') and tags = 'a'"
    conditions = asked_by(spark, where, TABLE).conditions
    found = {"topics": '["orders"]', "keys": '["k1"]', "tags": '["a"]'}
    assert added(conditions, {}) == {"via": "scan", **found}
    assert {**added(conditions, {"via": "auto"}), "via": "auto"} == {"via": "auto", **found}
    assert added(conditions, {"topics": "orders"}) == added(conditions, {"KEYS": "k1"}) == {"tags": '["a"]'}
    assert added(conditions, {"onDamage": "fail"}) == {}, "all of the log is read, because all damage is reported"


def test_a_predicate_is_refused_as_a_filter_is(spark: SparkSession, log: Path) -> None:
    from pyspark.errors import AnalysisException, ParseException

    with pytest.raises(AnalysisException, match="topc"):
        read(spark, str(log), where="topc = 'a'")
    with pytest.raises(ParseException):
        read(spark, str(log), where="topic = ")
    with pytest.raises(InvalidConfig, match="option columns = 'topc'"):
        read(spark, str(log), columns=["topc"])
