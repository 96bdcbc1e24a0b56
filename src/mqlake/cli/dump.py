"""`mqlake dump`: all of a store as JSON lines, in the form that the golden stores' dumps have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mqlake import MessageStore
from mqlake.cli import show
from mqlake.cli.options import open_reader, store_command
from mqlake.cli.output_file import whole_file
from mqlake.config import read_properties


@click.command()
@store_command
@click.option("--keys", is_flag=True, help="What the index answers for every key, too.")
@click.option("--tags", is_flag=True, help="What it answers for every tag, too.")
@click.option("--walk", is_flag=True, help="Every record of the log in its order, too.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="A file, in the place of standard output.")
def dump(store: Path, config: Path | None, keys: bool, tags: bool, walk: bool, out: Path | None) -> None:
    """Write everything in a store as JSON lines, one object each, by `kind`: store, message, and as asked.

    Load the messages into another store with `mqlake load`.
    """
    settings = {} if config is None else read_properties(config)
    with open_reader(store, config) as opened:
        lines = opened.dump(settings, walk=walk, keys=keys, tags=tags)
        if out is None:
            for line in lines:
                show.print_json(line)
        else:
            _write(opened, lines, out)


def _write(store: MessageStore, lines: Iterator[dict[str, Any]], out: Path) -> None:
    total = sum(queue.message_count for topic in store.topics() for queue in store.queues(topic))
    message_count = line_count = 0
    with whole_file(out) as path, path.open("w", encoding="ascii") as file:
        with show.progress(f"dumping to {out.name}", total) as step:
            for line in lines:
                file.write(json.dumps(line) + "\n")
                line_count += 1
                if line["kind"] == "message":
                    message_count += 1
                    step.advance()
    click.echo(f"{show.count(message_count)} messages in {show.count(line_count)} lines: {out}", err=True)
