"""The key index: physical offsets by the hash of a key, in files that follow one another in time.

Derived data, rebuildable from the commit log. A look-up by hash finds candidates; who asks compares the keys.

One thread enters keys, the dispatcher. Any thread looks up: an entry is written before the slot that names it.
"""

from __future__ import annotations

import datetime
import itertools
import mmap
import struct
import threading
from pathlib import Path

from mqlake.codec.index_entry import HEADER, IndexHeader, index_file_size
from mqlake.errors import BadFile
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.kernel import find_index_key, index_entries_hold, link_index_entries, put_index_keys

KEY = struct.Struct("<iqq")
"""A key as dispatch packs it: hash, physical offset, store time."""


class KeyIndex:
    """The index files of a store, oldest first. Names are the time of making, 17 digits, in the local time zone."""

    def __init__(
        self, directory: Path, slot_count: int, entry_count: int, *, writable: bool, scratch: Path | None = None
    ) -> None:
        """`scratch`: where a new file is made, with real blocks; without it files are for a while only, and sparse."""
        self._directory = directory
        self._scratch = scratch
        self.slot_count = slot_count
        self.entry_count = entry_count
        self._file_size = index_file_size(slot_count, entry_count)
        self._writable = writable
        self._lock = threading.Lock()  # of the tuple of files: the dispatcher adds to it, the cleaner takes away
        self._files: tuple[MappedFile, ...] = ()
        self._pages: tuple[tuple[MappedFile, ...], tuple[mmap.mmap, ...]] = ((), ())
        self._dirty: set[MappedFile] = set()
        self._new_names = False
        self._entered_through = -1
        self._entered = b""
        """The keys that a `put` had entered when it found no room for the next file."""
        self.misfits: tuple[str, ...] = ()
        """Names of files that have not the size of an index file."""

    def load(self, *, strict: bool = True) -> None:
        """Take the folder as it is; names that are no time are passed over, as RocketMQ does.

        A file of the wrong size is an error, for the numbers that were configured may be wrong; where it is known that
        they are not (`strict` is False) the file is damaged and passed over.
        """
        names = sorted(path.name for path in self._directory.glob("*") if path.name.isdigit() and path.is_file())
        known = {file.path.name: file for file in self._files}
        files = {name: known.get(name) or self._open(name, strict) for name in names}
        self._files = tuple(file for file in files.values() if file is not None)
        self.misfits = tuple(name for name, file in files.items() if file is None)

    def _open(self, name: str, strict: bool) -> MappedFile | None:
        path = self._directory / name
        try:
            return MappedFile.open(path, 0, self._file_size, writable=self._writable)
        except FileNotFoundError:  # deleted since it was listed
            return None
        except BadFile as error:
            if not strict:
                return None
            raise BadFile(
                path,
                error.found,
                f"{self._file_size} bytes, for {self.slot_count} slots and {self.entry_count} entries "
                "(maxHashSlotNum, maxIndexNum); configure the numbers it was made with",
            ) from None

    @property
    def pages(self) -> tuple[mmap.mmap, ...]:
        """The files as they are in memory, oldest first."""
        files, pages = self._pages
        if files is not self._files:
            files = self._files
            pages = tuple(file.pages for file in files)
            self._pages = files, pages
        return pages

    @property
    def file_count(self) -> int:
        return len(self._files)

    @property
    def end_offset(self) -> int:
        """The physical offset of the newest message that is indexed."""
        return self._header(self._files[-1]).end_offset if self._files else -1

    @property
    def covered(self) -> tuple[int, int] | None:
        """The physical offsets of the oldest and the newest message that is indexed; None where none is."""
        headers = [header for file in self._files if (header := self._header(file)).next_entry > 1]
        return (headers[0].begin_offset, headers[-1].end_offset) if headers else None

    def resume(self) -> None:
        """The index is whole up to its end: of what `put` brings next, only what lies behind it is new."""
        self._entered_through = self.end_offset

    # ---- at a checkpoint, and back to it

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its files, oldest first."""
        return tuple(file.path.name for file in self._files)

    @property
    def header(self) -> bytes:
        """The newest file's; empty without a file. The dispatcher must not be at work meanwhile."""
        return self._files[-1].pages[: HEADER.size] if self._files else b""

    def has(self, names: tuple[str, ...], *, or_later: bool) -> bool:
        """The files that were there once are, each of the right size; `or_later`: the oldest may have been deleted."""
        here = set(self.names)
        first = next((number for number, name in enumerate(names) if name in here), 0) if or_later else 0
        return all(name in here for name in names[first:])

    def holds(self, names: tuple[str, ...], header: bytes) -> bool:
        """The newest of these files has the entries that this header counts."""
        if not names:
            return True
        newest = next(file for file in self._files if file.path.name == names[-1])
        return index_entries_hold(newest.pages, self.slot_count, self.entry_count, header)

    def go_back_to(self, names: tuple[str, ...], header: bytes) -> None:
        """Make the index what it was when these were its files, the newest with this header. Chains are linked again.

        Slots may name entries that came later, which a power cut may have lost.
        """
        name = names[-1] if names else ""
        for later in (*(file.path.name for file in self._files), *self.misfits):
            if later > name:
                (self._directory / later).unlink(missing_ok=True)
        self._files = tuple(file for file in self._files if file.path.name <= name)
        self.misfits = ()
        if self._files:
            pages = self._files[-1].pages
            pages[: HEADER.size] = header
            link_index_entries(pages, self.slot_count, self.entry_count)
            self._dirty.add(self._files[-1])

    def put(self, keys: bytes) -> None:
        """Enter keys as dispatch packs them. After an error the same keys, and more behind them, may come again."""
        count = len(keys) // KEY.size
        first = 0
        if self._entered and keys.startswith(self._entered):
            first = len(self._entered) // KEY.size
        self._entered = b""
        while first < count and KEY.unpack_from(keys, first * KEY.size)[1] <= self._entered_through:
            first += 1
        while first < count:
            if not self._files:
                self._roll()
            file = self._files[-1]
            first = put_index_keys(file.pages, self.slot_count, self.entry_count, keys, first)
            self._dirty.add(file)
            if first < count:
                self._entered = keys[: first * KEY.size]
                self._roll()
                self._entered = b""

    def _roll(self) -> None:
        """Begin a new file. It starts out with the ends of the one before, as RocketMQ's do."""
        self._new_names = True
        name = datetime.datetime.now().strftime("%Y%m%d%H%M%S%f")[:17]
        if self._files and name <= self._files[-1].path.name:
            name = f"{int(self._files[-1].path.name) + 1:017d}"  # two files within a millisecond
        reserve = self._scratch is not None
        file = MappedFile.create(self._directory / name, 0, self._file_size, reserve=reserve, scratch=self._scratch)
        if self._files:
            header = self._header(self._files[-1])
            times, offsets = (header.end_timestamp,) * 2, (header.end_offset,) * 2
            HEADER.pack_into(file.pages, 0, *times, *offsets, 0, 1)
        else:
            HEADER.pack_into(file.pages, 0, 0, 0, 0, 0, 0, 1)
        with self._lock:
            self._files = (*self._files, file)
        self._new_names = True

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Offsets entered under a hash, newest first, at most `limit`; candidates, to be compared by the caller."""
        found: list[int] = []
        for file in reversed(self._files):
            begin, end, _, _, _, next_entry = HEADER.unpack_from(file.pages)
            if next_entry > 1 and begin_ms <= end and end_ms >= begin:
                left = limit - len(found)
                found += find_index_key(file.pages, self.slot_count, self.entry_count, key_hash, begin_ms, end_ms, left)
            if len(found) >= limit:
                break
        return found

    def _header(self, file: MappedFile) -> IndexHeader:
        return IndexHeader.decode(file.pages[: HEADER.size])

    def delete_before(self, log_first: int) -> int:
        """Delete files that name only messages before the log's first, oldest first, never the newest; how many."""
        gone = list(itertools.takewhile(lambda file: self._header(file).end_offset < log_first, self._files[:-1]))
        with self._lock:
            self._files = self._files[len(gone) :]
        for file in gone:
            self._dirty.discard(file)
            file.delete()
        return len(gone)

    def destroy(self) -> None:
        """Delete all files: the index is to be built again."""
        for file in self._files:
            file.delete()
        for name in self.misfits:
            (self._directory / name).unlink(missing_ok=True)
        self._files = ()
        self._pages = ((), ())
        self.misfits = ()
        self._dirty.clear()

    def sync(self) -> None:
        """Bring what was entered to the disk, and the names of new files with it."""
        for file in list(self._dirty):
            self._dirty.discard(file)  # first: what is entered from here on marks the file again
            file.sync()
        if self._new_names:
            self._new_names = False
            sync_directory(self._directory)

    def close(self) -> None:
        self._files = ()
        self._pages = ((), ())
        self._dirty.clear()
