"""`mqlake tail`: show the newest messages of a topic over all its queues, one line each, and follow it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

import click

from mqlake import MessageStore, QueueRange, StoredMessage, UnknownTopic
from mqlake.cli.formatting import format_option, line_writer
from mqlake.cli.options import json_option, open_reader, store_command, topic_argument

POLL_S = 0.02
READ_LIMIT = 256

_in_log_order = attrgetter("physical_offset")


@click.command()
@store_command
@topic_argument
@click.option("--queue", type=click.IntRange(min=0), help="Only this queue.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Start with this many old messages.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@format_option("-F", "--format")
@json_option
def tail(
    store: Path,
    config: Path | None,
    topic: str,
    queue: int | None,
    lines: int,
    follow: bool,
    form: str | None,
    as_json: bool,
) -> None:
    """Show the newest messages of TOPIC, oldest first, merged over its queues.

    With --follow it prints new messages as any process writes them. The topic need not exist yet.
    """
    write = line_writer(form, as_json=as_json)
    with open_reader(store, config) as opened:
        follower = Tail(opened, topic, queue, may_wait=follow)
        _print(follower.newest(lines), write)
        while follow:
            _print(follower.new_messages(), write)
            time.sleep(POLL_S)


class Tail:
    """The position in each queue."""

    def __init__(self, store: MessageStore, topic: str, queue_id: int | None, *, may_wait: bool) -> None:
        self._store = store
        self._topic = topic
        self._queue_id = queue_id
        self._may_wait = may_wait
        self._next: dict[int, int] = {}
        self._log_end = -1

    def newest(self, limit: int) -> list[StoredMessage]:
        """Return the last `limit` messages over all queues, and move the position after them."""
        found: list[StoredMessage] = []
        self._log_end = self._store.end_offset
        for queue in self._queues():
            self._next[queue.queue_id] = max(queue.first_offset, queue.end_offset - limit)
            found += self._read(queue.queue_id, queue.end_offset)
        found.sort(key=_in_log_order)
        return found[len(found) - min(limit, len(found)) :]

    def new_messages(self) -> list[StoredMessage]:
        """Return the messages since the last call."""
        end = self._store.end_offset
        if end == self._log_end:
            return []
        self._log_end = end
        found: list[StoredMessage] = []
        for queue in self._queues():
            self._next.setdefault(queue.queue_id, queue.first_offset)
            found += self._read(queue.queue_id, queue.end_offset)
        return sorted(found, key=_in_log_order)

    def _queues(self) -> list[QueueRange]:
        self._store.topics()  # listing the topics makes a reader find new queues
        try:
            queues = self._store.queues(self._topic)
        except UnknownTopic:
            if self._may_wait:
                return []
            raise
        if self._queue_id is None:
            return queues
        chosen = [queue for queue in queues if queue.queue_id == self._queue_id]
        if not chosen and not self._may_wait:
            known = ", ".join(str(queue.queue_id) for queue in queues)
            raise UnknownTopic(self._topic, self._queue_id, f"queues {known} of this topic")
        return chosen

    def _read(self, queue_id: int, end: int) -> Iterator[StoredMessage]:
        while self._next[queue_id] < end:
            start = self._next[queue_id]
            limit = min(READ_LIMIT, end - start)
            messages = self._store.read(self._topic, queue_id=queue_id, start=start, limit=limit)
            if not messages:
                return
            self._next[queue_id] = self._behind(start, messages)
            yield from messages

    def _behind(self, start: int, messages: list[StoredMessage]) -> int:
        last = messages[-1]
        if last.topic != self._topic:  # a light queue: the record holds its queue offset in another topic
            return start + len(messages)
        return last.queue_offset + int(last.properties.get("INNER_NUM", 1))  # a batch takes several queue offsets


def _print(messages: list[StoredMessage], write: Callable[[StoredMessage], None]) -> None:
    for message in messages:
        write(message)
    if messages:
        sys.stdout.flush()
