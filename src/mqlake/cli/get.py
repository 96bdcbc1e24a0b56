"""`mqlake get`: show one message, by physical offset or message id."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from mqlake import InvalidMessage, NoSuchMessage, OffsetOutOfRange, StoredMessage
from mqlake.cli import show
from mqlake.cli.main import EXIT_NOTHING_FOUND, complain
from mqlake.cli.options import json_option, open_reader, store_command

_MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


@click.command()
@store_command
@click.argument("at", metavar="OFFSET|MESSAGE_ID")
@click.option("--raw", is_flag=True, help="Write only the body to standard output, as bytes.")
@json_option
@click.pass_context
def get(ctx: click.Context, store: Path, config: Path | None, at: str, raw: bool, as_json: bool) -> None:
    """Show the message at a physical offset, or with a message id. Exit code 1 if there is none."""
    place = _place(at)
    with open_reader(store, config) as opened:
        try:
            message = opened.get(place)
        except (NoSuchMessage, OffsetOutOfRange) as error:
            complain(f"{type(error).__name__}: {error}")
            ctx.exit(EXIT_NOTHING_FOUND)
        if raw:
            sys.stdout.buffer.write(_inflated(message))
        elif as_json:
            show.print_json(show.message_json(message))
        else:
            show.console().print(show.facts(_facts(message)))


def _place(text: str) -> int | str:
    if _MESSAGE_ID.fullmatch(text):  # first: an id may have digits only
        return text
    if text.isdecimal():
        return int(text)
    raise click.BadParameter(
        f"{text!r}; expected a physical offset, or a message id of 32 or 56 hexadecimal digits",
        param_hint="OFFSET|MESSAGE_ID",
    )


def _inflated(message: StoredMessage) -> bytes:
    """Return the body as its producer sent it; raise rather than return a part of it."""
    try:
        return message.body
    except ValueError as error:
        raise InvalidMessage(
            f"body at {message.physical_offset}", str(error), "a body that can be decompressed"
        ) from None


def _facts(message: StoredMessage) -> list[tuple[str, str]]:
    rows = [
        ("message id", message.message_id),
        ("topic", show.printable(message.topic)),
        ("queue", str(message.queue_id)),
        ("queue offset", str(message.queue_offset)),
        ("physical offset", str(message.physical_offset)),
        ("record", f"{show.counted(message.size, 'byte')}"),
        ("stored", f"{show.moment(message.store_timestamp)} by {message.store_host}"),
        ("born", f"{show.moment(message.born_timestamp)} at {message.born_host}"),
        (
            "flags",
            f"flag {message.flag}, system {message.sys_flag:#x}, "
            f"consumed again {show.counted(message.reconsume_times, 'time')}",
        ),
    ]
    rows += [(f"property {show.printable(name)}", show.printable(value)) for name, value in message.properties.items()]
    data = show.plain_body(message)
    return [*rows, (f"body, {show.counted(len(data), 'byte')}", show.body(data))]
