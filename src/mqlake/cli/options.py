"""What commands share: the STORE argument, opening a store, and parsing times, durations and sizes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from mqlake import MessageStore, StoreConfig

Command = TypeVar("Command", bound=Callable[..., Any])

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
STORE = click.Path(path_type=Path, readable=False)
"""Whether it can be read is found out by the command, whose error is that of a store, not of the command line."""
NEVER_CUT = 1_000
"""Longer than the summary of any command."""
_AGO = re.compile(r"(\d+)([smhd])")
_SIZE = re.compile(r"(\d+)([kmg]?)(?:i?b)?", re.IGNORECASE)


class Subcommands(click.Group):
    """A command with commands of its own. Its --help shows their summaries whole, which click would cut off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(NEVER_CUT)) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def store_command(command: Command) -> Command:
    """Add the argument STORE and the option --config."""
    config = click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Settings file with RocketMQ's property names, such as broker.conf.",
    )
    return click.argument("store", type=STORE)(config(command))


# ---- completion: the names are read from folders and files, because a shell does not wait for a store to open


def complete_topic(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of STORE that begin so."""
    return _beginning(
        incomplete, _names_in(_store_of(ctx) / "consumequeue") | _known(ctx, "topics.json", "topicConfigTable")
    )


def complete_group(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups of STORE that begin so."""
    readers = {name.rpartition("@")[2] for name in _known(ctx, "consumerOffset.json", "offsetTable")}
    return _beginning(incomplete, readers | _known(ctx, "subscriptionGroup.json", "subscriptionGroupTable"))


def _store_of(ctx: click.Context) -> Path:
    return Path(str(ctx.params.get("store") or "."))


def _names_in(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in folder.iterdir()}
    except OSError:
        return set()


def _known(ctx: click.Context, file: str, table: str) -> set[str]:
    try:
        found = json.loads((_store_of(ctx) / "config" / file).read_text(encoding="utf-8"))[table]
        return set(map(str, found))
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _beginning(incomplete: str, names: set[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


topic_argument = click.argument("topic", shell_complete=complete_topic)
group_argument = click.argument("group", shell_complete=complete_group)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table: one object a line.")(
        command
    )


def settings_of(config: Path | None) -> StoreConfig:
    return StoreConfig() if config is None else StoreConfig.load(config)


def open_reader(store: Path, config: Path | None) -> MessageStore:
    """Open a store for reading, without a lock: another process may be writing."""
    return MessageStore.open(store, read_only=True, config=settings_of(config))


def open_writer(store: Path, config: Path | None) -> MessageStore:
    return MessageStore.open(store, config=settings_of(config))


def open_existing(store: Path, config: Path | None) -> MessageStore:
    """Open a store for writing; raise NotAStore if there is none."""
    return MessageStore.open(store, create=False, config=settings_of(config))


def moment(text: str) -> int:
    """Parse a point in time; return milliseconds since 1970."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time_ns() // 1_000_000 - int(ago[1]) * UNITS_MS[ago[2]]
    if text.isdecimal() and len(text) != len("20260301"):
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        expected = (
            "2026-03-01T12:00:00 (local time if it names no zone), milliseconds since 1970, or 10m for 10 minutes ago"
        )
        raise click.BadParameter(f"{text!r}; expected {expected}") from None


def duration_ms(text: str) -> int:
    """Parse a duration (90s, 30m, 72h, 3d); return milliseconds."""
    form = _AGO.fullmatch(text)
    if form is None:
        raise click.BadParameter(f"{text!r}; expected a number and one of s, m, h, d, such as 72h")
    return int(form[1]) * UNITS_MS[form[2]]


def byte_count(text: str) -> int:
    """Parse a number of bytes: 1048576, 1024k or 1m."""
    form = _SIZE.fullmatch(text)
    if form is None or int(form[1]) == 0:
        raise click.BadParameter(f"{text!r}; expected a number of bytes above 0, such as 1048576, 1024k or 1m")
    return int(form[1]) * SIZE_UNITS[form[2].lower()]
