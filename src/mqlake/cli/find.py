"""`mqlake find`: find messages by key or tag."""

from __future__ import annotations

from pathlib import Path

import click

from mqlake.cli import show
from mqlake.cli.main import EXIT_NOTHING_FOUND, complain
from mqlake.cli.options import json_option, moment, open_reader, store_command, topic_argument
from mqlake.store.read import END_OF_TIME


@click.command()
@store_command
@topic_argument
@click.argument("key")
@click.option("--tag", is_flag=True, help="Treat KEY as a tag.")
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    default="0",
    help="Stored at or after this time: 2026-03-01T12:00, ms since 1970, or 10m (ago).",
)
@click.option("--until", type=moment, metavar="TIME", default=str(END_OF_TIME), help="Stored at or before this time.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=64, show_default=True, help="At most this many, the newest."
)
@json_option
@click.pass_context
def find(
    ctx: click.Context,
    store: Path,
    config: Path | None,
    topic: str,
    key: str,
    tag: bool,
    since: int,
    until: int,
    limit: int,
    as_json: bool,
) -> None:
    """Find the messages of TOPIC with KEY (a key, or a client's unique id). Exit code 1 if there is none."""
    with open_reader(store, config) as opened:
        found = opened.find(topic, key, limit=limit, begin_ms=since, end_ms=until, tag=tag)
        if not found:
            complain(f"no message of topic {topic!r} with {'tag' if tag else 'key'} {key!r}")
            ctx.exit(EXIT_NOTHING_FOUND)
        show.print_messages(found, as_json=as_json)
