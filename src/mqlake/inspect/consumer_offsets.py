"""The progress of consumer groups: `config/consumerOffset.json`, as RocketMQ's broker keeps it.

The broker writes it every few seconds, so it is slightly out of date. If the file does not parse, its `.bak` is used.
If there is neither, no group is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqlake.codec.config_json import MAX_CONFIG_BYTES, decode
from mqlake.errors import BadFile
from mqlake.files.layout import Layout
from mqlake.files.small_files import read_small_file


class ConsumerOffset(NamedTuple):
    """A group has consumed the messages of a queue before `offset`."""

    group: str
    topic: str
    queue_id: int
    offset: int


def consumer_offsets(layout: Layout) -> list[ConsumerOffset]:
    """Return the progress of all groups, sorted. Malformed parts are left out."""
    path = layout.config / "consumerOffset.json"
    for candidate in (path, path.with_name(f"{path.name}.bak")):
        try:
            table = decode(read_small_file(candidate, MAX_CONFIG_BYTES)).get("offsetTable")
        except (OSError, ValueError, BadFile):
            continue
        if isinstance(table, dict):
            return sorted(_entries(table))
    return []


def _entries(table: dict[str, object]) -> Iterator[ConsumerOffset]:
    for name, queues in table.items():
        topic, separator, group = name.partition("@")
        if not separator or not isinstance(queues, dict):
            continue
        for queue_id, offset in queues.items():
            if queue_id.isdecimal() and isinstance(offset, int) and offset >= 0:
                yield ConsumerOffset(group, topic, int(queue_id), offset)
