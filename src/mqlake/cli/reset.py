"""`mqlake reset`: set a group's progress on a topic anew."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from mqlake.cli.lag import print_lags
from mqlake.cli.options import json_option, moment, open_existing, store_command


@click.command()
@store_command
@click.argument("group")
@click.argument("topic")
@click.option("--to", metavar="first|last|TIME", help="The first message, behind the last, or the first since a time.")
@click.option("--offset", type=click.IntRange(min=0), help="This offset, in every queue or in --queue.")
@click.option("--queue", type=click.IntRange(min=0), help="Only this queue; with --offset.")
@json_option
def reset(
    store: Path,
    config: Path | None,
    group: str,
    topic: str,
    to: str | None,
    offset: int | None,
    queue: int | None,
    as_json: bool,
) -> None:
    """Have GROUP go on elsewhere in TOPIC: messages come again, or are left out.

    Nobody else may be writing the store.
    """
    if (to is None) == (offset is None):
        raise click.UsageError("--to or --offset: one of them")
    if to is not None and to.isdigit() and len(to) < 12:
        raise click.UsageError(f"--to {to} is no time; for an offset, --offset {to}")
    if queue is not None and offset is None:
        raise click.UsageError("--queue goes with --offset")
    with open_existing(store, config) as opened:
        if offset is not None:
            moved = opened.reset(group, topic, offset if queue is None else {queue: offset})
        elif to in ("first", "last"):
            moved = opened.reset(group, topic, to)
        else:
            moved = opened.reset(group, topic, datetime.fromtimestamp(moment(str(to)) / 1000, UTC))
    print_lags(moved, as_json=as_json)
