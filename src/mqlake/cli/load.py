"""`mqlake load`: messages from JSON lines, written by hand, by a program, or by `mqlake dump`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, NamedTuple

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
"""A message with one of these, or part of a transaction, is not taken in a batch: it is stored as it is."""


class Loaded(NamedTuple):
    """What a load did."""

    message_count: int
    skipped_count: int


@click.command()
@store_command
@click.option("--from", "source", required=True, metavar="FILE.jsonl", help="The lines; '-' for standard input.")
@json_option
def load(store: Path, config: Path | None, source: str, as_json: bool) -> None:
    """Append the messages of JSON lines: one object a line.

    \b
    topic                          the only field that must be there
    body or text                   base64, or text as it is
    tags, keys                     a text; keys also as a list
    queueId, properties, flag, sysFlag, bornTimestamp, bornHost

    A dump's `message` lines are taken as they are, its other lines passed over, and so is what waits for delivery: a
    message for later is in a dump twice once it was delivered, and loading both would deliver it twice. A line that
    cannot be taken stops the load, with its number; the lines before it have been stored then.
    """
    name = "standard input" if source == "-" else source
    with click.open_file(source, "rb") as file:
        size = None if source == "-" else Path(source).stat().st_size
        with open_writer(store, config) as opened:
            with show.progress(f"loading {name}", size, bytes_done=True) as step:
                loaded = Loader(opened, name).load(file, step)
    if as_json:
        show.print_json({"messageCount": loaded.message_count, "skippedCount": loaded.skipped_count})
    else:
        click.echo(
            f"{show.count(loaded.message_count)} messages stored, {show.count(loaded.skipped_count)} lines skipped"
        )


class Loader:
    """Puts lines in batches, and finds the one to blame when a batch is refused."""

    def __init__(self, store: MessageStore, name: str) -> None:
        self._store = store
        self._name = name
        self._batch: list[tuple[int, Message]] = []
        self._batch_bytes = 0
        self._stored = 0

    def load(self, file: IO[bytes], step: show.Step) -> Loaded:
        skipped = 0
        for number, line in enumerate(file, 1):
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
        """The message of a line; None for an empty one, for what waited, and lines of a dump that are no messages."""
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
                pass  # none of it is stored: one by one below, to name the line
            else:
                self._stored += len(batch)
                return
        for number, message in batch:
            try:
                self._store.put_as_it_is(message)
            except InvalidMessage as error:
                raise InvalidMessage(f"{self._where(number)}: {error.field}", error.found, error.expected) from None
            self._stored += 1
