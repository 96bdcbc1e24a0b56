"""Where a consumer's progress is kept, and where a consumer without progress starts.

The progress of a group is in `consumerOffset.json`; its consumers in the writer's process share it. Instead, a consumer
may keep its own progress, in a file of the same format or only in memory. Then it reads all queues, independent of
other consumers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Mapping
from datetime import datetime
from io import FileIO
from pathlib import Path

from mqlake.delivery.registry.config_file import ConfigFile, Json
from mqlake.delivery.registry.offsets import ConsumerOffsets, name_of
from mqlake.errors import InvalidConfig, NotPermitted, OffsetOutOfRange
from mqlake.runtime import forks
from mqlake.store.read import Reader

Start = str | int | datetime | Mapping[int, int]
"""`"first"`, `"last"` (after the newest message), a time, one queue offset for all queues, or one by queue id."""
GROUP = "group"
MEMORY = "memory"


class Progress:
    """The progress of one group in a table. The table may be shared or belong to one consumer."""

    def __init__(self, table: ConsumerOffsets, group: str, held: FileIO | None = None) -> None:
        """`held` is the lock on a consumer's own file. It ends when nobody refers to it."""
        self.table = table
        self._group = group
        self._held = held
        if held is not None:
            forks.guard(self)

    @classmethod
    def own(cls, where: str | os.PathLike[str], group: str) -> Progress:
        """Open a consumer's own progress, in memory (`"memory"`) or in a file, which is locked until `close`."""
        if where == MEMORY:
            return cls(ConsumerOffsets(_NoFile(Path(MEMORY), Path(MEMORY))), group)
        path = Path(where).absolute()
        held = _hold(path)
        return cls(ConsumerOffsets(ConfigFile(path, path.parent)), group, held)

    def get(self, topic: str, queue_id: int) -> int | None:
        return self.table.get(name_of(topic, self._group), queue_id)

    def set(self, topic: str, queue_id: int, offset: int) -> None:
        self.table.set(name_of(topic, self._group), queue_id, offset)

    def knows(self, topic: str) -> bool:
        """Tell whether any queue of a topic has progress. If so, a queue without progress was created later."""
        return bool(self.table.of(name_of(topic, self._group)))

    def forget(self, topic: str) -> None:
        self.table.delete(name_of(topic, self._group))

    def _give_up(self) -> None:
        """In a forked child: let go of the descriptor, and with it of the lock, which the parent keeps."""
        if self._held is not None:
            self._held.close()

    def close(self) -> None:
        """If this is a consumer's own file, write and unlock it."""
        if self._held is not None and not self._held.closed:
            self.table.sync()
            self._held.close()


class _NoFile(ConfigFile):
    """A file that is never written: progress in memory only."""

    def load(self) -> Json:
        return {}

    def save(self, content: Json) -> None:
        pass


def _hold(path: Path) -> FileIO:
    """Lock a progress file: two consumers that share one would overwrite each other's progress."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = FileIO(path.with_name(path.name + ".lock"), "a+")
    except OSError as error:
        raise InvalidConfig("progress", str(path), f"must be a writable file: {error.strerror}") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        found = "another consumer keeps its progress in this file"
        raise NotPermitted(str(path), found, "close that consumer, or give each its own file") from None
    return held


def check_start(start: Start) -> None:
    """Raise InvalidConfig unless `start` has one of the types of `Start`."""
    whole = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if start not in ("first", "last") and not whole and not isinstance(start, (datetime, Mapping)):
        raise InvalidConfig("start", start, 'must be "first", "last", a datetime, an offset, or offsets by queue id')


def offsets_at(reader: Reader, topic: str, queue_ids: list[int], start: Start) -> dict[int, int]:
    """Return the starting offset of each queue; OffsetOutOfRange, with both ends, if one is outside its queue.

    If `start` gives offsets by queue id, only the queues that it names are returned.
    """
    if not isinstance(start, Mapping):
        return {queue_id: _offset_at(reader, topic, queue_id, start) for queue_id in queue_ids}
    require_queues(topic, queue_ids, start)
    return {queue_id: _offset_at(reader, topic, queue_id, offset) for queue_id, offset in start.items()}


def require_queues(topic: str, queue_ids: Collection[int], start: Mapping[int, int]) -> None:
    """Raise InvalidConfig if `start` names a queue that the topic does not have."""
    for queue_id in start:
        if queue_id not in queue_ids:
            raise InvalidConfig("start", dict(start), f"topic {topic} has only queues {', '.join(map(str, queue_ids))}")


def _offset_at(reader: Reader, topic: str, queue_id: int, start: str | int | datetime) -> int:
    found = reader.range_or_empty(topic, queue_id)
    if start == "first" or (found.message_count == 0 and not isinstance(start, int)):
        return found.first_offset
    if start == "last":
        return found.end_offset
    if isinstance(start, datetime):
        return reader.seek_time(topic, queue_id, start)
    assert isinstance(start, int), "check_start ran before"
    if not found.first_offset <= start <= found.end_offset:
        raise OffsetOutOfRange(f"{topic}, queue {queue_id}", start, found.first_offset, found.end_offset)
    return start
