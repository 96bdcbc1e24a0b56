"""Index files side by side with the keys of the log. Both are in the order of the log, so one walk compares them.

The walk is cut where the log is: `match` begins at a place in the index and says where it ended, which is where the
next keys must begin. Who does not come from before guesses the place by the offsets in the entries (`place_of`).
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
"""The number of a file and of an entry in it."""


class Matched(NamedTuple):
    """Keys of a piece of the log against the entries from one place on to another."""

    began: Place
    ended: Place
    key_count: int
    missing_count: int
    first_missing: int
    """The offset of the first record with a key that has no entry, -1 without one."""
    surplus: list[Place]
    """Entries without a key here."""
    late: list[Place]
    """Entries with their key, but another time."""


class IndexFiles:
    """Index files, oldest first, each with the number behind its last entry."""

    def __init__(self, slot_count: int, entry_count: int, files: list[tuple[MappedFile, int]]) -> None:
        self.slot_count, self.entry_count = slot_count, entry_count
        self.files = files

    def position_of(self, number: int) -> int:
        """Where an entry is in its file."""
        return HEADER_SIZE + 4 * self.slot_count + ENTRY_SIZE * number

    def offset_at(self, file: MappedFile, number: int) -> int:
        """The physical offset that an entry names."""
        at = self.position_of(number) + 4
        return int.from_bytes(file.pages[at : at + 8], "big", signed=True)

    def first_from(self, offset: int) -> Place:
        """The first entry that names a record at or behind an offset, looked for one by one."""
        for number, (file, next_entry) in enumerate(self.files):
            entry = first_index_entry(file.pages, self.slot_count, self.entry_count, next_entry, offset)
            if entry < next_entry:
                return number, entry
        return len(self.files), 1

    def place_of(self, offset: int) -> Place:
        """The same, by halves: right where the index is in order."""
        for number, (file, next_entry) in enumerate(self.files):
            if next_entry > 1 and self.offset_at(file, next_entry - 1) >= offset:
                entries = range(1, next_entry)
                return number, 1 + bisect_left(entries, offset, key=partial(self.offset_at, file))
        return (len(self.files) - 1, self.files[-1][1]) if self.files else (0, 1)

    def match(self, began: Place, keys: bytes) -> Matched:
        """Step over what fits."""
        number, entry = began
        key, total = 0, len(keys) // KEY.size
        missing, first_missing = 0, -1
        surplus: list[Place] = []
        late: list[Place] = []
        while key < total and number < len(self.files):
            file, next_entry = self.files[number]
            entry, key, lacking, first_lacking, _, extra, wrong_time = match_index_keys(
                file.pages, self.slot_count, self.entry_count, entry, next_entry, keys, key
            )
            if lacking and not missing:
                first_missing = first_lacking[0]
            missing += lacking
            surplus += [(number, one) for one in extra]
            late += [(number, one) for one in wrong_time]
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
        """With the keys of tags or, where the index fits only so, without: old releases write none."""
        with_tags = self.match(began, keys_of(True))
        if not with_tags.missing_count:
            return with_tags
        plain = self.match(began, keys_of(False))
        return with_tags if plain.missing_count else plain
