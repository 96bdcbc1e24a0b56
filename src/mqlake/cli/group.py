"""`mqlake group`: create, change, delete or list consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mqlake.cli import show
from mqlake.cli.options import Subcommands, json_option, open_existing, open_reader, open_writer, store_command

Command = TypeVar("Command", bound=Callable[..., Any])


def _settings(command: Command) -> Command:
    for option in (
        click.option("--ordered/--unordered", default=None, help="Deliver one message of a queue at a time."),
        click.option(
            "--max-retries",
            "max_retry_count",
            type=click.IntRange(min=-1),
            help="Retries before a message becomes a dead letter.",
        ),
        click.option("--enabled/--disabled", default=None, help="Whether the group may consume."),
        click.option(
            "--broadcast/--no-broadcast",
            "broadcast_enabled",
            default=None,
            help="Whether consumers may keep separate progress.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=Subcommands)
def group() -> None:
    """Create, change, delete or list consumer groups."""


@group.command()
@store_command
@click.argument("name")
@_settings
def create(store: Path, config: Path | None, name: str, **settings: Any) -> None:
    """Create group NAME, and the store if there is none."""
    with open_writer(store, config) as opened:
        opened.create_group(name, **_given(settings))
    click.echo(f"group {name}: created")


@group.command()
@store_command
@click.argument("name")
@_settings
def update(store: Path, config: Path | None, name: str, **settings: Any) -> None:
    """Change the settings of group NAME."""
    with open_existing(store, config) as opened:
        opened.update_group(name, **_given(settings))
    click.echo(f"group {name}: changed")


@group.command()
@store_command
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(store: Path, config: Path | None, name: str, yes: bool) -> None:
    """Delete group NAME and its progress on all topics."""
    with open_existing(store, config) as opened:
        if not yes:
            click.confirm(f"Delete group {name} of {store} and its progress?", abort=True, err=True)
        opened.delete_group(name)
    click.echo(f"group {name}: deleted")


@group.command("list")
@store_command
@json_option
def list_groups(store: Path, config: Path | None, as_json: bool) -> None:
    """List the groups and their settings. `mqlake groups` lists what they read."""
    with open_reader(store, config) as opened:
        found = list(opened.delivery.groups)
    table = show.table("group", "enabled", "ordered", "broadcast", "retries>")
    for each in found:
        if as_json:
            show.print_json(each.to_json())
        else:
            flags = ["yes" if flag else "" for flag in (each.enabled, each.ordered, each.broadcast_enabled)]
            table.add_row(show.printable(each.name), *flags, str(each.max_retry_count))
    if not as_json:
        show.console().print(table)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}
