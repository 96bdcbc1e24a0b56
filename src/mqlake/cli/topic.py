"""`mqlake topic`: create, change, delete or list topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mqlake.cli import show
from mqlake.cli.options import (
    Subcommands,
    complete_topic,
    json_option,
    open_existing,
    open_reader,
    open_writer,
    store_command,
)
from mqlake.delivery.registry.topics import Permission, Topic

PERMISSIONS = {"r": Permission.READ, "w": Permission.WRITE, "rw": Permission.READ | Permission.WRITE}


@click.group(cls=Subcommands)
def topic() -> None:
    """Create, change, delete or list topics."""


@topic.command()
@store_command
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 65_536), help="Number of queues. Default: defaultTopicQueueNums.")
@click.option(
    "--permission", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True, help="Read, write or both."
)
def create(store: Path, config: Path | None, name: str, queues: int | None, permission: str) -> None:
    """Create topic NAME, and the store if there is none."""
    with open_writer(store, config) as opened:
        made = opened.create_topic(name, queues, permission=PERMISSIONS[permission])
    click.echo(f"topic {made.name}: {show.counted(made.write_queue_count, 'queue')}, {permission}")


@topic.command()
@store_command
@click.argument("name", shell_complete=complete_topic)
@click.option("--read-queues", type=click.IntRange(1, 65_536))
@click.option("--write-queues", type=click.IntRange(1, 65_536))
@click.option("--permission", type=click.Choice(list(PERMISSIONS)), help="Read, write or both.")
def update(
    store: Path,
    config: Path | None,
    name: str,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
) -> None:
    """Change the settings of topic NAME."""
    given: dict[str, Any] = {"read_queue_count": read_queues, "write_queue_count": write_queues}
    changes = {key: value for key, value in given.items() if value is not None}
    if permission is not None:
        changes["permission"] = PERMISSIONS[permission]
    with open_existing(store, config) as opened:
        made = opened.update_topic(name, **changes)
    click.echo(f"topic {made.name}: {show.counted(made.write_queue_count, 'queue')}, {_permission(made)}")


@topic.command()
@store_command
@click.argument("name", shell_complete=complete_topic)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(store: Path, config: Path | None, name: str, yes: bool) -> None:
    """Delete topic NAME, its queues, and the progress of all groups on it."""
    with open_existing(store, config) as opened:
        if not yes:
            click.confirm(f"Delete topic {name} of {store} for good?", abort=True, err=True)
        opened.delete_topic(name)
    click.echo(f"topic {name}: deleted")


@topic.command("list")
@store_command
@json_option
def list_topics(store: Path, config: Path | None, as_json: bool) -> None:
    """List the topics and their settings. `mqlake topics` lists their queues."""
    with open_reader(store, config) as opened:
        topics = list(opened.delivery.topics)
    table = show.table("topic", "read queues>", "write queues>", "permission", "ordered")
    for each in topics:
        if as_json:
            show.print_json(each.to_json())
        else:
            counts = str(each.read_queue_count), str(each.write_queue_count)
            table.add_row(show.printable(each.name), *counts, _permission(each), "yes" if each.ordered else "")
    if not as_json:
        show.console().print(table)


def _permission(found: Topic) -> str:
    return "".join(letter for letter in ("r", "w") if PERMISSIONS[letter] in found.permission) or "none"
