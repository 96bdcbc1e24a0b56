"""What commands print on terminals of any width and into pipes, and how they exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from mqlake import Message
from mqlake.cli import show
from mqlake.cli.findings_view import kinds_of, times
from mqlake.cli.main import mqlake
from mqlake.cli.stats import fitting
from mqlake.inspect.findings import Finding, Severity
from tests.cli.conftest import Cli

RECORDS = 40


def on_terminal(width: int, *arguments: object) -> Result:
    """Run a command as on a terminal of this width."""
    size = {"COLUMNS": str(width), "LINES": "40"}
    runner = CliRunner(env={**size, "TTY_COMPATIBLE": "1", "NO_COLOR": "1", "TERM": "dumb"})
    return runner.invoke(mqlake, [str(argument) for argument in arguments], prog_name="mqlake")


@pytest.fixture
def damaged(cli: Cli) -> Cli:
    """A store with three damaged records, not next to one another, and a queue without its folder."""
    lines = "".join(f"line {number} of the orders\n" for number in range(RECORDS))
    cli.ok("put", cli.store, "orders", "-", "--config", cli.config, input=lines)
    file = cli.store / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    for number in (2, 11, 17):
        data[data.index(b"line %d of" % number)] ^= 1
    file.write_bytes(data)
    for path in (cli.store / "consumequeue" / "orders" / "3").iterdir():
        path.unlink()
    (cli.store / "consumequeue" / "orders" / "3").rmdir()
    return cli


# ---- widths


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_body_of_a_message_stays_on_a_terminal_of_any_width(orders: Cli, width: int) -> None:
    shown = on_terminal(width, "read", orders.store, "orders").stdout.splitlines()
    assert shown[0].split()[-1] == "body" and "order 0" in shown[1]
    assert all(len(line) <= width for line in shown)


def test_output_that_is_no_terminal_is_neither_cut_nor_padded(orders: Cli) -> None:
    orders.put(Message("orders", b"long " * 200, queue_id=0), Message("orders", b"\xff" * 100, queue_id=0))
    for command in (["read", "orders"], ["find", "orders", "all"], ["scan"], ["topics"], ["info"]):
        shown = orders.run(command[0], orders.store, *command[1:], width=40).stdout
        assert "…" not in shown
        assert all(line == line.rstrip() for line in shown.splitlines())
    assert "long " * 199 in orders.ok("read", orders.store, "orders")
    assert "ff" * 100 in orders.ok("read", orders.store, "orders")


@pytest.mark.parametrize("width", [60, 99])
def test_findings_are_blocks_on_a_narrow_terminal(damaged: Cli, width: int) -> None:
    shown = on_terminal(width, "check", damaged.store).stdout
    assert all(len(line) <= width for line in shown.splitlines())
    assert "  cost" in shown and "readers skip it" in " ".join(shown.split())
    assert "…" not in shown


def test_the_verdict_comes_first_then_each_kind_once_then_each_remedy_once(damaged: Cli) -> None:
    for shown in (damaged.run("check", damaged.store).stdout, on_terminal(240, "check", damaged.store).stdout):
        lines = shown.splitlines()
        assert lines[0].startswith("4 errors, 1 warning in "), "three records, and the seal of their block"
        assert sum("record-crc" in line for line in lines) == 1
        assert "record-crc (3 times)" in shown and "queue-missing" in shown
        remedies = [line for line in lines if f"mqlake repair {damaged.store}" in line]
        assert len(remedies) == len(set(remedies)) == 2, "one for records, one for the seal"
        assert "--json prints every one" in shown
    each = damaged.run("check", damaged.store, "--json").stdout.splitlines()
    assert sum(json.loads(line).get("what") == "record-crc" for line in each) == 3


def test_findings_that_were_only_counted_are_in_the_count() -> None:
    def finding(found: str, file: str = "a") -> Finding:
        return Finding(Severity.ERROR, "record-crc", file, 1, found, "a whole record", "lost", "mqlake repair")

    rows = [finding("bad"), finding("bad", "b"), finding("105 more of these", "b")]
    assert list(map(times, rows)) == [1, 1, 105]
    (kind,) = kinds_of(rows)
    assert kind.total == 107 and kind.what == "record-crc (107 times)" and kind.file == "a and 1 more file"


# ---- exit codes


def piped_to_true(*arguments: object) -> int:
    """Return the exit code of a command whose reader has exited."""
    command = [sys.executable, "-m", "mqlake", *map(str, arguments)]
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(command, stdout=write, stderr=subprocess.DEVNULL).returncode
    finally:
        os.close(write)


def test_a_reader_that_has_gone_is_exit_code_141_also_for_a_verdict(damaged: Cli) -> None:
    assert piped_to_true("check", damaged.store) == 141
    assert piped_to_true("read", damaged.store, "orders", "--json") == 141


def test_a_folder_that_cannot_be_read_is_a_store_error(orders: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the system is asked to say no."""
    monkeypatch.setattr(os, "access", lambda *args, **named: False)
    for command in (["check"], ["info"], ["topics"], ["read", "orders"]):
        result = orders.run(command[0], orders.store, *command[1:])
        assert result.exit_code not in (2, 64), result.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("command", ["check", "info"])
def test_somebody_who_may_not_read_a_folder_gets_exit_code_3(orders: Cli, command: str) -> None:
    assert orders.run(command, orders.store).exit_code == 0  # what it needs is imported now
    orders.store.chmod(0)
    os.seteuid(65534)
    try:
        result = orders.run(command, orders.store)
    finally:
        os.seteuid(0)
        orders.store.chmod(0o755)
    assert result.exit_code == 3, result.output


@pytest.mark.parametrize("command", [["tail", "STORE", "orders", "-f"], ["top", "STORE", "--interval", "0.1"]])
def test_ctrl_c_is_exit_code_130(orders: Cli, command: list[str]) -> None:
    process = orders.process(*(orders.store if part == "STORE" else part for part in command))
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "")


# ---- the command line itself


@pytest.mark.parametrize(("typed", "meant"), [("reed", "read"), ("tial", "tail"), ("statistics", "stats")])
def test_an_unknown_command_gets_a_suggestion(typed: str, meant: str) -> None:
    result = CliRunner().invoke(mqlake, [typed], prog_name="mqlake")
    assert result.exit_code == 2 and meant in result.output and "Did you mean" in result.output


def test_verbose_is_understood_after_every_command() -> None:
    def walk(command: click.Command, path: list[str]) -> None:
        if isinstance(command, click.Group) and path:
            for name, inner in command.commands.items():
                walk(inner, [*path, name])
        result = CliRunner().invoke(mqlake, [*path, "-v", "--help"], prog_name="mqlake")
        assert result.exit_code == 0 and "--verbose" in result.output, path

    group = mqlake
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        walk(found, [name])


def test_completion_knows_topics_and_groups(orders: Cli) -> None:
    with orders.open() as store:
        list(store.consumer("billing", "orders", idle_s=0))

    def complete(*typed: object) -> list[str]:
        *before, last = map(str, typed)
        made = ShellComplete(mqlake, {}, "mqlake", "_MQLAKE_COMPLETE")
        return [item.value for item in made.get_completions(before, last)]

    assert complete("read", orders.store, "") == ["clicks", "orders"]
    assert complete("tail", orders.store, "or") == ["orders"]
    assert complete("lag", orders.store, "b") == ["billing"]
    assert complete("consume", orders.store, "billing", "cl") == ["clicks"]
    assert complete("read", "nowhere", "") == []


def test_a_locale_of_ascii_only_crashes_no_command(orders: Cli, tmp_path: Path) -> None:
    orders.put(Message("orders", "schön … 東京".encode(), queue_id=0))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    for command in (["read", "orders"], ["tail", "orders"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "mqlake", command[0], str(orders.store), *command[1:]],
            env={**os.environ, **plain},
            capture_output=True,
        )
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr


# ---- put and print as kcat does


def test_single_puts_are_spread_over_the_queues(cli: Cli) -> None:
    for number in range(6):
        cli.ok("put", cli.store, "orders", f"order {number}", "--config", cli.config)
    with cli.open() as store:
        assert [queue.message_count for queue in store.queues("orders")] == [2, 2, 1, 1]


def test_keys_and_headers_come_from_standard_input_and_go_out_by_a_format(cli: Cli) -> None:
    lines = "a=1,b=2|k1 k2\thello\n|k3\t50 % of |\n"
    cli.ok("put", cli.store, "orders", "-", "--queue", 0, "-H", "|", "-K", r"\t", "--config", cli.config, input=lines)
    shown = cli.ok("read", cli.store, "orders", "-f", r"%t %p %o %k %s %S%%\n")
    assert shown == "orders 0 0 k1 k2 hello 5%\norders 0 1 k3 50 % of | 9%\n"
    assert cli.ok("tail", cli.store, "orders", "-n", 1, "-F", r"%o\x3a%s\t") == "1:50 % of |\t"
    assert cli.ok("consume", cli.store, "group", "orders", "-F", "[%k]", "--config", cli.config) == "[k1 k2][k3]"
    (first, _) = cli.json("read", cli.store, "orders")
    assert first["properties"]["a"] == "1" and first["properties"]["b"] == "2"


def test_wrong_formats_and_lines_are_named(cli: Cli) -> None:
    result = cli.run("read", cli.store, "orders", "-f", "%q")
    assert result.exit_code == 2 and "%q" in result.output
    result = cli.run("put", cli.store, "orders", "-", "-K", ":", "--config", cli.config, input="a:b\nno key\n")
    assert result.exit_code == 3 and "line 2" in result.stderr and "(-K)" in result.stderr
    assert cli.run("put", cli.store, "orders", "body", "-K", ":").exit_code == 2


def test_a_format_writes_bodies_as_they_are(cli: Cli) -> None:
    body = bytes(range(256))
    cli.put(Message("orders", body, queue_id=0))
    command = [sys.executable, "-m", "mqlake", "read", str(cli.store), "orders", "-f", "%s"]
    assert subprocess.run(command, capture_output=True).stdout == body


@pytest.mark.parametrize("form", ["table", "csv", "json"])
@pytest.mark.parametrize("more", [[], ["--master", "local[1]"]])
def test_sql_says_that_there_is_no_such_folder_before_it_starts_anything(cli: Cli, form: str, more: list[str]) -> None:
    result = cli.run("sql", cli.folder / "nowhere", "select 1 from messages", "--format", form, *more)
    assert result.exit_code == 3 and result.stdout == ""
    assert result.stderr == f"mqlake: NotAStore: {cli.folder}/nowhere: no such folder; check the path\n"


def test_sql_of_a_small_store_needs_no_java(orders: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    query = "select tags, count(*) n from messages where topic = 'orders' group by tags order by tags"
    shown = orders.ok("sql", orders.store, query, "--format", "json").splitlines()
    assert list(map(json.loads, shown)) == [{"tags": "created", "n": 3}, {"tags": "paid", "n": 3}]
    typed = ".tables\nselect topc from messages;\nselect count(*) n from queues;\n.schema messages\n"
    result = orders.run("sql", orders.store, input=typed)
    assert result.stdout.split()[:3] == ["messages", "queues", "stats"] and "store_timestamp" in result.stdout
    assert "topc" in result.stderr and "DuckDB's dialect" in result.stderr


def test_a_report_tells_of_each_damaged_range_once(damaged: Cli) -> None:
    process = damaged.process("report", damaged.store, "--out", damaged.folder / "page.html")
    _, told = process.communicate(timeout=100)
    lines = [line for line in told.splitlines() if "the log is damaged" in line]
    assert process.returncode == 0 and len(lines) == len(set(lines)) == 3


@pytest.mark.parametrize(("width", "last"), [(40, "bodies"), (60, "largest"), (120, "most")])
def test_stats_leave_out_columns_that_do_not_fit_and_cut_no_number(
    monkeypatch: pytest.MonkeyPatch, width: int, last: str
) -> None:
    heads = ["topic", "messages>", "bytes>", "bodies>", "smallest>", "largest>", "latency>", "most>"]
    cells = [["orders", "100,000", "30.6 MiB", "19.1 MiB", "317 B", "321 B", "1.8 ms", "10 ms"]]
    screen = show.console()
    screen.width = width
    monkeypatch.setattr(show, "console", lambda: screen)
    assert heads[fitting(heads, cells) - 1].rstrip(">") == last
