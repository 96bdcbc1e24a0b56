"""`mqlake dlq`: dead letters, the messages that a group failed to process in all tries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from mqlake import MessageStore, StoredMessage
from mqlake.cli import show
from mqlake.cli.options import Subcommands, group_argument, json_option, open_existing, open_reader, store_command
from mqlake.delivery.later.retry import groups_with_dead_letters
from mqlake.delivery.registry.system_topics import dead_letter_topic


@click.group(cls=Subcommands)
def dlq() -> None:
    """List, show or resend dead letters: messages that a group failed to process in all tries."""


@dlq.command("list")
@store_command
@json_option
def list_(store: Path, config: Path | None, as_json: bool) -> None:
    """List the groups that have dead letters, and how many."""
    with open_reader(store, config) as opened:
        found = {group: _count(opened, group) for group in groups_with_dead_letters(opened.topics())}
    if as_json:
        for group, count in found.items():
            show.print_json({"group": group, "topic": dead_letter_topic(group), "messageCount": count})
        return
    table = show.table("group", "dead letters>")
    for group, count in found.items():
        table.add_row(show.printable(group), show.count(count))
    show.console().print(table)


def _count(store: MessageStore, group: str) -> int:
    return sum(queue.message_count for queue in store.queues(dead_letter_topic(group)))


@dlq.command("show")
@store_command
@group_argument
@click.option("--start", type=click.IntRange(min=0), default=0, show_default=True, help="First queue offset.")
@click.option("--limit", type=click.IntRange(min=1), default=32, show_default=True, help="At most this many messages.")
@json_option
def show_(store: Path, config: Path | None, group: str, start: int, limit: int, as_json: bool) -> None:
    """Show the dead letters of GROUP."""
    with open_reader(store, config) as opened:
        found = list(_dead_letters(opened, group, start, limit))
        if found:
            show.print_messages(found, as_json=as_json)
        elif not as_json:
            after = f" at or after offset {start}" if start else ""
            click.echo(f"group {show.printable(group)} has no dead letters{after}")


@dlq.command()
@store_command
@group_argument
@click.argument("offsets", nargs=-1, type=click.IntRange(min=0), metavar="[OFFSET]...")
@click.option("--all", "everything", is_flag=True, help="Resend all dead letters of the group.")
def resend(store: Path, config: Path | None, group: str, offsets: tuple[int, ...], everything: bool) -> None:
    """Deliver dead letters to GROUP again, with all tries left. They stay in the list."""
    if bool(offsets) == everything:
        raise click.UsageError("name the OFFSETs of dead letters, or give --all")
    with open_existing(store, config) as opened:
        chosen = _dead_letters(opened, group) if everything else _at(opened, group, offsets)
        count = 0
        for letter in list(chosen):
            opened.resend(letter)
            count += 1
    click.echo(f"{count} sent to group {group} again")


def _at(store: MessageStore, group: str, offsets: tuple[int, ...]) -> Iterator[StoredMessage]:
    for offset in offsets:
        found = list(_dead_letters(store, group, offset, 1))
        if not found or found[0].queue_offset != offset:
            raise click.BadParameter(f"group {group} has no dead letter {offset}", param_hint="OFFSET")
        yield found[0]


def _dead_letters(store: MessageStore, group: str, start: int = 0, limit: int = 1 << 62) -> Iterator[StoredMessage]:
    """Yield dead letters, starting at a queue offset. RocketMQ keeps them in one queue."""
    topic = dead_letter_topic(group)
    if topic not in store.topics():
        return
    first = store.queues(topic)[0].first_offset
    start = max(start, first)
    while limit > 0 and (batch := store.read(topic, start=start, limit=min(limit, 1_000))):
        yield from batch
        limit -= len(batch)
        start = batch[-1].queue_offset + 1
