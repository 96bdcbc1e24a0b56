"""Output: tables for people, JSON lines for programs, progress on standard error.

Control characters of a message are escaped: a body must not be able to move the cursor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mqlake import StoredMessage, StoreError
from mqlake.inspect.dump import record_fields

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_BYTES = 512
"""A body on one line is cut at this length."""
WIDE = 160
"""Columns of a table that is not shown on a terminal, unless COLUMNS says otherwise."""


def console() -> Console:
    """Return a console on the current standard output."""
    shown = Console(highlight=False)
    if shown.is_terminal or "COLUMNS" in os.environ:
        return shown
    return Console(highlight=False, width=WIDE)


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
    made.expand = any(column.endswith("*") for column in columns)
    return made


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
        plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
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
        return f"0x{data[:16].hex()}{'…' if len(data) > 16 else ''} ({counted(len(data), 'byte')})"
    if len(text) > SHOWN_BYTES:
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
    made = table("queue>", "offset>", "physical>", "stored", "tags", "keys", "body*")
    for message in messages:
        made.add_row(
            str(message.queue_id),
            str(message.queue_offset),
            str(message.physical_offset),
            moment(message.store_timestamp),
            Text(printable(message.tags or "")),
            Text(printable(" ".join(message.keys))),
            Text(body(plain_body(message))),
        )
    return made


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
