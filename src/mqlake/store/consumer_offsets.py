"""How far consumer groups have come: `config/consumerOffset.json`, as RocketMQ's broker keeps it.

The broker writes it every few seconds, so what it says is a little old. Where the file does not parse, the `.bak` that
the broker leaves beside it counts; where there is neither, no group is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqlake.files.layout import Layout
from mqlake.store.check_files import parsed


class ConsumerOffset(NamedTuple):
    """A group has consumed the messages of a queue before `offset`."""

    group: str
    topic: str
    queue_id: int
    offset: int


def consumer_offsets(layout: Layout) -> list[ConsumerOffset]:
    """All that the file names, sorted; what is not as it should be is left out."""
    path = layout.config / "consumerOffset.json"
    for candidate in (path, path.with_name(f"{path.name}.bak")):
        content = parsed(candidate)
        if isinstance(content, dict) and isinstance(content.get("offsetTable"), dict):
            return sorted(_entries(content["offsetTable"]))
    return []


def _entries(table: dict[str, object]) -> Iterator[ConsumerOffset]:
    for name, queues in table.items():
        topic, separator, group = name.partition("@")
        if not separator or not isinstance(queues, dict):
            continue
        for queue_id, offset in queues.items():
            if queue_id.isdecimal() and isinstance(offset, int) and offset >= 0:
                yield ConsumerOffset(group, topic, int(queue_id), offset)
