"""Output: tables for people, JSON lines for programs, progress on standard error.

Control characters of a message are escaped: a body must not be able to move the cursor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mqlake import StoredMessage, StoreError
from mqlake.inspect.dump import record_fields

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_BYTES = 512
"""A body on one line of a terminal is cut at this length."""
NEVER_CUT = 1 << 20
"""Columns of output that is not a terminal: a program gets every line whole."""
BODY_COLUMNS = 30
"""On a narrow terminal other columns are left out until a body has this much space."""


class Output(Console):
    """Standard output: tables that fit a terminal, or whole lines without padding for a program."""

    def __init__(self) -> None:
        super().__init__(highlight=False)
        self.is_plain = not self.is_terminal
        if self.is_plain:
            self.width = NEVER_CUT

    def print(self, *objects: Any, **named: Any) -> None:
        if not self.is_plain:
            super().print(*objects, **named)
            return
        with self.capture() as captured:
            super().print(*objects, **named)
        for line in captured.get().splitlines():
            sys.stdout.write(line.rstrip() + "\n")

    def on_broken_pipe(self) -> None:
        """Leave it to the entry point, which knows the exit code."""
        raise BrokenPipeError


def console() -> Output:
    """Return a console on the current standard output."""
    return Output()


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    sys.stdout.write(json.dumps(value) + "\n")


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table. `name>` is a column of numbers, `name*` one that is cut if space is short."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        name = column.rstrip(">*")
        made.add_column(
            name,
            justify="right" if column.endswith(">") else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if column.endswith("*") else None,
        )
    made.expand = any(column.endswith("*") for column in columns) and not console().is_plain
    return made


class Blocks:
    """A table that is printed block by block, with one line of names. Its columns keep the widths of earlier blocks."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._widths = [cell_len(name.rstrip(">*")) for name in columns]
        self.row_count = 0

    def print(self, rows: Sequence[Sequence[str]]) -> None:
        """Print some rows, and the names before the first ones."""
        self._widths = [
            max([width, *(cell_len(row[place]) for row in rows)]) for place, width in enumerate(self._widths)
        ]
        screen = console()
        if screen.is_plain:  # for a program, without the time that a layout takes
            names = [] if self.row_count else [[name.rstrip(">*") for name in self._columns]]
            for row in [*names, *rows]:
                sys.stdout.write("  ".join(map(_padded, self._columns, row, self._widths)).rstrip() + "\n")
        else:
            screen.print(self._made(rows, screen.width))
        self.row_count += len(rows)
        sys.stdout.flush()

    def _made(self, rows: Sequence[Sequence[str]], space: int) -> Table:
        made = table(*self._columns)
        made.show_header = not self.row_count
        is_cut = [column.ratio is not None for column in made.columns]
        kept = [min(width, BODY_COLUMNS) if cut else width for cut, width in zip(is_cut, self._widths, strict=True)]
        if sum(kept) + 2 * len(kept) <= space:
            for column, width, cut in zip(made.columns, kept, is_cut, strict=True):
                column.min_width = None if cut else width
        for row in rows:
            made.add_row(*map(Text, row))
        return made


def _padded(column: str, text: str, width: int) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if column.endswith(">") else text + blanks


def facts(rows: Iterable[tuple[str, str]], title: str | None = None) -> Table:
    """Return a table of names and values, one a line."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, Text(value))
    return made


# ---- values


def printable(text: str) -> str:
    """Escape control characters, so that a terminal shows the text and does not obey it."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def count(number: int) -> str:
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: 1 queue, 2 queues, 1,000 entries."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        plural = f"{noun[:-1]}ies"
    else:
        plural = f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"
    return f"{count(number)} {noun if number == 1 else plural}"


def size(number: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def moment(timestamp_ms: int) -> str:
    """Return a message's time as local time."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def body(data: bytes) -> str:
    """Return a body on one line: text if it is UTF-8, else hexadecimal; cut if it is long."""
    if not data:
        return "(empty)"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        if console().is_plain:
            return f"0x{data.hex()}"
        return f"0x{data[:16].hex()}{'…' if len(data) > 16 else ''} ({counted(len(data), 'byte')})"
    if len(text) > SHOWN_BYTES and not console().is_plain:
        return f"{printable(text[:SHOWN_BYTES])}… ({counted(len(data), 'byte')})"
    return printable(text)


# ---- messages


def plain_body(message: StoredMessage) -> bytes:
    """Return the decompressed body, or the stored bytes if that fails: showing a message must not fail."""
    try:
        return message.body
    except (StoreError, ValueError):
        return message.raw_body


def message_json(message: StoredMessage) -> dict[str, Any]:
    """Return a message as in a dump (`body` as stored, base64), with `text` if the decompressed body is text."""
    fields = {"kind": "message", **record_fields(message)}
    try:
        fields["text"] = plain_body(message).decode()
    except UnicodeDecodeError:
        pass
    return fields


def messages_table(messages: Iterable[StoredMessage]) -> Table:
    """Return a table of messages. On a narrow terminal the body keeps its place, and other columns are left out."""
    columns = ["queue>", "offset>", "physical>", "stored", "tags", "keys", "body*"]
    rows = [
        [
            str(message.queue_id),
            str(message.queue_offset),
            str(message.physical_offset),
            moment(message.store_timestamp),
            printable(message.tags or ""),
            printable(" ".join(message.keys)),
            body(plain_body(message)),
        ]
        for message in messages
    ]
    places = [place for place in range(len(columns)) if place not in _left_out(columns, rows)]
    made = table(*(columns[place] for place in places))
    for row in rows:
        made.add_row(*(Text(row[place]) for place in places))
    return made


def _left_out(columns: list[str], rows: list[list[str]]) -> set[int]:
    """Return which columns of messages do not fit beside a body of BODY_COLUMNS: the least important first."""
    widths = [
        max([cell_len(name.rstrip(">*")), *(cell_len(row[place]) for row in rows)]) + 2
        for place, name in enumerate(columns)
    ]
    space = console().width - min(widths[-1], BODY_COLUMNS)
    dropped: set[int] = set()
    for name in ("physical>", "stored", "tags", "keys", "queue>"):
        if sum(width for place, width in enumerate(widths[:-1]) if place not in dropped) <= space:
            break
        dropped.add(columns.index(name))
    return dropped


def print_messages(messages: Iterable[StoredMessage], *, as_json: bool) -> None:
    if as_json:
        for message in messages:
            print_json(message_json(message))
    else:
        console().print(messages_table(messages))


# ---- progress


class Step:
    """One progress bar. Does nothing if standard error is no terminal."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def advance(self, by: float = 1) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, by)

    def done(self, completed: float, total: float | None = None) -> None:
        """Set the amount done, and the total if it is known only now."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=completed, total=total)


@contextmanager
def progress(what: str, total: float | None, *, bytes_done: bool = False) -> Iterator[Step]:
    """Show a progress bar on standard error while the block runs. A `total` of None is unknown."""
    shown = Console(stderr=True)
    if not shown.is_terminal:
        yield Step(None, None)
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn(binary_units=True) if bytes_done else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True) as running:
        yield Step(running, running.add_task(what, total=total))
