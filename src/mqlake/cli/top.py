"""`mqlake top`: watch topics, rates, groups and lag. It only reads, so it works while another process writes.

With --endpoint it asks a broker's metrics instead of the files, so it needs no access to them.

A rate is the difference of two samples of the queues' ends, or of a group's progress, over the time between them.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table

from mqlake import MessageStore
from mqlake.cli import show
from mqlake.cli.metrics_client import fetch_metrics
from mqlake.cli.options import STORE, json_option, open_reader


class TopicLook(NamedTuple):
    """A topic's queues at one moment: how many, their messages, and the sum of their ends."""

    queue_count: int
    message_count: int
    end: int


class GroupLook(NamedTuple):
    """A group's progress on a topic at one moment."""

    offset: int
    lag: int


class Look(NamedTuple):
    """One sample of all topics and groups."""

    at_s: float
    topics: dict[str, TopicLook]
    groups: dict[tuple[str, str], GroupLook]

    @classmethod
    def at(cls, store: MessageStore) -> Look:
        topics = {}
        for topic in store.topics():
            queues = store.queues(topic)
            ends = sum(queue.end_offset for queue in queues)
            topics[topic] = TopicLook(len(queues), sum(queue.message_count for queue in queues), ends)
        groups: dict[tuple[str, str], GroupLook] = {}
        for group in store.groups():
            for each in store.lag(group):
                known = groups.get((group, each.topic), GroupLook(0, 0))
                groups[group, each.topic] = GroupLook(known.offset + each.offset, known.lag + each.message_count)
        return cls(time.monotonic(), topics, groups)

    @classmethod
    def of_broker(cls, endpoint: str) -> Look:
        """Ask a broker's metrics."""
        found = fetch_metrics(endpoint)
        topics = {
            topic: TopicLook(
                int(queues),
                int(found["mqlake_topic_messages"].get((topic,), 0)),
                int(found["mqlake_topic_end_offset"].get((topic,), 0)),
            )
            for (topic,), queues in found["mqlake_topic_queues"].items()
        }
        groups = {
            (group, topic): GroupLook(int(found["mqlake_consumer_offset"].get((group, topic), 0)), int(lag))
            for (group, topic), lag in found["mqlake_consumer_lag_messages"].items()
        }
        return cls(time.monotonic(), topics, groups)


class Row(NamedTuple):
    """One line of a view: names, counts, and messages per second."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    rate: float


@click.command()
@click.argument("store", type=STORE, required=False)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file with RocketMQ's property names, such as broker.conf.",
)
@click.option("--endpoint", metavar="HOST:PORT", help="Watch a broker instead: the address of serve --metrics.")
@click.option(
    "--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, help="Seconds between samples."
)
@click.option(
    "--rows", type=click.IntRange(min=1), default=20, show_default=True, help="Rows in each table, busiest first."
)
@click.option("--once", is_flag=True, help="Take two samples, print once and exit: for scripts.")
@json_option
def top(
    store: Path | None,
    config: Path | None,
    endpoint: str | None,
    interval: float,
    rows: int,
    once: bool,
    as_json: bool,
) -> None:
    """Watch topics, rates, groups and lag of a store, or of a broker. Stop with Ctrl-C."""
    if (store is None) == (endpoint is None):
        raise click.UsageError("name a STORE, or a broker's --endpoint")
    with contextlib.ExitStack() as opened:
        if store is not None:
            reader = opened.enter_context(open_reader(store, config))
            views = _views(lambda: Look.at(reader), interval)
        else:
            views = _views(lambda: Look.of_broker(str(endpoint)), interval)
        if once or as_json:
            _print_once(*next(views), as_json=as_json, rows=rows)
            return
        _watch(views, rows, str(store or endpoint))


def _watch(views: Iterator[tuple[list[Row], list[Row]]], rows: int, title: str) -> None:
    shown = show.console()
    if shown.is_plain:  # a file, or another program: one view after the other
        for topics, groups in views:
            shown.print(_tables(topics, groups, rows, title), "")
            sys.stdout.flush()
    with Live(console=shown, screen=True, auto_refresh=False) as live:
        for topics, groups in views:
            live.update(_tables(topics, groups, rows, title), refresh=True)


def _views(look: Callable[[], Look], interval_s: float) -> Iterator[tuple[list[Row], list[Row]]]:
    before = look()
    while True:
        time.sleep(interval_s)
        now = look()
        yield _topic_rows(before, now), _group_rows(before, now)
        before = now


def _topic_rows(before: Look, now: Look) -> list[Row]:
    seconds = now.at_s - before.at_s
    rows = [
        Row((name,), (look.queue_count, look.message_count), (look.end - before.topics.get(name, look).end) / seconds)
        for name, look in now.topics.items()
    ]
    return sorted(rows, key=lambda row: (-row.rate, -row.counts[1], row.names))


def _group_rows(before: Look, now: Look) -> list[Row]:
    seconds = now.at_s - before.at_s
    rows = [
        Row(names, (look.lag,), (look.offset - before.groups.get(names, look).offset) / seconds)
        for names, look in now.groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.counts[0], -row.rate, row.names))


def _tables(topics: list[Row], groups: list[Row], rows: int, title: str) -> Group:
    first = show.table("topic", "queues>", "messages>", "put/s>", title=f"{title}, {time.strftime('%H:%M:%S')}")
    _fill(first, topics, rows)
    second = show.table("group", "topic", "lag>", "consumed/s>")
    _fill(second, groups, rows)
    return Group(first, "", second)


def _fill(table: Table, rows: list[Row], limit: int) -> None:
    for row in rows[:limit]:
        table.add_row(*map(show.printable, row.names), *map(show.count, row.counts), f"{row.rate:,.0f}")
    if len(rows) > limit:
        table.add_row(f"and {len(rows) - limit} more")


def _print_once(topics: list[Row], groups: list[Row], *, as_json: bool, rows: int) -> None:
    if not as_json:
        show.console().print(_tables(topics, groups, rows, "now"))
        return
    for row in topics:
        queues, messages = row.counts
        show.print_json(
            {"topic": row.names[0], "queueCount": queues, "messageCount": messages, "putsPerSecond": row.rate}
        )
    for row in groups:
        group, topic = row.names
        show.print_json({"group": group, "topic": topic, "lag": row.counts[0], "consumedPerSecond": row.rate})
