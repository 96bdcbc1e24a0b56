"""A folder of fixed-size files that together are one long array of bytes.

Invariant: files are contiguous; file number i starts at first start + i * file_size, and is named so. Offsets count
from the beginning of the queue's life, so the first file starts above 0 once older ones were deleted.

A file is mapped when it is first touched. The list of starts is replaced, never changed: readers take it once.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from mqlake.errors import BadFile
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.names import file_name, list_files


class MappedFileQueue:
    """The files of one folder, in order."""

    def __init__(
        self, directory: Path, file_size: int, *, writable: bool, scratch: Path | None = None, strict: bool = True
    ) -> None:
        """`scratch`: where new files are made before they get their name. `strict`: no other names may be here."""
        self._strict = strict
        self._scratch = scratch
        self.directory = directory
        self.file_size = file_size
        self._writable = writable
        self._lock = threading.Lock()
        self._starts: tuple[int, ...] = ()
        self._files: dict[int, MappedFile] = {}

    def load(self) -> None:
        """Take the folder as it is. A last file without a byte is no file: a crash between making and sizing it."""
        found = list_files(self.directory, strict=self._strict)
        if found and found[-1][1] == 0:
            start, _ = found.pop()
            if self._writable:
                (self.directory / file_name(start)).unlink()
        expected = found[0][0] if found else 0
        for start, size in found:
            path = self.directory / file_name(start)
            if size != self.file_size:
                raise BadFile(path, f"{size} bytes", f"{self.file_size} bytes, the file size of this store")
            if start % self.file_size:
                raise BadFile(path, f"a start of {start}", f"a multiple of the file size {self.file_size}")
            if start != expected:
                raise BadFile(
                    path, f"a file that starts at {start}", f"one that starts at {expected}: files are missing"
                )
            expected += self.file_size
        self._starts = tuple(start for start, _ in found)

    @property
    def starts(self) -> tuple[int, ...]:
        return self._starts

    @property
    def first_offset(self) -> int:
        """Where the first file starts; 0 where there is none."""
        starts = self._starts
        return starts[0] if starts else 0

    @property
    def end_offset(self) -> int:
        """Where the last file ends; 0 where there is none."""
        starts = self._starts
        return starts[-1] + self.file_size if starts else 0

    def file_at(self, offset: int) -> MappedFile | None:
        """The file that covers an offset, mapped; None where there is none."""
        starts = self._starts
        if not starts:
            return None
        index = (offset - starts[0]) // self.file_size
        if not 0 <= index < len(starts):
            return None
        start = starts[index]
        return self._files.get(start) or self._map(start)

    def _map(self, start: int) -> MappedFile | None:
        with self._lock:
            file = self._files.get(start)
            if file is None:
                if start not in self._starts:
                    return None
                path = self.directory / file_name(start)
                try:
                    file = MappedFile.open(path, start, self.file_size, writable=self._writable)
                except FileNotFoundError:  # deleted since the list was made
                    return None
                self._files[start] = file
            return file

    def add(self, file: MappedFile) -> None:
        """Take a new file in as the last."""
        with self._lock:
            assert not self._starts or file.start == self._starts[-1] + self.file_size, "files must be contiguous"
            self._files[file.start] = file
            self._starts = (*self._starts, file.start)

    def create(self, start: int, *, reserve: bool) -> MappedFile:
        """Make the next file in place."""
        path = self.directory / file_name(start)
        file = MappedFile.create(path, start, self.file_size, reserve=reserve, scratch=self._scratch)
        self.add(file)
        return file

    def refresh(self) -> None:
        """Look for files that another process added or deleted; a queue that is just being changed stays as it is."""
        with contextlib.suppress(BadFile):
            self.load()
            with self._lock:
                self._files = {start: file for start, file in self._files.items() if start in set(self._starts)}

    def truncate_to(self, offset: int) -> int:
        """Forget everything from `offset` on: files behind it are deleted, the rest of its own is zeroed.

        Returns how far behind `offset` something was. Where anything was, it is gone from the disk on return.
        """
        behind = offset
        for start in reversed(self._starts):
            if start >= offset and start != self.first_offset:
                behind = max(behind, start + self.file_size)
                self._remove(start)
        if behind > offset:
            sync_directory(self.directory)
        file = self.file_at(offset)
        if file is not None:
            zeroed = file.zero_from(max(0, offset - file.start))
            if zeroed:
                file.sync()
                behind = max(behind, file.start + zeroed)
        return behind - offset

    def delete_before(self, offset: int) -> int:
        """Delete files that end at or before `offset`, oldest first, never the last; how many went.

        Each name is gone from the disk before the next is touched: until its folder is synced, a power cut may bring
        back any of the names removed since, and a queue with a file missing in the middle is not a queue.
        """
        count = 0
        while len(self._starts) > 1 and self._starts[0] + self.file_size <= offset:
            self._delete_first()
            sync_directory(self.directory)
            count += 1
        return count

    def _delete_first(self) -> None:
        """Readers learn it first. A name that cannot be removed is taken back: nothing behind it may go."""
        start = self._starts[0]
        with self._lock:
            self._forget(self._starts[1:])
        try:
            (self.directory / file_name(start)).unlink(missing_ok=True)
        except OSError:
            with self._lock:
                self._starts = (start, *self._starts)
            raise

    def forget_before(self, offset: int) -> None:
        """Another process deleted the files that end at or before `offset`: let go of them. The last stays."""
        with self._lock:
            last = self._starts[-1:]
            self._forget(tuple(s for s in self._starts if s + self.file_size > offset or (s,) == last))

    def forget_all(self) -> None:
        """The folder was deleted."""
        with self._lock:
            self._forget(())

    def _forget(self, kept: tuple[int, ...]) -> None:
        for start in set(self._starts).difference(kept):
            self._files.pop(start, None)
        self._starts = kept

    def _remove(self, start: int) -> None:
        with self._lock:
            self._forget(tuple(kept for kept in self._starts if kept != start))
            (self.directory / file_name(start)).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the files; views that are still held stay valid."""
        with self._lock:
            self._files.clear()
