"""What `mqlake sql` prints: times in the session's zone, plans in lines, values that programs can read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqlake.cli.answers import print_answer
from mqlake.cli.sql import Shell, SparkAnswers
from mqlake.spark.jobs.views import views
from tests.spark.tables import write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

SUMMER = "timestamp '2026-07-01 10:00:00.25Z'"


@pytest.fixture
def tokyo(spark: SparkSession) -> Iterator[SparkSession]:
    """A session in a zone that no machine of ours is in."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def printed(spark: SparkSession, query: str, form: str, capsys: pytest.CaptureFixture[str]) -> str:
    print_answer(spark.sql(query), form)
    return capsys.readouterr().out


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_times_are_shown_in_the_zone_of_the_session(
    tokyo: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "2026-07-01 19:00:00.25" in printed(tokyo, f"select {SUMMER}", "table", capsys)
    nested = f"select array({SUMMER}) l, map('a', {SUMMER}) m, named_struct('b', array({SUMMER})) s"
    assert printed(tokyo, nested, "table", capsys).count("2026-07-01 19:00:00.25") == 3


def test_times_for_programs_name_their_zone(tokyo: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    query = f"""
        select {SUMMER} t, array({SUMMER}, null) l, map({SUMMER}, 1) m, named_struct('t', {SUMMER}) s,
        cast(null as struct<t: timestamp>) n, {SUMMER} t2
    """
    text = "2026-07-01T19:00:00.250000+09:00"
    (found,) = objects(printed(tokyo, query, "json", capsys))
    assert found == {"t": text, "l": [text, None], "m": {text: 1}, "s": {"t": text}, "n": None, "t2": text}
    assert datetime.fromisoformat(text) == datetime.fromisoformat("2026-07-01T10:00:00.25Z")
    _, row = csv.reader(io.StringIO(printed(tokyo, query, "csv", capsys)))
    assert row[0] == text and json.loads(row[1]) == [text, None] and row[4] == ""


def test_an_hour_that_occurs_twice_is_told_apart_for_programs(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        both = "map(timestamp '2026-10-25 00:30:00Z', 1, timestamp '2026-10-25 01:30:00Z', 2) m"
        (found,) = objects(printed(spark, f"select {both}", "json", capsys))
        assert found["m"] == {"2026-10-25T02:30:00.000000+02:00": 1, "2026-10-25T02:30:00.000000+01:00": 2}
        assert printed(spark, f"select {both}", "table", capsys)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_every_value_can_be_printed(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a time after the year 9999, which Python does not have, and numbers that JSON does not have."""
    query = """
        select timestamp_millis(9223372036854775) far, timestamp_ntz '2026-01-01 00:00:00' ntz, date '2026-01-01' d,
        double('NaN') nan, cast(1.50 as decimal(5, 2)) dec, X'ff' b, 1 as a, 2 as `a b`, interval 1 day i
    """
    (found,) = objects(printed(spark, query, "json", capsys))
    assert found["far"].endswith("Z") and "294247" in found["far"]
    assert found["ntz"] == "2026-01-01T00:00:00" and found["d"] == "2026-01-01"
    assert (found["nan"], found["dec"], found["b"], found["a"]) == ("nan", "1.50", "/w==", 1)
    for form in ("table", "csv"):
        assert "294247" in printed(spark, query, form, capsys)


def test_columns_of_the_same_name_keep_their_values(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(spark, f"select 1 a, {SUMMER} a, 2 a", "csv", capsys)
    assert text == "a,a,a\n1,2026-07-01T10:00:00.250000Z,2\n"


@pytest.mark.parametrize("query", ["explain extended select 1 a", "select 'one\n  two\x1b[2J'"])
def test_a_text_of_several_lines_is_printed_in_lines(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    lines = printed(spark, query, "table", capsys).splitlines()
    assert len(lines) > 1 and not any("\\n" in line or "\x1b" in line or "…" in line for line in lines)


def test_the_shell_runs_a_command_once_and_follows_the_zone_that_is_set(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_store(tmp_path / "store", 6)
    shell = Shell(SparkAnswers(views(spark, str(tmp_path / "store")), "json"))
    try:
        shell.do("set time zone 'Asia/Tokyo'")
        shell.do(f"create table shelled using json location '{tmp_path}/t' as select store_timestamp from messages")
        shell.do("insert into shelled select store_timestamp from messages")
        capsys.readouterr()
        shell.do("select count(*) n from shelled")
        shell.do("select store_timestamp t from messages limit 1")
        counted, timed = objects(capsys.readouterr().out)
        assert counted == {"n": 8}
        assert timed["t"].endswith("+09:00")
        shell.do(".schema messages")
        assert "store_timestamp" in capsys.readouterr().out
    finally:
        spark.sql("drop table if exists shelled")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
