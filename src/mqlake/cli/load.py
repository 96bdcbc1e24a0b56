"""`mqlake load`: append messages from JSON lines, written by hand, by a program, or by `mqlake dump`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click

from mqlake import InvalidMessage, Message, MessageStore
from mqlake.cli import show
from mqlake.cli.message_lines import message_of
from mqlake.cli.options import json_option, open_writer, store_command
from mqlake.message import WAITING_TOPICS

BATCH_COUNT = 256
BATCH_BYTES = 512 * 1024
TRANSACTION = 0xC
ALONE = frozenset(
    {"INNER_MULTI_DISPATCH", "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DEL_UNIQKEY"}
)
"""A message with one of these, or one of a transaction, is not put in a batch but with `put_as_is`."""


class Loaded(NamedTuple):
    """What a load did."""

    message_count: int
    skipped_count: int


@click.command()
@store_command
@click.option(
    "--from", "source", required=True, metavar="FILE.jsonl", help="File with the lines; '-' for standard input."
)
@json_option
def load(store: Path, config: Path | None, source: str, as_json: bool) -> None:
    """Append messages from JSON lines, one object a line.

    \b
    topic                          required; all other fields are optional
    body or text                   body in base64, or text as a plain string
    tags, keys                     a string; keys may be a list
    queueId, properties, flag, sysFlag, bornTimestamp, bornHost

    Of a dump, `message` lines are loaded and other lines skipped. Messages that wait for later delivery are skipped
    too: after delivery a dump holds them twice, and loading both would deliver them twice. An invalid line stops the
    load and is named by its line number; the lines before it are stored.
    """
    name = "standard input" if source == "-" else source
    with click.open_file(source, "rb") as file:
        size = None if source == "-" else Path(source).stat().st_size
        lines = iter(file)
        first = next(lines, None)
        if first is None:  # nothing to store: no store is made for it
            loaded = Loaded(0, 0)
        else:
            with open_writer(store, config) as opened:
                with show.progress(f"loading {name}", size, bytes_done=True) as step:
                    loaded = Loader(opened, name).load(itertools.chain([first], lines), step)
    if as_json:
        show.print_json({"messageCount": loaded.message_count, "skippedCount": loaded.skipped_count})
    else:
        click.echo(
            f"{show.counted(loaded.message_count, 'message')} stored, "
            f"{show.counted(loaded.skipped_count, 'line')} skipped"
        )


class Loader:
    """Puts lines in batches, and finds the invalid line if a batch is refused."""

    def __init__(self, store: MessageStore, name: str) -> None:
        self._store = store
        self._name = name
        self._batch: list[tuple[int, Message]] = []
        self._batch_bytes = 0
        self._stored = 0

    def load(self, lines: Iterable[bytes], step: show.Step) -> Loaded:
        skipped = 0
        for number, line in enumerate(lines, 1):
            try:
                message = self._message(number, line)
            except InvalidMessage:
                self._put_batch()  # the lines before it are stored, as promised
                raise
            if message is None:
                skipped += 1
            else:
                self._add(number, message)
            step.advance(len(line))
        self._put_batch()
        return Loaded(self._stored, skipped)

    def _where(self, number: int) -> str:
        return f"{self._name}, line {number}"

    def _message(self, number: int, line: bytes) -> Message | None:
        """Return the message of a line; None for an empty line, a waiting message, or a dump line of another kind."""
        if not line.strip():
            return None
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidMessage(self._where(number), str(error), "a JSON object on one line") from None
        if not isinstance(value, dict):
            raise InvalidMessage(self._where(number), f"a JSON {type(value).__name__}", "a JSON object")
        message = message_of(value, self._where(number))
        return None if message is None or message.topic in WAITING_TOPICS else message

    def _add(self, number: int, message: Message) -> None:
        alone = not ALONE.isdisjoint(message.properties) or message.sys_flag & TRANSACTION
        if alone or self._batch_bytes + len(message.body) > BATCH_BYTES or len(self._batch) >= BATCH_COUNT:
            self._put_batch()
        self._batch.append((number, message))
        self._batch_bytes += len(message.body)
        if alone:
            self._put_batch()

    def _put_batch(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if len(batch) > 1:
            try:
                self._store.put_many([message for _, message in batch])
            except InvalidMessage:
                pass  # nothing of the batch is stored: put one by one to find the line
            else:
                self._stored += len(batch)
                return
        for number, message in batch:
            try:
                self._store.put_as_is(message)
            except InvalidMessage as error:
                raise InvalidMessage(f"{self._where(number)}: {error.field}", error.found, error.expected) from None
            self._stored += 1
