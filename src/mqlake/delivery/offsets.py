"""Progress: the number of the next message that a reader of a queue wants, kept in a file, in memory in between.

`config/consumerOffset.json` has it by topic and group, `config/delayOffset.json` by delay level. What is committed is
in memory at once and in the file at the next `sync` (every few seconds, and when the store closes). A crash between
them takes progress back, never forward: messages are delivered again, none is left out. For the same reason the log is
on the disk as far as it was read (`before_save`) before the file says so: else a power cut could leave progress ahead
of the log, and the messages that take those numbers next would be left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mqlake.delivery.config_file import ConfigFile, Json, Version
from mqlake.errors import BadConfigFile


class Subscription(NamedTuple):
    """What a group reads."""

    topic: str
    group: str


class OffsetTable:
    """Offsets by a name and a number. Several threads may call it."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._content = file.load()
        self._version = Version(self._content.get("dataVersion", {}))
        self._offsets: dict[str, dict[int, int]] = {}
        self._is_dirty = False
        self.before_save: Callable[[], object] = lambda: None
        """Brings to the disk what the offsets rest on; raises where it cannot, and nothing is saved."""

    def of(self, name: str) -> dict[int, int]:
        """A copy of all offsets under a name."""
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
        """Write what changed since the last time. One thread writes at a time, and commits go on meanwhile."""
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
        """What the file holds beside its version."""
        raise NotImplementedError


class ConsumerOffsets(OffsetTable):
    """`consumerOffset.json`: by `topic@group` and queue id."""

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(file)
        self._offsets = {
            name: _numbers(file, offsets) for name, offsets in self._content.get("offsetTable", {}).items()
        }

    def subscriptions(self) -> Iterator[Subscription]:
        """All that have progress."""
        for name in list(self._offsets):
            topic, _, group = name.rpartition("@")
            yield Subscription(topic, group)

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Drop all progress on a topic, or of a group."""
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
    """A field of our own, which RocketMQ passes over and drops when it writes the file: then it delivered last."""

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(file)
        known = self._content.get(self.DELIVERED_TO)
        self.delivered_to: int | None = known if isinstance(known, int) and known >= 0 else None
        """Deliveries before this offset of the log are in the offsets; None where nobody says so."""
        self._offsets = {self.LEVELS: _numbers(file, self._content.get("offsetTable", {}))}

    def keep(self, delivered_to: int) -> None:
        """Write the offsets, durably, with how much of the log they know. The log is durable up to there."""
        with self._lock:
            self.delivered_to = self._content[self.DELIVERED_TO] = delivered_to
            self._is_dirty = True
        self.sync()

    def _tables(self) -> Json:
        return {"offsetTable": dict(self._offsets[self.LEVELS])}


def name_of(topic: str, group: str) -> str:
    return f"{topic}@{group}"


def _numbers(file: ConfigFile, offsets: dict[str, object]) -> dict[int, int]:
    try:
        return {int(number): int(offset) for number, offset in offsets.items()}  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise BadConfigFile(file.path, f"offsetTable: {error}") from None
