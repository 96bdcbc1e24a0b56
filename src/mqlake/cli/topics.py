"""`mqlake topics`: list topics and their queues."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from mqlake.cli import show
from mqlake.cli.options import json_option, open_reader, store_command


@click.command()
@store_command
@json_option
def topics(store: Path, config: Path | None, as_json: bool) -> None:
    """List the topics and, for each queue, the range of readable queue offsets."""
    with open_reader(store, config) as opened:
        ranges = [queue for topic in opened.topics() for queue in opened.queues(topic)]
    if as_json:
        for queue in ranges:
            show.print_json(
                {
                    "topic": queue.topic,
                    "queueId": queue.queue_id,
                    "firstOffset": queue.first_offset,
                    "endOffset": queue.end_offset,
                    "messageCount": queue.message_count,
                }
            )
        return
    table = show.table("topic", "queue>", "first>", "end>", "messages>")
    shown = None
    for queue in ranges:
        name = "" if queue.topic == shown else show.printable(queue.topic)
        shown = queue.topic
        table.add_row(
            Text(name),
            str(queue.queue_id),
            str(queue.first_offset),
            str(queue.end_offset),
            show.count(queue.message_count),
        )
    show.console().print(table)
