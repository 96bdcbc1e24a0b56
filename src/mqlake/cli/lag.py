"""`mqlake lag`: show progress and lag of a group in each queue."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from mqlake.cli import show
from mqlake.cli.options import complete_topic, group_argument, json_option, open_reader, store_command
from mqlake.delivery.consume.assignment import QueueLag


@click.command()
@store_command
@group_argument
@click.argument("topic", required=False, shell_complete=complete_topic)
@json_option
def lag(store: Path, config: Path | None, group: str, topic: str | None, as_json: bool) -> None:
    """Show the progress of GROUP in each queue, the range of the queue, and how many messages are left."""
    with open_reader(store, config) as opened:
        print_lags(opened.lag(group, topic), as_json=as_json)


def print_lags(lags: Iterable[QueueLag], *, as_json: bool) -> None:
    table = show.table("topic", "queue>", "progress>", "first>", "end>", "lag>")
    for each in lags:
        if as_json:
            show.print_json(
                {
                    "topic": each.topic,
                    "queueId": each.queue_id,
                    "offset": each.offset,
                    "firstOffset": each.first_offset,
                    "endOffset": each.end_offset,
                    "lag": each.message_count,
                }
            )
        else:
            numbers = (each.queue_id, each.offset, each.first_offset, each.end_offset)
            table.add_row(show.printable(each.topic), *map(str, numbers), show.count(each.message_count))
    if not as_json:
        show.console().print(table)
