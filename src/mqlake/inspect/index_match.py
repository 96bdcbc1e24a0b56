"""Compare index files with the keys of the log. Both are in the order of the log, so one walk compares them.

The walk is split like the log: `match` starts at a place in the index and returns where it ended, which is where the
next keys must start. A caller that does not know the place guesses it from the offsets in the entries (`place_of`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from mqlake.codec.index_entry import HEADER_SIZE
from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import first_index_entry, match_index_keys
from mqlake.logs.key_index import KEY

ENTRY_SIZE = 20

Place = tuple[int, int]
"""An index file, and an entry in it, by their positions."""


class Matched(NamedTuple):
    """The result of comparing the keys of a piece with the entries between two places."""

    began: Place
    ended: Place
    key_count: int
    missing_count: int
    first_missing: int
    """The offset of the first record with a key that has no entry; -1 if there is none."""
    surplus: list[Place]
    """Entries that match no key here."""
    late: list[Place]
    """Entries that match their key, but not its time."""
    foreign_missing_count: int = 0
    """Keys without an entry where RocketMQ wrote the index; `missing_count` has the others."""
    first_foreign_missing: int = -1

    def as_foreign(self) -> Matched:
        """Return the same as the result of a part of the index that RocketMQ wrote."""
        return self._replace(
            missing_count=0,
            first_missing=-1,
            foreign_missing_count=self.missing_count,
            first_foreign_missing=self.first_missing,
        )

    def then(self, ours: Matched) -> Matched:
        """Return the result of a foreign part and the part after it, which is ours."""
        return ours._replace(
            began=self.began,
            key_count=self.key_count + ours.key_count,
            surplus=self.surplus + ours.surplus,
            late=self.late + ours.late,
            foreign_missing_count=self.foreign_missing_count,
            first_foreign_missing=self.first_foreign_missing,
        )


def nothing_matched(place: Place) -> Matched:
    return Matched(place, place, 0, 0, -1, [], [])


def split_keys(keys: bytes, offset: int) -> tuple[bytes, bytes]:
    """Split keys, which are in the order of the log, at a physical offset."""
    count = bisect_left(range(len(keys) // KEY.size), offset, key=lambda at: KEY.unpack_from(keys, at * KEY.size)[1])
    return keys[: count * KEY.size], keys[count * KEY.size :]


class IndexFiles:
    """Index files, oldest first, each with its end (the entry after its last)."""

    def __init__(self, slot_count: int, entry_count: int, files: list[tuple[MappedFile, int]]) -> None:
        self.slot_count, self.entry_count = slot_count, entry_count
        self.files = files

    def position_of(self, number: int) -> int:
        """Return the position of an entry in its file."""
        return HEADER_SIZE + 4 * self.slot_count + ENTRY_SIZE * number

    def offset_at(self, file: MappedFile, number: int) -> int:
        """Return the physical offset that an entry names."""
        at = self.position_of(number) + 4
        return int.from_bytes(file.pages[at : at + 8], "big", signed=True)

    def first_from(self, offset: int) -> Place:
        """Return the first entry that names a record at or after an offset, by linear search."""
        for number, (file, next_entry) in enumerate(self.files):
            entry = first_index_entry(file.pages, self.slot_count, self.entry_count, next_entry, offset)
            if entry < next_entry:
                return number, entry
        return len(self.files), 1

    def place_of(self, offset: int) -> Place:
        """Return the same by binary search; correct if the index is in order."""
        for number, (file, next_entry) in enumerate(self.files):
            if next_entry > 1 and self.offset_at(file, next_entry - 1) >= offset:
                entries = range(1, next_entry)
                return number, 1 + bisect_left(entries, offset, key=partial(self.offset_at, file))
        return (len(self.files) - 1, self.files[-1][1]) if self.files else (0, 1)

    def match(self, began: Place, keys: bytes) -> Matched:
        """Compare keys with entries, and advance over those that match."""
        number, entry = began
        key, total = 0, len(keys) // KEY.size
        missing, first_missing = 0, -1
        surplus: list[Place] = []
        late: list[Place] = []
        while key < total and number < len(self.files):
            file, next_entry = self.files[number]
            matched = match_index_keys(file.pages, self.slot_count, self.entry_count, entry, next_entry, keys, key)
            entry, key = matched.entry, matched.key
            if matched.missing_count and not missing:
                first_missing = matched.first_missing[0]
            missing += matched.missing_count
            surplus += [(number, one) for one in matched.first_surplus]
            late += [(number, one) for one in matched.first_late]
            if entry >= next_entry and (key < total or number + 1 < len(self.files)):
                if number + 1 == len(self.files):
                    break
                number, entry = number + 1, 1
        if key < total and not missing:
            first_missing = key
        missing += total - key
        offset = KEY.unpack_from(keys, first_missing * KEY.size)[1] if missing else -1
        return Matched(began, (number, entry), total, missing, offset, surplus, late)

    def match_either(self, began: Place, keys_of: Callable[[bool], bytes]) -> Matched:
        """Match with the keys of tags, or without if only that fits: old releases index no tags.

        An index with tags does not fit without them: their entries would match no key.
        """
        with_tags = self.match(began, keys_of(True))
        if not with_tags.missing_count:
            return with_tags
        plain = self.match(began, keys_of(False))
        return with_tags if plain.missing_count or len(plain.surplus) > len(with_tags.surplus) else plain
