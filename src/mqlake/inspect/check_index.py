"""Check the key index against the log: every key has an entry, and every entry names a record with its key.

Entries and keys are both in the order of the log, so they are compared side by side. Three differences are normal in
RocketMQ's own stores: old releases index no tags, a crash loses the keys of the newest file, and 4.9 enters some keys
twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.index_entry import HEADER_SIZE, IndexHeader, index_file_size
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.inspect.findings import Findings
from mqlake.inspect.index_match import ENTRY_SIZE, IndexFiles, Matched, Place
from mqlake.inspect.log_map import LogMap
from mqlake.inspect.survey import look, open_file
from mqlake.kernel import check_index, dispatch_records
from mqlake.logs.key_index import KEY

Chains = tuple[list[tuple[int, int, int, int]], int]
"""Faults in the chains of a file, and its used slots, as the kernel's `check_index` returns them."""


class ChainWork(NamedTuple):
    """An index file whose chains are to be checked."""

    path: str
    slot_count: int
    entry_count: int
    next_entry: int
    live: bool


MAX_LOOKS = 1000
"""At most this many entries without a matching key are looked up one by one."""


class IndexCheck:
    """Takes the pieces of the log in order; `finish` reports surplus entries."""

    def __init__(self, layout: Layout, slots: int, entries: int, log: LogMap, findings: Findings) -> None:
        self._slots, self._entries = slots, entries
        self._log = log
        self._findings = findings
        self._layout = layout
        self._headers: list[IndexHeader] = []
        self.files = IndexFiles(slots, entries, [])
        self._missing = {"index-missing": 0, "index-fewer": 0}
        self._first_missing: dict[str, int] = {}
        self._key_count = 0
        self._surplus: list[Place] = []
        self._looks = 0
        self._open()
        self.place: Place = self.files.first_from(log.first)  # retention deleted the records of entries before this
        """The place in the index where the keys of the next piece begin."""

    def _open(self) -> None:
        """Check the sizes, and take the end of each file, of a live one as of now."""
        size = index_file_size(self._slots, self._entries)
        for found in look(self._layout.index):
            if not (found.path.name.isascii() and found.path.name.isdigit()):
                self._findings.add("foreign", found.path, None, "no index file", "a name of 17 digits")
                continue
            if found.size != size:
                expected = f"{size} bytes, for {self._slots} slots and {self._entries} entries"
                self._findings.add("index-file-size", found.path, None, f"{found.size} bytes", expected)
                continue
            file = open_file(found.path, 0)
            if file is not None:
                header = IndexHeader.decode(file.pages[:HEADER_SIZE])
                self._headers.append(header)
                self.files.files.append((file, min(max(header.next_entry, 1), self._entries)))

    def _look_at_header(self, file: MappedFile, header: IndexHeader, next_entry: int, chains: Chains) -> None:
        """Check header and chains."""
        live = self._log.ends.live
        faults, used = chains
        for number, slot, found, expected in faults:
            at = HEADER_SIZE + 4 * slot if number == 0 else self.files.position_of(number) + 16
            self._findings.add("index-chain", file.path, at, f"entry {found}", f"entry {expected}")
        told = []
        if header.next_entry != next_entry and header.next_entry != 0:
            told.append((36, f"next entry {header.next_entry}", f"1 to {self._entries}"))
        if header.used_slots != used and not live and not faults:
            told.append((32, f"{header.used_slots} used slots", f"{used}"))
        if next_entry > 1 and not live:
            first, last = self.files.offset_at(file, 1), self.files.offset_at(file, next_entry - 1)
            if header.begin_offset != first:
                told.append((16, f"begin offset {header.begin_offset}", f"{first}, its first entry's"))
            if header.end_offset != last:
                told.append((24, f"end offset {header.end_offset}", f"{last}, its last entry's"))
            for at, time_there, offset in ((0, header.begin_timestamp, first), (8, header.end_timestamp, last)):
                time = self._log.time_at(offset)
                if time is not None and time != time_there:
                    told.append((at, f"time {time_there}", f"{time}, its record's"))
        for at, has, should in told:
            self._findings.add("index-header", file.path, at, has, should)
        if not live and self._has_more(file, next_entry):
            self._findings.add(
                "index-header", file.path, 36, f"next entry {next_entry}", "a higher one: more entries follow"
            )

    def _has_more(self, file: MappedFile, next_entry: int) -> bool:
        at = self.files.position_of(next_entry)
        return next_entry < self._entries and any(file.pages[at : at + ENTRY_SIZE])

    def take(self, matched: Matched) -> None:
        """Take the keys of the next piece, matched from `place`."""
        assert matched.began == self.place, "each piece begins where the one before ended"
        self.place = matched.ended
        self._key_count += matched.key_count
        for what, count, first in (
            ("index-missing", matched.missing_count, matched.first_missing),
            ("index-fewer", matched.foreign_missing_count, matched.first_foreign_missing),
        ):
            if count and first < self._log.ends.redone_from:
                self._missing[what] += count
                self._first_missing.setdefault(what, first)
        self._surplus += matched.surplus
        for number, entry in matched.late:
            at = self.files.position_of(entry) + 12
            path = self.files.files[number][0].path
            self._findings.add("index-entry", path, at, "another time", "its record's store time, in seconds")

    def _look_at_surplus(self, file: MappedFile, number: int) -> None:
        """Check a misplaced entry: it may still name a record with its key."""
        self._looks += 1
        if self._looks > MAX_LOOKS:
            return
        place = self.files.position_of(number)
        key_hash = int.from_bytes(file.pages[place : place + 4], "big", signed=True)
        offset = self.files.offset_at(file, number)
        if offset >= self._log.ends.redone_from:
            return  # the next opening removes it
        if any(gap.start <= offset < gap.end for gap in self._log.gaps):
            return  # damage of the log is reported for the log
        told = f"hash {key_hash} of the record at {offset}"
        if self._has_key(offset, key_hash):
            self._findings.add("index-double", file.path, place, told, "once")
        else:
            self._findings.add("index-entry", file.path, place, told, "a record with a key of this hash")

    def _has_key(self, offset: int, key_hash: int) -> bool:
        log_file = self._log.files.get(offset - offset % self._log.file_size)
        if log_file is None or offset < 0:
            return False
        at = offset - log_file.start
        if at >= log_file.size:
            return False
        keys = dispatch_records(log_file.pages, at, log_file.size, log_file.start, 1, (), True, True).keys
        return any(found == key_hash and where == offset for found, where, _ in KEY.iter_unpack(keys))

    def finish(self, chains: Mapping[str, Chains]) -> None:
        """Check headers and chains, and report missing and surplus entries. `chains` were checked before, by path."""
        for (file, next_entry), header in zip(self.files.files, self._headers, strict=True):
            known = chains.get(str(file.path))
            if known is None:
                known = check_index(file.pages, self._slots, self._entries, next_entry, self._log.ends.live)
            if not self._log.ends.goes_back_to(file.path.name):
                self._look_at_header(file, header, next_entry, known)
        for what, first in self._first_missing.items():
            told = f"{self._missing[what]} of {self._key_count} keys, from the record at {first}"
            self._findings.add(what, self._layout.index, None, told, "an entry for each")
        for number, entry in self._surplus:
            self._look_at_surplus(self.files.files[number][0], entry)
        number, entry = self.place
        for file, next_entry in self.files.files[number:] if not self._log.ends.live else []:
            for extra in range(entry, min(next_entry, entry + MAX_LOOKS)):
                self._look_at_surplus(file, extra)
            entry = 1


def look_at_chains(work: ChainWork) -> Chains | None:
    """Check the chains of an index file; return None if the file is gone."""
    file = open_file(Path(work.path), 0)
    return None if file is None else check_index(file.pages, *work[1:])
