"""A table of named things in one of RocketMQ's files: what topics and groups have in common.

A change is durable when the call that made it returns. What comes into being by use (`note`) is written with the next
change or the next `sync`: were it lost, the next use would bring it back.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from mqlake.delivery.config_file import ConfigFile, Json, Version
from mqlake.errors import StoreError


class Entry(Protocol):
    """A frozen dataclass: a name, settings, and in `more` RocketMQ's fields that have no use here."""

    @property
    def name(self) -> str: ...
    @property
    def more(self) -> Json: ...
    @classmethod
    def from_json(cls, name: str, content: Json) -> Self: ...
    def to_json(self) -> Json: ...


Item = TypeVar("Item", bound=Entry)


class Registry(Generic[Item]):
    """All entries of one file. Several threads may call it; readers take no lock."""

    table: ClassVar[str]
    item: ClassVar[Any]

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._content = file.load()
        self._version = Version(self._content.get("dataVersion", {}))
        table = self._content.get(self.table, {})
        self._items: dict[str, Item] = {name: self.item.from_json(name, content) for name, content in table.items()}
        self._is_dirty = False

    def unknown(self, name: str) -> StoreError:
        """The error for a name that is not there."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Item]:
        return iter(sorted(self._items.values(), key=lambda item: item.name))

    def __contains__(self, name: str) -> bool:
        return name in self._items

    @property
    def names(self) -> Collection[str]:
        return self._items.keys()

    def find(self, name: str) -> Item | None:
        return self._items.get(name)

    def get(self, name: str) -> Item:
        item = self._items.get(name)
        if item is None:
            raise self.unknown(name)
        return item

    def save(self, *items: Item) -> None:
        """Set entries up, or change them; nothing is written where the file has all of it."""
        with self._lock:
            changed = [item for item in items if self._items.get(item.name) != item]
            for item in changed:
                self._take(item)
            if changed or self._is_dirty:
                self._write()

    def note(self, item: Item) -> Item:
        """The entry of this name; this one where there is none, for the time being in memory only."""
        with self._lock:
            if item.name not in self._items:
                self._take(item)
                self._is_dirty = True
            return self._items[item.name]

    def _take(self, item: Item) -> None:
        known = self._items.get(item.name)
        if known is not None:
            item = replace(item, more=known.more | item.more)  # type: ignore[type-var]
        self._items[item.name] = item

    def delete(self, name: str) -> Item:
        """Forget an entry; an error where there is none of this name."""
        with self._lock:
            if name not in self._items:
                raise self.unknown(name)
            gone = self._items.pop(name)
            self._write()
        return gone

    def sync(self) -> None:
        """Write what was noted and is not yet written."""
        with self._lock:
            if self._is_dirty:
                self._write()

    def _write(self) -> None:
        table = {name: item.to_json() for name, item in self._items.items()}
        self._content = {**self._content, "dataVersion": self._version.next(), self.table: table}
        self.file.save(self._content)
        self._is_dirty = False


def nearest(name: str, names: Collection[str]) -> str:
    """The names there are, for an error: those that look like the one asked for first, and not too many."""
    import difflib  # a part of the time of `import mqlake`, for those who misspell a name

    if not names:
        return "none"
    close = difflib.get_close_matches(name, names, 3, 0.5)
    shown = [*close, *sorted(set(names) - set(close))][:10]
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")
