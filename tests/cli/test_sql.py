"""How `mqlake sql` handles its arguments, typed lines and Spark's errors; these tests need no Spark."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake import Message
from mqlake.cli.answers import plain
from mqlake.cli.main import mqlake as root
from mqlake.cli.spark import failure
from mqlake.cli.sql import cut, split_arguments, statements
from mqlake.embedded.tables import EmbeddedTables
from tests.helpers import open_small

ANALYSIS = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `topc` is not there. SQLSTATE: 42703; line 2 pos 7;
'Project ['topc]
+- RelationV2[store#0]"""
PARSE = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'form'. SQLSTATE: 42601 (line 1, pos 13)

== SQL ==
select topic form messages
-------------^^^
"""
RUNTIME = """[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012
== SQL (line 1, position 8) ==
select 1/0
       ^^^"""
WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
mqlake.errors.ChangedUnderRead: store: offset 5: found nothing; expected a record

    at org.apache.spark.Task(line.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ANALYSIS, "line 2, column 8: A column with name `topc` is not there."),
        (PARSE, "line 1, column 14: Syntax error at or near 'form'."),
        (RUNTIME, "line 1, column 8: Division by zero."),
        (WORKER, "ChangedUnderRead: store: offset 5: found nothing; expected a record"),
    ],
)
def test_a_spark_error_becomes_one_sentence_with_its_position(text: str, told: str) -> None:
    assert str(failure(text)) == told


def test_the_last_argument_is_the_query_if_it_has_words(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    assert split_arguments(("s1", "s2", "select 1;")) == (("s1", "s2"), "select 1")
    assert split_arguments(("s1",)) == (("s1",), None)
    assert split_arguments((str(folder),)) == ((str(folder),), None)
    assert split_arguments(()) == ((), None)
    long = f"select '{'a' * 5_000}'"
    assert split_arguments(("s1", long)) == (("s1",), long)
    assert split_arguments(("s1", "select '\0'")) == (("s1",), "select '\0'")


@pytest.mark.parametrize(
    ("text", "whole", "rest"),
    [
        ("select 1; select 2", ["select 1"], "select 2"),
        ("select ';', \";\", `;`;", ["select ';', \";\", `;`"], ""),
        (r"select 'it\'s;';", [r"select 'it\'s;'"], ""),
        ("select 1 -- no; not here\n;", ["select 1 -- no; not here"], ""),
        ("select 1 /* no; not\n here; */ + 1; select 2", ["select 1 /* no; not\n here; */ + 1"], "select 2"),
        ("select 1 /* open; ", [], "select 1 /* open;"),
        ("select 'open; ", [], "select 'open;"),
        (";;", [], ""),
    ],
)
def test_a_statement_of_spark_ends_at_a_semicolon_outside_quotes_and_comments(
    text: str, whole: list[str], rest: str
) -> None:
    assert cut(text) == (whole, rest)


@pytest.mark.parametrize(
    ("text", "whole", "rest"),
    [
        ("select 1; select 2", ["select 1"], "select 2"),
        (r"select 'a\' as x; select 'é;'; select 2", [r"select 'a\' as x", "select 'é;'"], "select 2"),
        (r"select E'it\'s;', 'it''s;', \";\";", [r"select E'it\'s;', 'it''s;', \";\""], ""),
        ("select $$a;b$$, $t$a;$$b$t$; select 2", ["select $$a;b$$, $t$a;$$b$t$"], "select 2"),
        ("select 1 -- no; not here\n;", ["select 1 -- no; not here"], ""),
        ("select 1 /* no; /* not\n; */ here; */ + 1;", ["select 1 /* no; /* not\n; */ here; */ + 1"], ""),
        ("select 1 /* open; ", [], "select 1 /* open;"),
        ("select 'open; ", [], "select 'open;"),
        ("select $$open; ", [], "select $$open;"),
        (";;", [], ""),
    ],
)
def test_a_statement_of_duckdb_ends_where_duckdb_ends_it(text: str, whole: list[str], rest: str) -> None:
    with contextlib.closing(EmbeddedTables([])) as tables:
        assert tables.cut(text) == (whole, rest)


def typed(*lines: str | type[BaseException] | None) -> Callable[[str], str | None]:
    left = iter([*lines, None])

    def read(prompt: str) -> str | None:
        line = next(left)
        if isinstance(line, type):
            raise line
        return line

    return read


def test_lines_are_collected_until_a_semicolon_and_dropped_by_an_interrupt() -> None:
    lines = typed("select", " 1;", "drop me", KeyboardInterrupt, ".help", "select 2; select 3;", "select 4")
    assert list(statements(lines, cut)) == ["select\n 1", ".help", "select 2", "select 3", "select 4"]
    assert list(statements(typed(".quit", "select 1;"), cut)) == []


def test_values_are_converted_to_json_types() -> None:
    assert plain({"a": b"\xff", 1: [None, 2.5, (b"",)]}) == {"a": "/w==", "1": [None, 2.5, [""]]}


def test_names_of_a_map_are_in_order_whatever_engine_it_came_from() -> None:
    assert json.dumps(plain({"z": 1, "a": {"c": 2, "b": 3}})) == '{"a": {"b": 3, "c": 2}, "z": 1}'


def test_commands_that_need_spark_are_listed_and_explained_without_it() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from mqlake.cli.main import main; main()"
    for arguments in (["--help"], ["sql", "--help"], ["stats", "--help"], ["report", "--help"]):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        assert "Usage: mqlake" in done.stdout


WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from mqlake.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("missing", "arguments", "told"),
    [
        ("pyspark", ["sql", "store", "select count(*) as n from messages"], "n\n1\n"),
        ("pyspark", ["sql", "store", "select topic from queues"], "topic\norders\n"),
        ("pyspark", ["sql", "store", "select messages as n from stats"], "n\n1\n"),
        ("pyspark,duckdb", ["stats", "store", "--json"], '"messages": 1,'),
        ("pyspark,duckdb", ["report", "store"], ": report.html\n"),
        ("pyspark,duckdb", ["sql", "store", "select 1 as n"], "mqlake[sql]"),
        ("pyspark,numpy", ["sql", "store", "select 1 as n"], "mqlake[sql]"),
        ("pyspark,pyarrow", ["stats", "store"], "mqlake[arrow]"),
        ("pyspark", ["sql", "store", "--master", "local[1]", "select 1 as n"], "mqlake[spark]"),
        ("pyspark", ["audit", "store"], "mqlake[spark]"),
    ],
)
def test_small_stores_are_asked_without_spark_and_a_missing_extra_is_the_one_to_install(
    tmp_path: Path, missing: str, arguments: list[str], told: str
) -> None:
    with open_small(tmp_path / "store") as store:
        store.put(Message("orders", b"1"))
    command = [sys.executable, "-c", WITHOUT, missing, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert told in done.stdout + done.stderr
    assert done.stderr == "" or done.stderr.startswith("mqlake: MissingExtra: this command needs")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with open_small(tmp_path / "shop") as store:
        store.put_many([Message("orders", b"1", queue_id=0), Message("orders", b"2", queue_id=1)])
        store.put(Message("its", b"3", queue_id=1))
    return tmp_path / "shop"


def printed(shop: Path, *statements: str) -> list[dict[str, object]]:
    """Return the rows that the shell prints."""
    typed = ";\n".join(statements)
    told = CliRunner().invoke(root, ["sql", str(shop), "--format", "json"], input=typed, catch_exceptions=False)
    assert told.exit_code == 0 and "mqlake:" not in told.stderr, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


@pytest.mark.parametrize(
    ("statements", "rows"),
    [
        (
            ["pivot (select topic, queue_id from messages) on queue_id using count(*) order by topic"],
            [{"topic": "its", "0": 0, "1": 1}, {"topic": "orders", "0": 1, "1": 1}],
        ),
        (
            ["pivot messages on topic using count(*) group by queue_id order by queue_id"],
            [{"queue_id": 0, "its": 0, "orders": 1}, {"queue_id": 1, "its": 1, "orders": 1}],
        ),
        (["pragma show_tables"], [{"name": "messages"}]),
        (["call query('select count(*) n from messages')"], [{"n": 3}]),
        (
            ["prepare p as select queue_id from messages where topic = $1", "execute p('its')", "execute p('none')"],
            [{"queue_id": 1}],
        ),
        (
            ["set variable n = (select count(*) from messages)", "use memory", "select getvariable('n') n"],
            [{"n": 3}],
        ),
        (["create table t as select topic from messages", "truncate t", "select count(*) n from t"], [{"n": 0}]),
        (
            [
                "create table t as select topic from messages",
                "insert into t values ('x') returning *",
                "from t limit 1",
            ],
            [{"topic": "x"}, {"topic": "orders"}],
        ),
    ],
)
def test_every_statement_that_has_rows_prints_them(
    shop: Path, statements: list[str], rows: list[dict[str, object]]
) -> None:
    assert printed(shop, *statements) == rows


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        ("select 0 a union all select a + 1 from r, messages where a < 2", [[0, 1], [1, 3], [2, 9]]),
        (
            "select queue_id a from messages where topic = 'its' "
            "union all select a + (select count(*) from messages) from r where a < 6",
            [[1, 1], [4, 1], [7, 1]],
        ),
    ],
)
def test_each_step_of_a_recursive_query_reads_all_messages(shop: Path, steps: str, rows: list[object]) -> None:
    query = f"with recursive r as ({steps}) select a, count(*) n from r group by a order by a"
    assert [[row["a"], row["n"]] for row in printed(shop, query)] == rows


def test_statements_without_rows_print_nothing(shop: Path) -> None:
    assert printed(shop, "set threads = 1", "create table t as select 1", "insert into t values (2)", "begin") == []


def test_a_transaction_can_be_ended_after_an_error_in_it(shop: Path) -> None:
    typed = "begin; select 'x'::int; rollback; select count(*) n from messages;"
    told = CliRunner().invoke(root, ["sql", str(shop), "--format", "json"], input=typed, catch_exceptions=False)
    assert told.stdout == '{"n": 3}\n'


def test_the_plan_of_a_pivot_is_printed_as_any_plan(shop: Path) -> None:
    (row,) = printed(shop, "explain pivot messages on queue_id using count(*)")
    assert list(row) == ["plan"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("date '2026-01-02'", "2026-01-02"),
        ("'20000-01-01'::date", "+20000-01-01"),
        ("'20000-01-01'::timestamp", "+20000-01-01T00:00:00"),
        ("'infinity'::date", "infinity"),
        ("'0044-03-15 (BC)'::date", "0044-03-15 (BC)"),
        ("'12345-01-01 (BC)'::date", "12345-01-01 (BC)"),
        ("'12345-01-01 (BC) 01:02:03'::timestamp", "12345-01-01 (BC) 01:02:03"),
        ("['-infinity'::date, null]", ["-infinity", None]),
        ("['-infinity'::date]::date[1]", ["-infinity"]),
        ("""{'a "b': ['20000-01-01'::date], 'c': 1}""", {'a "b': ["+20000-01-01"], "c": 1}),
        ("row('infinity'::date, 2)", {"element1": "infinity", "element2": 2}),
        ("union_value(d := '20000-01-01'::date)", "20000-01-01"),
        ("map {[1]: 2}", {"[1]": 2}),
        ("map {{'a': 'infinity'::date}: 'infinity'::date}", {"{'a': infinity}": "infinity"}),
        ("to_hours(99999999)", "4166666 days, 15:00:00"),
        ("[to_hours(-1)]", ["-1 day, 23:00:00"]),
        ("to_days(2000000000)", "2000000000 days, 0:00:00"),
        ("interval '1 year 2 months -3 days -04:00:00.5'", "14 months, -4 days, 19:59:59.500000"),
        ("interval '0 days'", "0:00:00"),
        ("time '24:00:00'", "24:00:00"),
        ("timetz '12:00:00.5+02:30'", "12:00:00.500000+02:30"),
        ("'0101'::bit", "0101"),
        ("123456789012345678901234567890::bignum", "123456789012345678901234567890"),
        ("340282366920938463463374607431768211455::uhugeint", 340282366920938463463374607431768211455),
        ("[map {1::hugeint: null}]", [{"1": None}]),
        ("[]", []),
        ("null", None),
    ],
)
def test_a_value_that_python_or_arrow_lacks_is_a_text(shop: Path, value: str, shown: object) -> None:
    assert printed(shop, f"select {value} as v") == [{"v": shown}]


def test_json_has_every_column_also_of_the_same_name(shop: Path) -> None:
    row = {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}
    assert printed(shop, "select 1 a, 2 a, 3 a_1, 4 a") == [row]


def test_a_query_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.put_many([Message("orders", b"1"), Message("orders", b"2")])
    program = (
        "import atexit, sys; from mqlake.cli.main import main; "
        "costly = {'pyarrow.compute', 'pandas', 'pyspark'}; "
        "atexit.register(lambda: print(sorted(costly & {*sys.modules}))); main()"
    )
    query = ["sql", "store", "select topic, count(*) as n from messages group by topic"]
    done = subprocess.run([sys.executable, "-c", program, *query], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["topic   n", "orders  2", "[]"]
    with open_small(tmp_path / "store") as store:  # RocketMQ's own messages, which the table leaves out
        store.put_as_is(Message("RMQ_SYS_TRANS_HALF_TOPIC", b"3"))
    done = subprocess.run([sys.executable, "-c", program, *query], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[:2] == ["topic   n", "orders  2"] and "pandas" not in done.stdout
