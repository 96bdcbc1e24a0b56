"""`mqlake consume`: print the messages that a group has not read yet, and commit each."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from mqlake import MessageStore, NotPermitted, Sql, StoreLocked, Tags
from mqlake.cli.formatting import format_option, line_writer
from mqlake.cli.options import group_argument, json_option, moment, settings_of, store_command, topic_argument


@click.command()
@store_command
@group_argument
@topic_argument
@click.option("--tags", metavar="'A || B'", help="Only messages with one of these tags.")
@click.option("--sql", metavar="EXPRESSION", help="Only messages whose properties match this SQL92 expression.")
@click.option("--start", default="first", show_default=True, help="Where a new group starts: first, last, or a time.")
@click.option(
    "--progress", metavar="FILE", help="Keep progress in this file, or in 'memory', instead of with the group."
)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@format_option("-F", "--format")
@json_option
def consume(
    store: Path,
    config: Path | None,
    group: str,
    topic: str,
    tags: str | None,
    sql: str | None,
    start: str,
    progress: str | None,
    limit: int | None,
    follow: bool,
    form: str | None,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC that GROUP has not yet read, and save its progress.

    The process that writes the store keeps the progress of groups, so no other process may be writing. If one is, read
    with --progress FILE, which keeps separate progress.
    """
    if tags is not None and sql is not None:
        raise click.UsageError("give either --tags or --sql, not both")
    wanted = Sql(sql) if sql is not None else Tags(tags or "*")
    write = line_writer(form, as_json=as_json)
    begin = start if start in ("first", "last") else datetime.fromtimestamp(moment(start) / 1000, UTC)
    with _open(store, config, alone=progress is not None) as opened:
        if topic not in opened.delivery.topics and topic not in opened.topics():
            raise opened.delivery.topics.unknown(topic)  # no other process can create it while this command runs
        consumer = opened.consumer(
            group,
            topic,
            filter=wanted,
            start=begin,
            progress="group" if progress is None else progress,
            idle_s=None if follow else 0.0,
        )
        with consumer:
            for number, message in enumerate(consumer, 1):
                write(message)
                sys.stdout.flush()
                if number == limit:
                    break


def _open(store: Path, config: Path | None, *, alone: bool) -> MessageStore:
    try:
        return MessageStore.open(store, read_only=alone, create=False, config=settings_of(config))
    except StoreLocked as error:
        raise NotPermitted(
            str(store),
            f"process {error.pid} writes this store, and groups are shared within that process only",
            "stop it, or use --progress FILE to keep separate progress",
        ) from None
