"""`mqlake trace`: the way of one message through a store: put, delayed, delivered, retried, dead, and who has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from mqlake import MessageStore, StoredMessage
from mqlake.cli import show
from mqlake.cli.main import EXIT_NOTHING_FOUND, complain
from mqlake.cli.options import json_option, open_reader, store_command
from mqlake.delivery.properties import CANCELS, DELAY_LEVEL, ORIGIN_MESSAGE_ID, OUT_MS, REAL_TOPIC
from mqlake.delivery.registry.system_topics import DEAD_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC


class Step(NamedTuple):
    """One record of the message, and what it means."""

    message: StoredMessage
    what: str
    detail: str
    groups: dict[str, str]
    """The groups that read this record's queue, and what became of it there: see `_groups`."""


@click.command()
@store_command
@click.argument("key")
@click.option("--limit", type=click.IntRange(min=1), default=64, show_default=True, help="At most this many a topic.")
@json_option
@click.pass_context
def trace(ctx: click.Context, store: Path, config: Path | None, key: str, limit: int, as_json: bool) -> None:
    """Show the way of the messages with KEY (a key, or a client's unique id) across all topics, in log order.

    Exit code 1 if there is none.
    """
    with open_reader(store, config) as opened:
        found = [message for topic in opened.topics() for message in opened.find(topic, key, limit=limit)]
        steps = list(steps_of(opened, sorted(found, key=lambda message: message.physical_offset)))
    if not steps:
        complain(f"no message with key {key!r} in any topic")
        ctx.exit(EXIT_NOTHING_FOUND)
    if as_json:
        for step in steps:
            show.print_json(_json(step))
        return
    table = show.table("stored", "what", "topic", "queue>", "offset>", "detail")
    for step in steps:
        message = step.message
        place = show.printable(message.topic), str(message.queue_id), str(message.queue_offset)
        told = [step.detail, *(f"{group}: {state}" for group, state in step.groups.items())]
        detail = show.printable("; ".join(filter(None, told)))
        table.add_row(show.moment(message.store_timestamp), step.what, *place, detail)
    show.console().print(table)


def steps_of(store: MessageStore, messages: list[StoredMessage]) -> Iterator[Step]:
    """Yield what each record means, in the order of the log."""
    delayed: set[str] = set()
    for index, message in enumerate(messages):
        what, detail = _meaning(message, delayed)
        if message.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            delayed.add(message.properties.get(REAL_TOPIC, ""))
            yield Step(message, what, detail, {})
        else:
            yield Step(message, what, detail, _groups(store, message, messages[index + 1 :]))


def _meaning(message: StoredMessage, delayed: set[str]) -> tuple[str, str]:
    topic, properties = message.topic, message.properties
    real = properties.get(REAL_TOPIC, "")
    if topic == TIMER_TOPIC and CANCELS in properties:
        return "cancelled", f"for {real}"
    if topic == TIMER_TOPIC:
        return "delayed", f"for {real}, until {show.moment(int(properties.get(OUT_MS, 0)))}"
    if topic == SCHEDULE_TOPIC:
        return "delayed", f"for {real}, delay level {properties.get(DELAY_LEVEL, '?')}"
    if topic == HALF_TOPIC:
        return "half", f"for {real}, until its transaction is decided"
    if topic.startswith(RETRY_PREFIX):
        return "retried", f"try {message.reconsume_times + 1} of group {topic.removeprefix(RETRY_PREFIX)}"
    if topic.startswith(DEAD_PREFIX):
        return "dead", f"group {topic.removeprefix(DEAD_PREFIX)} failed {show.counted(message.reconsume_times, 'time')}"
    return ("delivered", "") if topic in delayed else ("put", "")


def _groups(store: MessageStore, message: StoredMessage, later: list[StoredMessage]) -> dict[str, str]:
    """Return the groups that read the queue of a message: it waits, was processed, or failed and was stored again."""
    failed = {_group_of(copy) for copy in later if _origin(copy) == _origin(message)}
    return {
        group: "waiting" if lag.offset <= message.queue_offset else "failed" if group in failed else "processed"
        for group in store.groups()
        for lag in store.lag(group)
        if (lag.topic, lag.queue_id) == (message.topic, message.queue_id)
    }


def _origin(message: StoredMessage) -> str:
    """Return the id of the message that this one is, or is a retry of."""
    return message.properties.get(ORIGIN_MESSAGE_ID, message.message_id)


def _group_of(message: StoredMessage) -> str:
    """Return the group that a retry or a dead letter is for, also while it is delayed; else an empty text."""
    topic = message.properties.get(REAL_TOPIC, message.topic)
    prefix = next((prefix for prefix in (RETRY_PREFIX, DEAD_PREFIX) if topic.startswith(prefix)), None)
    return "" if prefix is None else topic.removeprefix(prefix)


def _json(step: Step) -> dict[str, object]:
    message = step.message
    return {
        "what": step.what,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "storeTimestamp": message.store_timestamp,
        "msgId": message.message_id,
        "detail": step.detail,
        "groups": step.groups,
    }
