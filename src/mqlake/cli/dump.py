"""`mqlake dump`: write a whole store as JSON lines, in the format of the golden dumps."""

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
@click.option("--keys", is_flag=True, help="Also write what the index finds for every key.")
@click.option("--tags", is_flag=True, help="Also write what it finds for every tag.")
@click.option("--walk", is_flag=True, help="Also write every record in the order of the log.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead of standard output."
)
def dump(store: Path, config: Path | None, keys: bool, tags: bool, walk: bool, out: Path | None) -> None:
    """Write everything in a store as JSON lines: one object a line, with its `kind` (store, message, …).

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
    click.echo(f"{show.counted(message_count, 'message')} in {show.counted(line_count, 'line')}: {out}", err=True)
