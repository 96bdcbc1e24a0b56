"""`mqlake delay`: messages to be delivered later."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from mqlake.cli import show
from mqlake.cli.options import Subcommands, json_option, open_existing, open_reader, store_command
from mqlake.delivery.later.waiting import Waiting
from mqlake.delivery.properties import REAL_QUEUE_ID, REAL_TOPIC


@click.group(cls=Subcommands)
def delay() -> None:
    """Show or cancel messages that are to be delivered later."""


@delay.command("list")
@store_command
@click.option("--limit", type=click.IntRange(min=1), default=32, show_default=True, help="At most this many messages.")
@json_option
def list_(store: Path, config: Path | None, limit: int, as_json: bool) -> None:
    """List the messages that are not due yet, the next one first."""
    with open_reader(store, config) as opened:
        found = opened.waiting(limit)
    if as_json:
        for waiting in found:
            show.print_json(
                show.message_json(waiting.message) | {"dueTimestamp": waiting.due_ms, "level": waiting.level}
            )
        return
    table = show.table("due", "by", "topic", "queue>", "physical>", "keys", "body*")
    for waiting in found:
        table.add_row(*_row(waiting))
    show.console().print(table)


def _row(waiting: Waiting) -> list[str | Text]:
    message = waiting.message
    return [
        show.moment(waiting.due_ms),
        "time" if waiting.level is None else f"level {waiting.level}",
        Text(show.printable(message.properties.get(REAL_TOPIC, ""))),
        message.properties.get(REAL_QUEUE_ID, ""),
        str(message.physical_offset),
        Text(show.printable(" ".join(message.keys))),
        Text(show.body(show.plain_body(message))),
    ]


@delay.command()
@store_command
@click.argument("message")
def cancel(store: Path, config: Path | None, message: str) -> None:
    """Cancel a timed message. MESSAGE is its physical offset or its message id, as `put` printed it."""
    with open_existing(store, config) as opened:
        opened.cancel(int(message) if message.isdecimal() and len(message) < 20 else message)
    click.echo(f"cancelled {message}")
