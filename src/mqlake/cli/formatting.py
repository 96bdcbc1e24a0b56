"""One line for each message: as people read it, as JSON, or by a format string as kcat has it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import click

from mqlake import StoredMessage
from mqlake.cli import show
from mqlake.cli.options import Command

FORMAT_HELP = """How to print a message, as in kcat: %t topic, %p queue, %o queue offset, %k keys, %g tag, %s body,
%h properties, %T store time in ms, %S and %K sizes of body and keys, %i message id, %O physical offset;
\\n, \\t, \\xHH. Bodies are written as they are."""
FIELDS: dict[str, Callable[[StoredMessage], object]] = {
    "t": lambda message: message.topic,
    "p": lambda message: message.queue_id,
    "o": lambda message: message.queue_offset,
    "O": lambda message: message.physical_offset,
    "k": lambda message: " ".join(message.keys),
    "K": lambda message: len(" ".join(message.keys).encode()),
    "g": lambda message: message.tags or "",
    "s": lambda message: show.plain_body(message),
    "S": lambda message: len(show.plain_body(message)),
    "h": lambda message: ",".join(f"{name}={value}" for name, value in message.properties.items()),
    "T": lambda message: message.store_timestamp,
    "i": lambda message: message.message_id,
    "%": lambda message: "%",
}
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART = re.compile(r"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
Part = bytes | Callable[[StoredMessage], object]


def format_option(*names: str) -> Callable[[Command], Command]:
    """Add the option of a format string, under these names."""
    return click.option(*names, "form", metavar="FORMAT", callback=_checked, help=FORMAT_HELP)


def _checked(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        parts_of(text)
    return text


def parts_of(text: str) -> list[Part]:
    """Split a format string into fields and the bytes between them."""
    found: list[Part] = []
    for field, code, escape, literal, rest in _PART.findall(text):
        if field:
            if field not in FIELDS:
                raise click.BadParameter(f"%{field}; expected one of {' '.join(f'%{name}' for name in FIELDS)}")
            found.append(FIELDS[field])
        elif code:
            found.append(bytes([int(code, 16)]))
        elif escape:
            found.append(ESCAPES.get(escape, b"\\" + escape.encode()))
        else:
            found.append((literal or rest).encode("utf-8", "surrogateescape"))
    return found


def unescaped(text: str) -> bytes:
    """Return a separator that was typed with escapes, such as a tab."""
    found = parts_of(text.replace("%", "%%"))
    return b"".join(part if isinstance(part, bytes) else b"%" for part in found)


def line_writer(form: str | None, *, as_json: bool) -> Callable[[StoredMessage], None]:
    """Return what writes one message to standard output."""
    if form is None:
        return lambda message: _write_line(message, as_json=as_json)
    if as_json:
        raise click.UsageError("both --format and --json are given; expected one of them")
    parts = parts_of(form)
    return lambda message: _write_parts(message, parts)


def _write_line(message: StoredMessage, *, as_json: bool) -> None:
    if as_json:
        show.print_json(show.message_json(message))
    else:
        sys.stdout.write(message_line(message) + "\n")


def _write_parts(message: StoredMessage, parts: list[Part]) -> None:
    sys.stdout.flush()
    out = sys.stdout.buffer
    for part in parts:
        value = part if isinstance(part, bytes) else part(message)
        out.write(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape"))
    out.flush()


def message_line(message: StoredMessage) -> str:
    labels = [message.tags or "", *message.keys]
    shown = " ".join(show.printable(label) for label in labels if label)
    where = f"{show.moment(message.store_timestamp)}  {message.queue_id}:{message.queue_offset}"
    return f"{where}  {f'[{shown}]  ' if shown else ''}{show.body(show.plain_body(message))}"
