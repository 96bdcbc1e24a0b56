"""`mqlake sql`: one query, or a small shell, over the tables of stores (`mqlake.spark.views`)."""

from __future__ import annotations

import base64
import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from mqlake.cli import show
from mqlake.cli.main import complain
from mqlake.cli.spark import master_option, plain_errors, spark_session
from mqlake.errors import QueryFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mqlake.spark import Views

TABLE_ROWS = 1_000
LONG = 40
"""Wider columns shrink if the screen is too narrow for all."""
HISTORY_LINES = 1_000
HELP = """\
End a query with ; to run it.     .tables        list the tables
Ctrl-C drops what was typed.      .schema TABLE  its columns
                                  .quit          leave (or Ctrl-D)"""


@click.command()
@click.argument("arguments", nargs=-1, metavar="[STORE…] [QUERY]")
@click.option("--lake", type=click.Path(), help="Folder of a lake; its messages are the table archive.")
@master_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
def sql(arguments: tuple[str, ...], lake: str | None, master: str, form: str) -> None:
    """Query stores with SQL. Without a QUERY, start a small shell.

    \b
    Tables: messages, queues, stats (traffic by minute), archive (with --lake).
      mqlake sql data/store "select topic, count(*) from messages group by topic"

    The last argument is the query if it has more than one word. Of messages, only the columns that the query needs are
    read. A table shows at most 1,000 rows; csv and json print all.
    """
    stores, query = split_arguments(arguments)
    if not stores and lake is None:
        raise click.UsageError("name a store, or a lake with --lake")
    with spark_session(master) as spark:
        import mqlake.spark

        tables = mqlake.spark.views(spark, stores, lake)
        if query is not None:
            print_answer(tables.sql(query), form)
        else:
            Shell(tables, form).run()


def split_arguments(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """Split stores and query: the last argument is the query unless it is one word or names a folder."""
    if arguments and len(arguments[-1].split()) > 1 and not Path(arguments[-1]).exists():
        return arguments[:-1], arguments[-1].strip().rstrip(";")
    return arguments, None


# ---- answers


def print_answer(answer: DataFrame, form: str) -> int:
    """Print the rows of a result; return how many there were."""
    names = answer.columns
    if not names:
        return 0
    return {"table": print_table, "csv": print_csv, "json": print_json}[form](names, answer)


def print_table(names: list[str], answer: DataFrame) -> int:
    rows = answer.take(TABLE_ROWS + 1)
    numbers = {name for name, kind in answer.dtypes if kind.split("(")[0] in NUMBERS}
    cells = [[cell(value) for value in row] for row in rows[:TABLE_ROWS]]
    widths = [max((len(row[place]) for row in cells), default=0) for place in range(len(names))]
    marks = [">" if name in numbers else "*" if width > LONG else "" for name, width in zip(names, widths, strict=True)]
    table = show.table(*(name + mark for name, mark in zip(names, marks, strict=True)))
    for row in cells:
        table.add_row(*map(Text, row))
    show.console().print(table)
    if len(rows) > TABLE_ROWS:
        click.echo(f"the first {TABLE_ROWS:,} rows; --format csv or json prints all, LIMIT fewer", err=True)
    return min(len(rows), TABLE_ROWS)


NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return show.body(bytes(value))
    if isinstance(value, dict | list | tuple):
        return show.printable(json.dumps(plain(value), ensure_ascii=False))
    return show.printable(str(value))


def print_csv(names: list[str], answer: DataFrame) -> int:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    return _counted(answer.toLocalIterator(), lambda row: writer.writerow([_field(value) for value in row]))


def _field(value: Any) -> Any:
    value = plain(value)
    return json.dumps(value) if isinstance(value, dict | list) else value


def print_json(names: list[str], answer: DataFrame) -> int:
    def write(row: Iterable[Any]) -> None:
        show.print_json(dict(zip(names, map(plain, row), strict=True)))

    return _counted(answer.toLocalIterator(), write)


def _counted(rows: Iterator[Any], write: Callable[[Any], object]) -> int:
    number = 0
    for number, row in enumerate(rows, 1):  # noqa: B007
        write(row)
    return number


def plain(value: Any) -> Any:
    """Return a Spark value for JSON: bytes in base64, times in ISO format."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(plain(name)): plain(item) for name, item in value.items()}
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# ---- the shell


class Shell:
    """Reads queries until the input ends. An error in one does not end the shell."""

    def __init__(self, tables: Views, form: str) -> None:
        self._tables = tables
        self._form = form

    def run(self) -> None:
        if sys.stdin.isatty():
            click.echo(f"Tables: {', '.join(self._tables.names)}. End a query with ; and see .help")
        with history():
            for text in statements(read_line):
                try:
                    self.do(text)
                except QueryFailed as error:
                    complain(str(error))

    def do(self, text: str) -> None:
        """Run one query, or one command of the shell."""
        if text.startswith("."):
            name, _, argument = text.partition(" ")
            self._command(name, argument.strip())
            return
        began = time.perf_counter()
        with plain_errors():
            number = print_answer(self._tables.sql(text), self._form)
        rows = f"{number:,} row{'' if number == 1 else 's'}, " if number else ""
        click.echo(f"{rows}{time.perf_counter() - began:.2f} s", err=True)

    def _command(self, name: str, argument: str) -> None:
        if name == ".tables":
            click.echo("\n".join(self._tables.names))
        elif name == ".schema":
            with plain_errors():
                fields = self._tables.spark.table(argument or "messages").schema.fields
            table = show.table("column", "type", "")
            for field in fields:
                table.add_row(field.name, field.dataType.simpleString(), "" if field.nullable else "not null")
            show.console().print(table)
        elif name == ".help":
            click.echo(HELP)
        else:
            complain(f"{name}: no such command; use .tables, .schema TABLE, .help or .quit")


def read_line(prompt: str) -> str | None:
    """Return the next line; None at the end of the input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline() or None
    try:
        return input(prompt)
    except EOFError:
        click.echo()
        return None


def statements(read: Callable[[str], str | None]) -> Iterator[str]:
    """Yield queries without their ;, and shell commands, until .quit or the end of the input."""
    pending = ""
    while True:
        try:
            line = read("   ...> " if pending else "mqlake> ")
        except KeyboardInterrupt:
            click.echo()
            pending = ""
            continue
        if line is None:
            break
        if not pending and line.strip().startswith("."):
            if line.strip() in (".quit", ".exit"):
                return
            yield line.strip()
            continue
        pending = f"{pending}\n{line.rstrip()}" if pending else line.strip()
        whole, pending = cut(pending)
        yield from whole
    if pending.strip():
        yield pending.strip()


def cut(text: str) -> tuple[list[str], str]:
    """Split at each ; outside quotes and comments; return the statements, and the rest after the last one."""
    found, start, place = [], 0, 0
    while place < len(text):
        if text[place] in "'\"`":
            place = _behind_quote(text, place)
        elif text.startswith("--", place):
            place = text.find("\n", place) if "\n" in text[place:] else len(text)
        else:
            if text[place] == ";":
                found.append(text[start:place].strip())
                start = place + 1
            place += 1
    return [one for one in found if one], text[start:].strip()


def _behind_quote(text: str, place: int) -> int:
    quote, place = text[place], place + 1
    while place < len(text) and text[place] != quote:
        place += 2 if text[place] == "\\" and quote != "`" else 1
    return place + 1


class history:
    """Keep the lines typed between shells; do nothing without a terminal or readline."""

    def __enter__(self) -> None:
        self._path: Path | None = None
        if not sys.stdin.isatty():
            return
        try:
            import readline
        except ImportError:
            return
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        self._path = state / "mqlake" / "sql_history"
        if self._path.exists():
            readline.read_history_file(self._path)
        readline.set_history_length(HISTORY_LINES)

    def __exit__(self, *error: object) -> None:
        if self._path is not None:
            import readline

            self._path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(self._path)
