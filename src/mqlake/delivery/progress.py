"""Where a consumer's progress is kept, and where one without progress begins.

The group's is in `consumerOffset.json`, shared by its consumers in the writer's process. A consumer may have its own
instead, in a file of the same form or in memory only: it reads all queues then, whoever else reads them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from mqlake.delivery.config_file import ConfigFile, Json
from mqlake.delivery.offsets import ConsumerOffsets, name_of
from mqlake.errors import InvalidConfig, NotPermitted, OffsetOutOfRange
from mqlake.store.read import Reader

Start = str | int | datetime | Mapping[int, int]
"""`"first"`, `"last"` (behind the newest), a time, an offset for every queue, or offsets by queue id."""
GROUP = "group"
MEMORY = "memory"


class Progress:
    """The offsets of one group in a table; for one reader alone where the table is its own."""

    def __init__(self, table: ConsumerOffsets, group: str, held: int | None = None) -> None:
        """`held`: the descriptor of a lock that goes with it."""
        self.table = table
        self._group = group
        self._held = held

    @classmethod
    def own(cls, where: str | os.PathLike[str], group: str) -> Progress:
        """In memory (`"memory"`), or in a file that nobody else uses meanwhile."""
        if where == MEMORY:
            return cls(ConsumerOffsets(_NoFile(Path(MEMORY), Path(MEMORY))), group)
        path = Path(where).absolute()
        held = _hold(path)
        try:
            return cls(ConsumerOffsets(ConfigFile(path, path.parent)), group, held)
        except BaseException:
            os.close(held)
            raise

    def get(self, topic: str, queue_id: int) -> int | None:
        return self.table.get(name_of(topic, self._group), queue_id)

    def set(self, topic: str, queue_id: int, offset: int) -> None:
        self.table.set(name_of(topic, self._group), queue_id, offset)

    def knows(self, topic: str) -> bool:
        """Whether any queue of the topic has progress: a queue that has none came into being later."""
        return bool(self.table.of(name_of(topic, self._group)))

    def forget(self, topic: str) -> None:
        self.table.delete(name_of(topic, self._group))

    def close(self) -> None:
        """Write it, and let go of a file of its own."""
        if self._held is not None:
            self.table.sync()
            os.close(self._held)
            self._held = None


class _NoFile(ConfigFile):
    """Nowhere on the disk."""

    def load(self) -> Json:
        return {}

    def save(self, content: Json) -> None:
        pass


def _hold(path: Path) -> int:
    """Two consumers with one file would each take the other's progress for their own."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InvalidConfig("progress", str(path), f"a file that can be written: {error.strerror}") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        found = "another consumer keeps its progress here"
        raise NotPermitted(str(path), found, "close that one, or give each a file of its own") from None
    return held


def check_start(start: Start) -> None:
    """InvalidConfig for what is no place to begin."""
    whole = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if start not in ("first", "last") and not whole and not isinstance(start, (datetime, Mapping)):
        raise InvalidConfig("start", start, 'must be "first", "last", a datetime, an offset, or offsets by queue id')


def offsets_at(reader: Reader, topic: str, queue_ids: list[int], start: Start) -> dict[int, int]:
    """Where to begin in each queue; OffsetOutOfRange, with both ends, for an offset that is outside of one.

    Offsets by queue id are for the queues that they name.
    """
    if not isinstance(start, Mapping):
        return {queue_id: _offset_at(reader, topic, queue_id, start) for queue_id in queue_ids}
    for queue_id in start:
        if queue_id not in queue_ids:
            raise InvalidConfig("start", dict(start), f"topic {topic} has queues {', '.join(map(str, queue_ids))}")
    return {queue_id: _offset_at(reader, topic, queue_id, offset) for queue_id, offset in start.items()}


def _offset_at(reader: Reader, topic: str, queue_id: int, start: str | int | datetime) -> int:
    found = reader.range_or_empty(topic, queue_id)
    if start == "first" or (found.message_count == 0 and not isinstance(start, int)):
        return found.first_offset
    if start == "last":
        return found.end_offset
    if isinstance(start, datetime):
        return reader.seek_time(topic, queue_id, int(start.timestamp() * 1000))
    assert isinstance(start, int), "checked before"
    if not found.first_offset <= start <= found.end_offset:
        raise OffsetOutOfRange(f"{topic}, queue {queue_id}", start, found.first_offset, found.end_offset)
    return start
