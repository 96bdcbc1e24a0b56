"""The key index: physical offsets by the hash of a key, in files ordered by time.

It is derived from the commit log. A look-up by hash finds candidates; the caller compares the keys.

Only the dispatcher adds keys. Any thread looks up: an entry is written before the slot that names it.

Keys are written through the mapping, so their blocks must be reserved first: header and slots when a file is created,
entries in chunks ahead of their use.
"""

from __future__ import annotations

import datetime
import itertools
import mmap
import struct
from pathlib import Path

from mqlake.codec.index_entry import ENTRY_SIZE, HEADER, IndexHeader, index_file_size
from mqlake.errors import BadFile
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.kernel import find_index_key, index_entries_hold, link_index_entries, put_index_keys
from mqlake.runtime.locks import make_lock

KEY = struct.Struct("<iqq")
"""A key as dispatch packs it: hash, physical offset, store time."""
NEAR_MS, MAX_NEAR = 2_000, 1 << 20
"""An entry has the time of its record in whole seconds; and how many entries of one hash are looked at around it."""
CHUNK_BYTES = 4 << 20
"""Blocks for entries are reserved this many bytes at a time."""


class KeyIndex:
    """The index files of a store, oldest first. A file's name is its creation time: 17 digits, local time zone."""

    def __init__(
        self, directory: Path, slot_count: int, entry_count: int, *, writable: bool, scratch: Path | None = None
    ) -> None:
        """`scratch` is where a new file is created before it gets its name."""
        self._directory = directory
        self._scratch = scratch
        self.slot_count = slot_count
        self.entry_count = entry_count
        self._file_size = index_file_size(slot_count, entry_count)
        self._writable = writable
        self._lock = make_lock("index")  # guards the tuple of files: the dispatcher adds, retention removes
        self._files: tuple[MappedFile, ...] = ()
        self._pages: tuple[tuple[MappedFile, ...], tuple[mmap.mmap, ...]] = ((), ())
        self._dirty: set[MappedFile] = set()
        self._new_names = False
        self._entered_through = -1
        self._entered = b""
        """The keys that a `put` had written when the disk had no room for the next file."""
        self.misfits: tuple[str, ...] = ()
        """Names of files that do not have the size of an index file."""

    def load(self, *, strict: bool = True) -> None:
        """Load the files of the folder. Names that are not a time are skipped, as in RocketMQ.

        A file of the wrong size is an error, because the configured slot and entry counts may be wrong. If they are
        known to be right (`strict` is False), the file is damaged and skipped.
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
                "(maxHashSlotNum, maxIndexNum); configure the numbers it was made with: --config broker.conf",
            ) from None

    @property
    def pages(self) -> tuple[mmap.mmap, ...]:
        """The mappings of the files, oldest first."""
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
        """The physical offsets of the oldest and the newest indexed message; None if there is none."""
        headers = [header for file in self._files if (header := self._header(file)).next_entry > 1]
        return (headers[0].begin_offset, headers[-1].end_offset) if headers else None

    def resume(self) -> None:
        """Trust the index up to its end: the next `put` skips keys up to there."""
        self._entered_through = self.end_offset

    # ---- at a checkpoint, and back to it

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its files, oldest first."""
        return tuple(file.path.name for file in self._files)

    @property
    def header(self) -> bytes:
        """The header of the newest file; empty if there is no file. The dispatcher must not run meanwhile."""
        return self._files[-1].pages[: HEADER.size] if self._files else b""

    def has(self, names: tuple[str, ...], *, or_later: bool) -> bool:
        """Return whether all of these files exist with the right size. With `or_later` the oldest may be deleted."""
        here = set(self.names)
        first = next((number for number, name in enumerate(names) if name in here), 0) if or_later else 0
        return all(name in here for name in names[first:])

    def holds(self, names: tuple[str, ...], header: bytes) -> bool:
        """Return whether the newest of these files has the entries that this header counts."""
        if not names:
            return True
        newest = next(file for file in self._files if file.path.name == names[-1])
        return index_entries_hold(newest.pages, self.slot_count, self.entry_count, header)

    def go_back_to(self, names: tuple[str, ...], header: bytes) -> None:
        """Restore the index to the time when these were its files and this was the header of the newest.

        Chains are relinked, because slots may name later entries, which a power cut may have lost.
        """
        name = names[-1] if names else ""
        for later in (*(file.path.name for file in self._files), *self.misfits):
            if later > name:
                (self._directory / later).unlink(missing_ok=True)
        self._files = tuple(file for file in self._files if file.path.name <= name)
        self.misfits = ()
        if self._files:
            self._files[-1].reserve(self._place_of(IndexHeader.decode(header).next_entry))
            pages = self._files[-1].pages
            pages[: HEADER.size] = header
            link_index_entries(pages, self.slot_count, self.entry_count)
            self._zero_after(self._files[-1])
            self._dirty.add(self._files[-1])

    def _zero_after(self, file: MappedFile) -> None:
        """Zero what follows a file's last entry: entries of records that the log no longer has."""
        next_entry = max(1, self._header(file).next_entry)
        file.zero_from(index_file_size(self.slot_count, min(next_entry, self.entry_count)))

    def put(self, keys: bytes) -> None:
        """Add keys as dispatch packs them. After an error, the same keys, and more after them, may be put again."""
        count = len(keys) // KEY.size
        first = 0
        if self._entered and keys.startswith(self._entered):
            first = len(self._entered) // KEY.size
        self._entered = b""
        is_full = False
        while first < count and KEY.unpack_from(keys, first * KEY.size)[1] <= self._entered_through:
            first += 1
        while first < count:
            self._entered = keys[: first * KEY.size]  # for a retry, if there is no room for the next ones
            if not self._files or is_full:
                self._roll()
            file = self._files[-1]
            limit = self._reserve_ahead(file)
            self._entered = b""
            first = put_index_keys(file.pages, self.slot_count, limit, keys, first)
            self._dirty.add(file)
            is_full = limit == self.entry_count

    def _reserve_ahead(self, file: MappedFile) -> int:
        """Reserve blocks for the next entries if they have none. Return the entry up to which all have blocks."""
        first = self._place_of(0)
        next_entry = max(self._header(file).next_entry, 1)
        if self._place_of(next_entry + 1) > file.reserved:
            file.reserve(self._place_of(next_entry) + CHUNK_BYTES)
        return min((file.reserved - first) // ENTRY_SIZE, self.entry_count)

    def _place_of(self, entry: int) -> int:
        return index_file_size(self.slot_count, entry)

    def _roll(self) -> None:
        """Begin a new file. Its header starts with the ends of the file before, as in RocketMQ."""
        self._new_names = True
        name = datetime.datetime.now().strftime("%Y%m%d%H%M%S%f")[:17]
        if self._files and name <= self._files[-1].path.name:
            name = f"{int(self._files[-1].path.name) + 1:017d}"  # two files within a millisecond
        reserve = self._place_of(0) + CHUNK_BYTES
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
        """Return at most `limit` physical offsets for a hash, newest first. The caller must compare the keys."""
        found: list[int] = []
        for file in reversed(self._files):
            begin, end, _, _, _, next_entry = HEADER.unpack_from(file.pages)
            if next_entry > 1 and begin_ms <= end and end_ms >= begin:
                left = limit - len(found)
                found += find_index_key(file.pages, self.slot_count, self.entry_count, key_hash, begin_ms, end_ms, left)
            if len(found) >= limit:
                break
        return found

    def has_keys(self, keys: bytes) -> bool:
        """Return whether keys as dispatch packs them are all there."""
        return all(
            offset in self.find(key_hash, timestamp - NEAR_MS, timestamp + NEAR_MS, MAX_NEAR)
            for key_hash, offset, timestamp in KEY.iter_unpack(keys)
        )

    def _header(self, file: MappedFile) -> IndexHeader:
        return IndexHeader.decode(file.pages[: HEADER.size])

    def delete_before(self, log_first: int) -> int:
        """Delete files that only name messages before the log, oldest first, never the newest. Return how many."""
        gone = list(itertools.takewhile(lambda file: self._header(file).end_offset < log_first, self._files[:-1]))
        with self._lock:
            self._files = self._files[len(gone) :]
        for file in gone:
            self._dirty.discard(file)
            file.delete()
        return len(gone)

    def destroy(self) -> None:
        """Delete all files, before a rebuild."""
        for file in self._files:
            file.delete()
        for name in self.misfits:
            (self._directory / name).unlink(missing_ok=True)
        self._files = ()
        self._pages = ((), ())
        self.misfits = ()
        self._dirty.clear()

    def sync(self) -> None:
        """Make the added keys and the names of new files durable."""
        for file in list(self._dirty):
            self._dirty.discard(file)  # first: a key that is added from here on marks the file again
            file.sync()
        if self._new_names:
            self._new_names = False
            sync_directory(self._directory)

    def close(self) -> None:
        self._files = ()
        self._pages = ((), ())
        self._dirty.clear()
