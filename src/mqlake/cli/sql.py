"""`mqlake sql`: one query, or a small shell, over the tables of stores (`mqlake.spark.views`)."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from mqlake.cli import show
from mqlake.cli.answers import print_answer
from mqlake.cli.embedded import EmbeddedAnswers, are_installed, folders_of, is_small
from mqlake.cli.main import complain
from mqlake.cli.spark import LOCAL, plain_errors, spark_session
from mqlake.errors import StoreError
from mqlake.files.place import exists

if TYPE_CHECKING:
    from mqlake.spark import Views

HISTORY_LINES = 1_000
HELP = """\
End a query with ; to run it.     .tables        list the tables
Ctrl-C drops what was typed.      .schema TABLE  its columns
                                  .quit          leave (or Ctrl-D)"""


@click.command()
@click.argument("arguments", nargs=-1, metavar="[STORE…] [QUERY]")
@click.option("--lake", type=click.Path(), help="Folder of a lake; its messages are the table archive.")
@click.option("--master", help="Ask Spark, on this master: local[*], spark://host:7077.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
def sql(arguments: tuple[str, ...], lake: str | None, master: str | None, form: str) -> None:
    """Query stores with SQL. Without a QUERY, start a small shell.

    \b
    Tables: messages, queues, stats (traffic by minute), archive (with --lake).
      mqlake sql data/store "select topic, count(*) from messages group by topic"

    Small stores are asked in this process, by DuckDB; large ones, lakes, and all with --master, by Spark.
    The last argument is the query if it has more than one word. Of messages, only the columns that the query needs are
    read. A table shows at most 1,000 rows; csv and json print all. Times are in the session's zone (SET TIME ZONE).
    """
    stores, query = split_arguments(arguments)
    if not stores and lake is None:
        raise click.UsageError("name a store, or a lake with --lake")
    folders = folders_of(stores)
    may_be_here = master is None and lake is None and is_small(folders)
    if may_be_here and are_installed("duckdb", "pyarrow", "numpy"):
        from mqlake.embedded.tables import EmbeddedTables

        with contextlib.closing(EmbeddedTables(folders)) as embedded:
            run(EmbeddedAnswers(embedded, form), query)
        return
    with spark_session(master or LOCAL, extra="sql" if may_be_here else "spark") as spark:
        import mqlake.spark

        run(SparkAnswers(mqlake.spark.views(spark, stores, lake), form), query)


def run(tables: Answers, query: str | None) -> None:
    """Answer one query, or those that are typed."""
    if query is not None:
        tables.answer(query)
    else:
        Shell(tables).run()


def split_arguments(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """Split stores and query: the last argument is the query unless it is one word or names a folder."""
    if arguments and len(arguments[-1].split()) > 1 and not exists(arguments[-1]):
        return arguments[:-1], arguments[-1].strip().rstrip(";")
    return arguments, None


class Answers(Protocol):
    """An engine that answers queries over the tables of stores."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def cut(self, text: str) -> tuple[list[str], str]:
        """Split at each ; that ends a statement; return the statements, and the rest after the last one."""

    def answer(self, text: str) -> int:
        """Print the rows of a query; return how many there were."""

    def columns(self, table: str) -> Iterable[tuple[str, str, str]]:
        """Return name, type and remark of each column of a table."""


class SparkAnswers:
    """Answers by Spark."""

    def __init__(self, tables: Views, form: str) -> None:
        self._tables = tables
        self._form = form

    @property
    def names(self) -> tuple[str, ...]:
        return self._tables.names

    def cut(self, text: str) -> tuple[list[str], str]:
        return cut(text)

    def answer(self, text: str) -> int:
        with plain_errors():
            return print_answer(self._tables.sql(text), self._form)

    def columns(self, table: str) -> Iterable[tuple[str, str, str]]:
        with plain_errors():
            fields = self._tables.spark.table(table).schema.fields
        return [(field.name, field.dataType.simpleString(), "" if field.nullable else "not null") for field in fields]


# ---- the shell


class Shell:
    """Reads queries until the input ends. An error in one does not end the shell."""

    def __init__(self, tables: Answers) -> None:
        self._tables = tables

    def run(self) -> None:
        if sys.stdin.isatty():
            click.echo(f"Tables: {', '.join(self._tables.names)}. End a query with ; and see .help")
        with history():
            for text in statements(read_line, self._tables.cut):
                try:
                    self.do(text)
                except StoreError as error:
                    complain(str(error))

    def do(self, text: str) -> None:
        """Run one query, or one command of the shell."""
        if text.startswith("."):
            name, _, argument = text.partition(" ")
            self._command(name, argument.strip())
            return
        began = time.perf_counter()
        number = self._tables.answer(text)
        rows = f"{show.counted(number, 'row')}, " if number else ""
        click.echo(f"{rows}{time.perf_counter() - began:.2f} s", err=True)

    def _command(self, name: str, argument: str) -> None:
        if name == ".tables":
            click.echo("\n".join(self._tables.names))
        elif name == ".schema":
            table = show.table("column", "type", "")
            for column in self._tables.columns(argument or "messages"):
                table.add_row(*column)
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


def statements(read: Callable[[str], str | None], cut: Callable[[str], tuple[list[str], str]]) -> Iterator[str]:
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
    """Split as Spark does: at each ; outside quotes, in which \\ escapes, and comments."""
    found, start, place = [], 0, 0
    while place < len(text):
        if text[place] in "'\"`":
            place = _after_quote(text, place)
        elif text.startswith("--", place):
            place = _after(text, "\n", place)
        elif text.startswith("/*", place):
            place = _after(text, "*/", place + 2)
        else:
            if text[place] == ";":
                found.append(text[start:place].strip())
                start = place + 1
            place += 1
    return [one for one in found if one], text[start:].strip()


def _after(text: str, mark: str, place: int) -> int:
    """Return the place after the next mark; the end of the text if there is none."""
    found = text.find(mark, place)
    return found + len(mark) if found >= 0 else len(text)


def _after_quote(text: str, place: int) -> int:
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
