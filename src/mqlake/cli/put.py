"""`mqlake put`: append messages from the command line, a file, or the lines of standard input."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from mqlake import Durability, InvalidMessage, Message, MessageStore, PutReceipt
from mqlake.cli import show
from mqlake.cli.formatting import unescaped
from mqlake.cli.options import duration_ms, json_option, moment, open_writer, store_command, topic_argument


def separator(text: str) -> bytes:
    if not text:
        raise click.BadParameter("it is empty; expected one character or more")
    return unescaped(text)


def name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r}; expected NAME=VALUE")
    return name, value


@click.command()
@store_command
@topic_argument
@click.argument("body", required=False)
@click.option(
    "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the body from this file."
)
@click.option("--tags", help="Tag of the message; consumers filter by it.")
@click.option("--key", "keys", multiple=True, help="Key for `mqlake find`; may be repeated.")
@click.option(
    *("-K", "key_separator"),
    type=separator,
    metavar="SEP",
    help="Lines are KEY SEP BODY; SEP may be \\t. Several keys: spaces between.",
)
@click.option(
    *("-H", "header_separator"),
    type=separator,
    metavar="SEP",
    help="Lines begin with NAME=VALUE,NAME=VALUE SEP: properties, before a key.",
)
@click.option("--queue", type=click.IntRange(min=0), help="Queue id. Default: the queues of the topic in turn.")
@click.option(
    *("--property", "properties"),
    type=name_and_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="A property; may be repeated.",
)
@click.option(
    "--delay", type=duration_ms, metavar="30s|10m|2h", help="Deliver the message after this time: 90s, 30m, 3d."
)
@click.option("--at", type=moment, metavar="TIME", help="Deliver the message at this time.")
@click.option("--flag", type=int, default=0, help="A number for your own use, stored with the message.")
@click.option("--sync", is_flag=True, help="Return only when the message is on disk.")
@json_option
def put(
    store: Path,
    config: Path | None,
    topic: str,
    body: str | None,
    file: Path | None,
    tags: str | None,
    keys: tuple[str, ...],
    key_separator: bytes | None,
    header_separator: bytes | None,
    queue: int | None,
    properties: tuple[tuple[str, str], ...],
    delay: int | None,
    at: int | None,
    flag: int,
    sync: bool,
    as_json: bool,
) -> None:
    """Append messages to TOPIC.

    BODY is the message. If BODY is '-', or is missing and input is piped in, each line of standard input is a message.
    """
    if delay is not None and at is not None:
        raise click.UsageError("both --delay and --at are given; expected one of them")
    later: dict[str, Any] = {"delay_s": delay / 1000 if delay is not None else None, "deliver_at": at}
    are_lines = file is None and body in (None, "-")
    if (header_separator or key_separator) and not are_lines:
        raise click.UsageError("-K and -H split lines of standard input; BODY and --file have none")
    bodies = _bodies(body, file)
    durability = Durability.DISK if sync else None
    with open_writer(store, config) as opened:
        turn = _turn(opened, topic) if queue is None else itertools.repeat(queue)
        for number, data in enumerate(bodies, 1):
            line = _split(data, header_separator, key_separator, number)
            own = {"keys": [*keys, *line.keys], "properties": dict(properties) | line.properties}
            fields: dict[str, Any] = {"tags": tags, "queue_id": next(turn), "flag": flag, **own}
            try:
                receipt = opened.put(Message(topic, line.body, **fields, **later), durability=durability)
            except InvalidMessage as error:
                if not are_lines:
                    raise
                raise InvalidMessage(f"line {number}: {error.field}", error.found, error.expected) from None
            _report(receipt, as_json=as_json)


class Line(NamedTuple):
    """One message of standard input."""

    body: bytes
    keys: list[str]
    properties: dict[str, str]


def _split(data: bytes, header_separator: bytes | None, key_separator: bytes | None, number: int) -> Line:
    """Split one line: properties, keys, body, each before its separator if there is one."""
    properties: dict[str, str] = {}
    keys: list[str] = []
    if header_separator is not None:
        text, data = _before(data, header_separator, "-H", number)
        properties = dict(_header(part, number) for part in text.split(",") if part)
    if key_separator is not None:
        text, data = _before(data, key_separator, "-K", number)
        keys = text.split()
    return Line(data, keys, properties)


def _before(data: bytes, separator: bytes, option: str, number: int) -> tuple[str, bytes]:
    text, found, rest = data.partition(separator)
    if not found:
        expected = f"{separator.decode(errors='replace')!r} in every line ({option})"
        raise InvalidMessage(f"line {number}", show.body(data), expected)
    return text.decode("utf-8", "surrogateescape"), rest


def _header(text: str, number: int) -> tuple[str, str]:
    try:
        return name_and_value(text)
    except click.BadParameter:
        raise InvalidMessage(f"line {number}", show.printable(text), "NAME=VALUE,NAME=VALUE first (-H)") from None


def _turn(store: MessageStore, topic: str) -> Iterator[int | None]:
    """Return the queues to put to. A store that was just opened begins with queue 0; this continues the last put."""
    known = store.delivery.topics.find(topic)
    if known is None or not known.write_queue_count or topic not in store.topics():
        return itertools.repeat(None)
    count = known.write_queue_count
    stored = sum(queue.end_offset for queue in store.queues(topic))
    return (place % count for place in itertools.count(stored))


def _bodies(body: str | None, file: Path | None) -> Iterator[bytes]:
    """Return the bodies to put. Called before the store is opened: a usage error creates no store."""
    if file is not None:
        if body is not None:
            raise click.UsageError("both BODY and --file are given; expected one of them")
        return iter([file.read_bytes()])
    if body is None and sys.stdin.isatty():
        raise click.UsageError("no BODY; expected an argument, --file, or lines of standard input")
    if body is None or body == "-":
        return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    return iter([body.encode("utf-8", "surrogateescape")])


def _report(receipt: PutReceipt, *, as_json: bool) -> None:
    if as_json:
        show.print_json(
            {
                "topic": receipt.topic,
                "queueId": receipt.queue_id,
                "queueOffset": receipt.queue_offset,
                "physicalOffset": receipt.physical_offset,
                "storeSize": receipt.size,
                "storeTimestamp": receipt.store_timestamp,
                "msgId": receipt.message_id,
                "durability": receipt.durability.name,
            }
        )
    else:
        where = f"queue {receipt.queue_id} offset {receipt.queue_offset} physical {receipt.physical_offset}"
        print(f"{receipt.topic} {where} {receipt.message_id}")
