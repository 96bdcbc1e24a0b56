"""`mqlake put`: append messages from the command line, a file, or the lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mqlake import Durability, Message, PutReceipt
from mqlake.cli import show
from mqlake.cli.options import duration_ms, json_option, moment, open_writer, store_command


@click.command()
@store_command
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the body from this file."
)
@click.option("--tags", help="Tag of the message; consumers filter by it.")
@click.option("--key", "keys", multiple=True, help="Key for `mqlake find`; may be repeated.")
@click.option("--queue", type=click.IntRange(min=0), help="Queue id. Default: the queues of the topic in turn.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; may be repeated.")
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
    queue: int | None,
    properties: tuple[str, ...],
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
    named = dict(map(_name_and_value, properties))
    bodies = _bodies(body, file)
    durability = Durability.DISK if sync else None
    with open_writer(store, config) as opened:
        for data in bodies:
            fields: dict[str, Any] = {"tags": tags, "keys": keys, "queue_id": queue, "properties": named, "flag": flag}
            receipt = opened.put(Message(topic, data, **fields, **later), durability=durability)
            _report(receipt, as_json=as_json)


def _name_and_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r}; expected NAME=VALUE", param_hint="--property")
    return name, value


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
