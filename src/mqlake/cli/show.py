"""How things look: tables for people, JSON lines for programs, progress on standard error.

What a message carries is shown with its control characters escaped: a body must not be able to move the cursor.
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
from mqlake.store.dump import record_fields

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_BYTES = 512
"""No body is shown longer than this on one line."""
WIDE = 160
"""Columns of a table that is not shown on a terminal, unless COLUMNS says otherwise."""


def console() -> Console:
    """Standard output, as it is now."""
    shown = Console(highlight=False)
    if shown.is_terminal or "COLUMNS" in os.environ:
        return shown
    return Console(highlight=False, width=WIDE)


def print_json(value: Mapping[str, Any]) -> None:
    """One object, one line."""
    sys.stdout.write(json.dumps(value) + "\n")


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table. A name that ends in `>` is a column of numbers, in `*` one that is cut where space is short."""
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
    """Names and values, one a line."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, Text(value))
    return made


# ---- values


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def count(number: int) -> str:
    return f"{number:,}"


def size(number: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def moment(timestamp_ms: int) -> str:
    """A time of a message, in local time."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def body(data: bytes) -> str:
    """A body on one line: text where it is UTF-8, else hexadecimal; cut where it is long."""
    if not data:
        return "(empty)"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data[:16].hex()}{'…' if len(data) > 16 else ''} ({count(len(data))} bytes)"
    if len(text) > SHOWN_BYTES:
        return f"{printable(text[:SHOWN_BYTES])}… ({count(len(data))} bytes)"
    return printable(text)


# ---- messages


def plain_body(message: StoredMessage) -> bytes:
    """The body decompressed; as stored where that fails, so that a look at a message never does."""
    try:
        return message.body
    except (StoreError, ValueError):
        return message.raw_body


def message_json(message: StoredMessage) -> dict[str, Any]:
    """A message as a dump shows it (`body` as stored, base64), and its decompressed body as `text` where it is one."""
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
    """One bar of progress; does nothing where standard error is no terminal."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def advance(self, by: float = 1) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, by)

    def done(self, completed: float, total: float | None = None) -> None:
        """All in all, this much is done; of how much, where that was not known before."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=completed, total=total)


@contextmanager
def progress(what: str, total: float | None, *, bytes_done: bool = False) -> Iterator[Step]:
    """A bar on standard error while the block runs, gone afterwards. A `total` of None is unknown."""
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
