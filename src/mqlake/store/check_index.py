"""The key index against the log: every key is entered, and every entry names a record that has its key.

Entries and keys are both in the order of the log, so they are compared side by side. Three things differ in stores of
RocketMQ and break no promise of theirs: old releases index no tags, a crash costs it the keys of its newest file, and
4.9 enters some keys again.
"""

from __future__ import annotations

from mqlake.codec.index_entry import HEADER_SIZE, IndexHeader, index_file_size
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import check_index, dispatch_records, match_index_keys
from mqlake.logs.key_index import KEY
from mqlake.store.findings import Findings
from mqlake.store.log_map import LogMap
from mqlake.store.survey import look, open_file

ENTRY_SIZE = 20
MAX_LOOKS = 1000
"""Entries without a key of the right place that are looked at one by one."""


class IndexCheck:
    """Takes the log's keys in order; `finish` says what the index has in excess."""

    def __init__(self, layout: Layout, slots: int, entries: int, log: LogMap, findings: Findings) -> None:
        self._slots, self._entries = slots, entries
        self._log = log
        self._findings = findings
        self._layout = layout
        self._ours = layout.settings.exists()
        self._files: list[tuple[MappedFile, int]] = []
        self._number = 0
        self._entry = 1
        self._missing = 0
        self._first_missing = -1
        self._key_count = 0
        self._looks = 0
        self.tags = True
        """Whether this part of the index has tags."""
        self._open()

    def _open(self) -> None:
        """Sizes, headers and chains."""
        size = index_file_size(self._slots, self._entries)
        for found in look(self._layout.index):
            if not (found.path.name.isascii() and found.path.name.isdigit()):
                self._findings.add("foreign", found.path, None, "no index file", "names of 17 digits")
                continue
            if found.size != size:
                expected = f"{size} bytes, for {self._slots} slots and {self._entries} entries"
                self._findings.add("index-file-size", found.path, None, f"{found.size} bytes", expected)
                continue
            file = open_file(found.path, 0)
            if file is not None:
                self._files.append((file, self._look_at_header(file)))
        self._skip_what_retention_took()

    def _look_at_header(self, file: MappedFile) -> int:
        """The number behind the last entry, as far as it can be one."""
        live = self._log.ends.live
        header = IndexHeader.decode(file.pages[:HEADER_SIZE])
        next_entry = min(max(header.next_entry, 1), self._entries)
        faults, used = check_index(file.pages, self._slots, self._entries, next_entry, live)
        for number, slot, found, expected in faults:
            at = HEADER_SIZE + 4 * slot if number == 0 else self._place(number) + 16
            self._findings.add("index-chain", file.path, at, f"entry {found}", f"entry {expected}")
        told = []
        if header.next_entry != next_entry and header.next_entry != 0:
            told.append((36, f"next entry {header.next_entry}", f"1 to {self._entries}"))
        if header.used_slots != used and not live and not faults:
            told.append((32, f"{header.used_slots} used slots", f"{used}"))
        if next_entry > 1 and not live:
            first, last = self._offset_of(file, 1), self._offset_of(file, next_entry - 1)
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
            self._findings.add("index-header", file.path, 36, f"next entry {next_entry}", "more: entries follow")
        return next_entry

    def _has_more(self, file: MappedFile, next_entry: int) -> bool:
        at = self._place(next_entry)
        return next_entry < self._entries and any(file.pages[at : at + ENTRY_SIZE])

    def _skip_what_retention_took(self) -> None:
        """Entries of records before the log's first are in order, though not needed."""
        while self._number < len(self._files):
            file, next_entry = self._files[self._number]
            while self._entry < next_entry and self._offset_of(file, self._entry) < self._log.first:
                self._entry += 1
            if self._entry < next_entry:
                return
            self._next_file()

    def _next_file(self) -> None:
        self._number += 1
        self._entry = 1

    def _place(self, number: int) -> int:
        return HEADER_SIZE + 4 * self._slots + ENTRY_SIZE * number

    def _offset_of(self, file: MappedFile, number: int) -> int:
        at = self._place(number) + 4
        return int.from_bytes(file.pages[at : at + 8], "big", signed=True)

    def misses(self, keys: bytes) -> bool:
        """Whether some of these keys are not where they must be; nothing is noted."""
        place, missing, _ = self._match(keys)
        self._number, self._entry = place
        return bool(missing)

    def take(self, keys: bytes) -> None:
        """The next keys of the log."""
        _, missing, surplus = self._match(keys)
        self._key_count += len(keys) // KEY.size
        self._missing += len(missing)
        if missing and self._first_missing < 0:
            self._first_missing = KEY.unpack_from(keys, missing[0] * KEY.size)[1]
        for file, number in surplus:
            self._look_at_surplus(file, number)
        for file, number in self._late:
            at = self._place(number) + 12
            self._findings.add("index-entry", file.path, at, "another time", "its record's store time, in seconds")

    def _match(self, keys: bytes) -> tuple[tuple[int, int], list[int], list[tuple[MappedFile, int]]]:
        """Step over what fits; where it began, keys without an entry, and entries without a key."""
        began = self._number, self._entry
        self._late: list[tuple[MappedFile, int]] = []
        key, total = 0, len(keys) // KEY.size
        missing: list[int] = []
        surplus: list[tuple[MappedFile, int]] = []
        while key < total and self._number < len(self._files):
            file, next_entry = self._files[self._number]
            self._entry, key, lacking, first_lacking, _, first_extra, late = match_index_keys(
                file.pages, self._slots, self._entries, self._entry, next_entry, keys, key
            )
            missing += first_lacking + [first_lacking[-1]] * (lacking - len(first_lacking)) if lacking else []
            surplus += [(file, number) for number in first_extra]
            self._late += [(file, number) for number in late]
            if self._entry >= next_entry and (key < total or self._number + 1 < len(self._files)):
                if self._number + 1 == len(self._files):
                    break
                self._next_file()
        missing += range(key, total)
        return began, missing, surplus

    def _look_at_surplus(self, file: MappedFile, number: int) -> None:
        """An entry that is not of this place may still name a record that has its key."""
        self._looks += 1
        if self._looks > MAX_LOOKS:
            return
        place = self._place(number)
        key_hash = int.from_bytes(file.pages[place : place + 4], "big", signed=True)
        offset = self._offset_of(file, number)
        if any(gap.start <= offset < gap.end for gap in self._log.gaps):
            return  # what the log lost is told of the log
        told = f"hash {key_hash} of the record at {offset}"
        if self._has_key(offset, key_hash):
            self._findings.add("index-double", file.path, place, told, "once")
        else:
            self._findings.add("index-entry", file.path, place, told, "a record that has a key of this hash")

    def _has_key(self, offset: int, key_hash: int) -> bool:
        log_file = self._log.files.get(offset - offset % self._log.file_size)
        if log_file is None or offset < 0:
            return False
        at = offset - log_file.start
        if at >= log_file.size:
            return False
        keys = dispatch_records(log_file.pages, at, log_file.size, log_file.start, 1, (), True, True)[3]
        return any(found == key_hash and where == offset for found, where, _ in KEY.iter_unpack(keys))

    def finish(self) -> None:
        if self._missing:
            what = "index-missing" if self._ours else "index-fewer"
            told = f"{self._missing} of {self._key_count} keys, from the record at {self._first_missing} on"
            self._findings.add(what, self._layout.index, None, told, "an entry for each")
        if self._log.ends.live:
            return
        while self._number < len(self._files):
            file, next_entry = self._files[self._number]
            for number in range(self._entry, min(next_entry, self._entry + MAX_LOOKS)):
                self._look_at_surplus(file, number)
            self._next_file()
