"""`mqlake reset`: set the progress of a group on a topic."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from mqlake.cli.lag import print_lags
from mqlake.cli.options import group_argument, json_option, moment, open_existing, store_command, topic_argument


@click.command()
@store_command
@group_argument
@topic_argument
@click.option(
    "--to", metavar="first|last|TIME", help="To the first message, after the last one, or to the first since a time."
)
@click.option("--offset", type=click.IntRange(min=0), help="To this queue offset, in all queues or in --queue.")
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
    """Set the progress of GROUP on TOPIC. Messages are delivered again, or skipped.

    No other process may be writing the store.
    """
    if (to is None) == (offset is None):
        raise click.UsageError("give either --to or --offset")
    if to is not None and to.isdigit() and len(to) < 12:
        raise click.UsageError(f"--to {to} is not a time; for a queue offset use --offset {to}")
    if queue is not None and offset is None:
        raise click.UsageError("--queue needs --offset")
    with open_existing(store, config) as opened:
        if offset is not None:
            moved = opened.reset(group, topic, offset if queue is None else {queue: offset})
        elif to in ("first", "last"):
            moved = opened.reset(group, topic, to)
        else:
            moved = opened.reset(group, topic, datetime.fromtimestamp(moment(str(to)) / 1000, UTC))
    print_lags(moved, as_json=as_json)
