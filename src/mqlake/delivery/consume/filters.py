"""Filters select the messages that a group receives: by tags, or by an SQL expression over properties.

A tag filter works in two steps. Queue entries hold the tag's hash, so most other messages are never read; then the tag
itself is compared, because different tags may share a hash. An SQL expression has to read every message's properties.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from mqlake.delivery.consume.sql import compile_sql
from mqlake.errors import InvalidFilter
from mqlake.kernel import java_hash
from mqlake.message import StoredMessage

TAG = "TAG"
SQL = "SQL92"
"""RocketMQ's names for the two kinds of filters."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Select by tag: `"a || b"` selects messages with one of these tags, `"*"` all messages."""

    expression: str = "*"
    kind: str = field(default=TAG, init=False)
    tags: frozenset[str] = field(default=frozenset(), init=False, compare=False)
    codes: bytes | None = field(default=None, init=False, compare=False)
    """Hashes of the tags, in the form that the kernel's `select_entries` takes; None for all messages."""

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise InvalidFilter(repr(self.expression), 0, "expected a string: tags separated by ||, or *")
        if self.expression.strip() in ("", "*"):
            return
        tags = frozenset(part.strip() for part in self.expression.split("||") if part.strip())
        if not tags:
            raise InvalidFilter(self.expression, 0, "no tag between the ||; use * for all messages")
        object.__setattr__(self, "tags", tags)
        object.__setattr__(self, "codes", array("q", sorted({java_hash(tag) for tag in tags})).tobytes())

    def select(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages that match."""
        tags = self.tags
        return [message for message in messages if message.tags in tags] if tags else messages


@dataclass(frozen=True, slots=True)
class Sql:
    """Select by properties: `"amount > 5 AND region IN ('x', 'y')"`."""

    expression: str
    kind: str = field(default=SQL, init=False)
    codes: bytes | None = field(default=None, init=False, compare=False)
    matches: Callable[[dict[str, str]], bool] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matches", compile_sql(self.expression))

    def select(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages that match."""
        matches = self.matches
        return [message for message in messages if matches(message.properties)]


Filter = Tags | Sql
ALL = Tags()


def filter_of(wanted: Filter | str | None) -> Filter:
    """Return the filter for a user's argument: a string lists tags, None selects all messages."""
    if wanted is None:
        return ALL
    return wanted if isinstance(wanted, (Tags, Sql)) else Tags(wanted)
