"""A table of named entries in one of RocketMQ's files: what topics and groups share.

A change is durable when its call returns. Entries created by use (`note`) are written with the next change or the next
`sync`: if one is lost, the next use creates it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from mqlake.delivery.registry.config_file import ConfigFile, Json, Version
from mqlake.errors import InvalidConfig, StoreError
from mqlake.runtime.locks import make_lock


class Entry(Protocol):
    """A frozen dataclass: a name, settings, and in `more` RocketMQ's fields that mqlake does not use."""

    @property
    def name(self) -> str: ...
    @property
    def more(self) -> Json: ...
    @classmethod
    def from_json(cls, name: str, content: Json) -> Self: ...
    def to_json(self) -> Json: ...


Item = TypeVar("Item", bound=Entry)


class Registry(Generic[Item]):
    """All entries of one file. Thread-safe; readers take no lock."""

    table: ClassVar[str]
    item: ClassVar[Any]

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._lock = make_lock("config_table")
        self._content, self._items = file.read(self._understand)
        self._version = Version(self._content.get("dataVersion", {}))
        self._is_dirty = False

    def _understand(self, content: Json) -> tuple[Json, dict[str, Item]]:
        """Return the content and its entries; raise a StoreError if an entry is invalid."""
        table = content.get(self.table, {})
        return content, {name: self.item.from_json(name, entry) for name, entry in table.items()}

    def unknown(self, name: str) -> StoreError:
        """Return the error for an unknown name."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Item]:
        return iter(sorted(self._items.values(), key=lambda item: item.name))

    def __contains__(self, name: str) -> bool:
        return name in self._items

    @property
    def names(self) -> Collection[str]:
        return tuple(self._items)  # a copy: other threads add and delete meanwhile

    def find(self, name: str) -> Item | None:
        return self._items.get(name)

    def get(self, name: str) -> Item:
        item = self._items.get(name)
        if item is None:
            raise self.unknown(name)
        return item

    def save(self, *items: Item) -> None:
        """Create or change entries. Writes nothing if the file already has them."""
        with self._lock:
            changed = [item for item in items if self._is_news(item)]
            before = dict(self._items)
            for item in changed:
                self._take(item)
            if changed or self._is_dirty:
                self._write_or_go_back(before)

    def _is_news(self, item: Item) -> bool:
        """Return whether an entry differs from what is known, in the fields that mqlake does not use too."""
        known = self._items.get(item.name)
        return known is None or known != item or known.more | item.more != known.more

    def amend(self, item: Item) -> Item:
        """Change an entry, for now in memory only."""
        with self._lock:
            self._take(item)
            self._is_dirty = True
            return self._items[item.name]

    def note(self, item: Item) -> Item:
        """Return the entry of this name. If there is none, add the given one, for now in memory only."""
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
        """Remove an entry; raise an error if there is none of this name."""
        with self._lock:
            if name not in self._items:
                raise self.unknown(name)
            before = dict(self._items)
            gone = self._items.pop(name)
            self._write_or_go_back(before)
        return gone

    def sync(self) -> None:
        """Write noted entries that are not yet in the file."""
        with self._lock:
            if self._is_dirty:
                self._write()

    def _write_or_go_back(self, before: dict[str, Item]) -> None:
        """Write the file. If that fails, memory returns to the content of the file."""
        try:
            self._write()
        except BaseException:
            self._items = before
            raise

    def _write(self) -> None:
        table = {name: item.to_json() for name, item in self._items.items()}
        content = {**self._content, "dataVersion": self._version.next(), self.table: table}
        self.file.save(content)
        self._content = content
        self._is_dirty = False


def changed(item: Item, changes: Mapping[str, Any]) -> Item:
    """Return a copy with some fields changed. The error for an unknown field lists the fields that exist."""
    kind: Any = item  # a dataclass, which no protocol can say
    allowed = [each.name for each in fields(kind) if each.name not in ("name", "more")]
    for key, value in changes.items():
        if key not in allowed:
            raise InvalidConfig(key, value, f"unknown setting; known are {', '.join(allowed)}")
    made: Item = replace(kind, **changes)
    return made


def nearest(name: str, names: Collection[str]) -> str:
    """Return the known names for an error text, similar ones first, and not too many."""
    import difflib  # imported here: it would slow `import mqlake`, and only misspelt names need it

    if not names:
        return "none"
    close = difflib.get_close_matches(name, names, 3, 0.5)
    shown = [*close, *sorted(set(names) - set(close))][:10]
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")
