"""`mqlake read`: read a range of one queue."""

from __future__ import annotations

from pathlib import Path

import click

from mqlake import MessageStore
from mqlake.cli import show
from mqlake.cli.formatting import format_option, line_writer
from mqlake.cli.options import json_option, moment, open_reader, store_command, topic_argument


@click.command()
@store_command
@topic_argument
@click.option("--queue", type=click.IntRange(min=0), default=0, show_default=True, help="Queue id.")
@click.option(
    "--start",
    default="first",
    show_default=True,
    metavar="N|first|last|end",
    help="First queue offset: a number, first, last or end.",
)
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Start at the first message stored at or after this time, instead of --start.",
)
@click.option("--limit", type=click.IntRange(min=1), default=32, show_default=True, help="At most this many messages.")
@click.option(
    "--wait", type=click.FloatRange(min=0), default=0.0, help="Seconds to wait for messages at the end of the queue."
)
@format_option("-f", "-F", "--format")
@json_option
def read(
    store: Path,
    config: Path | None,
    topic: str,
    queue: int,
    start: str,
    since: int | None,
    limit: int,
    wait: float,
    form: str | None,
    as_json: bool,
) -> None:
    """Read one queue of TOPIC, starting at an offset or a time."""
    with open_reader(store, config) as opened:
        if since is not None:
            offset: int = opened.seek_time(topic, since, queue_id=queue)
        else:
            offset = _offset(opened, topic, queue, start)
        messages = opened.read(topic, queue_id=queue, start=offset, limit=limit, wait_s=wait)
        if form is None:
            show.print_messages(messages, as_json=as_json)
            return
        write = line_writer(form, as_json=as_json)
        for message in messages:
            write(message)


def _offset(store: MessageStore, topic: str, queue_id: int, start: str) -> int:
    if start.isdecimal():
        return int(start)
    if start not in ("first", "last", "end"):
        raise click.BadParameter(f"{start!r}; expected a queue offset, first, last or end", param_hint="--start")
    found = next((queue for queue in store.queues(topic) if queue.queue_id == queue_id), None)
    if found is None:
        return 0  # the read itself reports which queues exist
    if start == "last":
        return max(found.first_offset, found.end_offset - 1)
    return found.first_offset if start == "first" else found.end_offset
