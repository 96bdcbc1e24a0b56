"""Progress: the queue offset of the next message that a reader of a queue wants, in memory and in a file.

`config/consumerOffset.json` has it by topic and group, `config/delayOffset.json` by delay level. A commit changes
memory at once and the file at the next `sync` (every few seconds, and when the store closes). A crash in between moves
progress back, never forward: messages are delivered again, none is skipped. For the same reason `before_save` syncs the
log as far as it was read before the file is written. Otherwise a power cut could leave progress ahead of the log, and
the next messages with those queue offsets would be skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mqlake.codec.config_json import CONSUMER_OFFSETS
from mqlake.delivery.registry.config_file import ConfigFile, Json, Version
from mqlake.runtime.locks import make_lock


class Subscription(NamedTuple):
    """A group and a topic that it reads."""

    topic: str
    group: str


class OffsetTable:
    """Queue offsets by a name and a number. Thread-safe."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._lock = make_lock("config_table")
        self._content = file.load()
        self._version = Version(self._content.get("dataVersion", {}))
        self._offsets: dict[str, dict[int, int]] = {}
        self._is_dirty = False
        self.before_save: Callable[[], object] = lambda: None
        """Syncs what the offsets rely on. If it raises, nothing is saved."""

    def of(self, name: str) -> dict[int, int]:
        """Return a copy of all offsets of a name."""
        with self._lock:
            return dict(self._offsets.get(name, {}))

    def get(self, name: str, number: int) -> int | None:
        return self._offsets.get(name, {}).get(number)

    def set(self, name: str, number: int, offset: int) -> None:
        with self._lock:
            self._offsets.setdefault(name, {})[number] = offset
            self._is_dirty = True

    def delete(self, name: str) -> None:
        with self._lock:
            self._is_dirty = self._offsets.pop(name, None) is not None or self._is_dirty

    def sync(self) -> None:
        """Write the file if it changed since the last call. One thread writes at a time; commits continue meanwhile."""
        with self._lock:
            if not self._is_dirty:
                return
            self._is_dirty = False
            content = {**self._content, "dataVersion": self._version.next(), **self._tables()}
        try:
            self.before_save()
            self.file.save(content)
        except BaseException:
            with self._lock:
                self._is_dirty = True
            raise

    def _tables(self) -> Json:
        """Return the content of the file without its version."""
        raise NotImplementedError


class ConsumerOffsets(OffsetTable):
    """`consumerOffset.json`: by `topic@group` and queue id."""

    def __init__(self, file: ConfigFile) -> None:
        file.shape = CONSUMER_OFFSETS  # under any name: a reader with separate progress names its own file
        super().__init__(file)
        self._offsets = {name: _numbers(offsets) for name, offsets in self._content.get("offsetTable", {}).items()}

    def subscriptions(self) -> Iterator[Subscription]:
        """Return all groups and topics with progress."""
        for name in list(self._offsets):
            topic, _, group = name.rpartition("@")
            yield Subscription(topic, group)

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove all progress on a topic, or of a group."""
        for known in list(self.subscriptions()):
            if known.topic == topic or known.group == group:
                self.delete(name_of(*known))

    def _tables(self) -> Json:
        topics_of: dict[str, list[str]] = {}
        for topic, group in self.subscriptions():
            topics_of.setdefault(group, []).append(topic)
        table = {name: dict(offsets) for name, offsets in self._offsets.items()}
        return {"groupTopicMap": topics_of, "offsetTable": table}


class DelayOffsets(OffsetTable):
    """`delayOffset.json`: by delay level."""

    LEVELS = ""
    DELIVERED_TO = "deliveredTo"
    """Our own field. RocketMQ drops it when it writes the file: if it is missing, RocketMQ delivered last."""

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(file)
        known = self._content.get(self.DELIVERED_TO)
        self.delivered_to: int | None = known if isinstance(known, int) and known >= 0 else None
        """The offsets include all deliveries before this physical offset; None if unknown."""
        self._offsets = {self.LEVELS: _numbers(self._content.get("offsetTable", {}))}

    def keep(self, delivered_to: int) -> None:
        """Write the offsets durably, with the physical offset that they cover. The log is durable up to there."""
        with self._lock:
            self.delivered_to = self._content[self.DELIVERED_TO] = delivered_to
            self._is_dirty = True
        self.sync()

    def _tables(self) -> Json:
        return {"offsetTable": dict(self._offsets[self.LEVELS])}


def name_of(topic: str, group: str) -> str:
    return f"{topic}@{group}"


def _numbers(offsets: dict[str, int]) -> dict[int, int]:
    return {int(number): offset for number, offset in offsets.items()}
