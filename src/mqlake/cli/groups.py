"""`mqlake groups`: list consumer groups, their topics and their lag."""

from __future__ import annotations

from pathlib import Path

import click

from mqlake import MessageStore
from mqlake.cli import show
from mqlake.cli.options import json_option, open_reader, store_command


@click.command()
@store_command
@json_option
def groups(store: Path, config: Path | None, as_json: bool) -> None:
    """List the consumer groups with the topics they read and their lag in messages."""
    with open_reader(store, config) as opened:
        rows = [row for group in opened.groups() for row in _rows(opened, group)]
    if as_json:
        for group, topic, queues, lag in rows:
            show.print_json({"group": group, "topic": topic, "queueCount": queues, "lag": lag})
        return
    table = show.table("group", "topic", "queues>", "lag>")
    for group, topic, queues, lag in rows:
        table.add_row(show.printable(group), show.printable(topic or ""), show.count(queues), show.count(lag))
    show.console().print(table)


def _rows(store: MessageStore, group: str) -> list[tuple[str, str | None, int, int]]:
    """Return one row a topic, or one without a topic if the group has read nothing."""
    lags = store.lag(group)
    topics = sorted({each.topic for each in lags})
    found: list[tuple[str, str | None, int, int]] = []
    for topic in topics:
        of_topic = [each.message_count for each in lags if each.topic == topic]
        found.append((group, topic, len(of_topic), sum(of_topic)))
    return found or [(group, None, 0, 0)]
