"""A folder of fixed-size files that together form one long array of bytes.

Invariant: files are contiguous; file i starts at first start + i * file_size and is named after its start. Offsets
count from the beginning of the queue's life, so the first file starts above 0 once older ones were deleted.

A file is mapped on first use. The tuple of starts is replaced, never changed, so readers take it once without a lock.
Files of a `bounded` queue are closed when the process has too many open (`open_files`), and mapped again on use.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from mqlake.errors import BadFile
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.names import file_name, list_files
from mqlake.files.open_files import open_files
from mqlake.runtime.locks import make_lock


class MappedFileQueue:
    """The files of one folder, in order."""

    def __init__(
        self,
        directory: Path,
        file_size: int,
        *,
        writable: bool,
        scratch: Path | None = None,
        strict: bool = True,
        bounded: bool = False,
    ) -> None:
        """`scratch`: where new files are created before they get their name. `strict`: other names are an error."""
        self._strict = strict
        self._bounded = bounded
        self._scratch = scratch
        self.directory = directory
        self.file_size = file_size
        self._writable = writable
        self._lock = make_lock("files")
        self._starts: tuple[int, ...] = ()
        self._files: dict[int, MappedFile] = {}

    def load(self) -> None:
        """List the files. An empty last file is dropped: a crash came between its creation and its sizing."""
        found = list_files(self.directory, strict=self._strict)
        if found and found[-1][1] == 0:
            start, _ = found.pop()
            if self._writable:
                (self.directory / file_name(start)).unlink()
        if not self._strict:  # a name that cannot be one of the queue's files is none, as any other stranger
            found = [each for each in found if each[0] % self.file_size == 0]
        expected = found[0][0] if found else 0
        for start, size in found:
            if size != self.file_size or start % self.file_size or start != expected:
                raise self._misfit(start, size, expected)
            expected += self.file_size
        self._starts = tuple(start for start, _ in found)

    def _misfit(self, start: int, size: int, expected: int) -> BadFile:
        path = self.directory / file_name(start)
        if size != self.file_size:
            return BadFile(path, f"{size} bytes", f"{self.file_size} bytes, the file size of this store")
        if start % self.file_size:
            return BadFile(path, f"a start of {start}", f"a multiple of the file size {self.file_size}")
        return BadFile(path, f"a file that starts at {start}", f"one that starts at {expected}: files are missing")

    @property
    def starts(self) -> tuple[int, ...]:
        return self._starts

    @property
    def first_offset(self) -> int:
        """Where the first file starts; 0 if there is none."""
        starts = self._starts
        return starts[0] if starts else 0

    @property
    def end_offset(self) -> int:
        """Where the last file ends; 0 if there is none."""
        starts = self._starts
        return starts[-1] + self.file_size if starts else 0

    def file_at(self, offset: int) -> MappedFile | None:
        """Return the file that covers an offset, mapped; None if there is none."""
        starts = self._starts
        if not starts:
            return None
        index = (offset - starts[0]) // self.file_size
        if not 0 <= index < len(starts):
            return None
        file = self._files.get(starts[index])
        if file is None:
            return self._map(starts[index])
        file.was_used = True
        return file

    def _map(self, start: int) -> MappedFile | None:
        with self._lock:
            file = self._files.get(start)
            if file is None:
                if start not in self._starts:
                    return None
                path = self.directory / file_name(start)
                try:
                    file = MappedFile.open(path, start, self.file_size, writable=self._writable)
                except FileNotFoundError:  # deleted since it was listed
                    return None
                self._keep(file)
            return file

    def _keep(self, file: MappedFile) -> None:
        if self._bounded:
            open_files.admit(file, self._files)
        else:
            self._files[file.start] = file

    def add(self, file: MappedFile) -> None:
        """Add a new file as the last."""
        with self._lock:
            assert not self._starts or file.start == self._starts[-1] + self.file_size, "files must be contiguous"
            self._keep(file)
            self._starts = (*self._starts, file.start)

    def create(self, start: int) -> MappedFile:
        """Create the next file, without blocks: it is written through its descriptor."""
        path = self.directory / file_name(start)
        file = MappedFile.create_sparse(path, start, self.file_size, self._scratch)
        self.add(file)
        return file

    def refresh(self) -> None:
        """List files that another process added or deleted. If the folder is changing just now, the old list stays."""
        with self._lock, contextlib.suppress(BadFile):  # locked: of two racing listings the older must not win
            before = self._starts
            self.load()
            self._drop(set(before).difference(self._starts))

    def truncate_to(self, offset: int) -> int:
        """Remove everything from `offset` on: delete the files after it and zero the rest of its own.

        Return how far after `offset` there was something. On return, it is durably removed.
        """
        old_end = offset
        for start in reversed(self._starts):
            if start >= offset and start != self.first_offset:
                old_end = max(old_end, start + self.file_size)
                self._remove(start)
        if old_end > offset:
            sync_directory(self.directory)
        file = self.file_at(offset)
        if file is not None:
            zeroed = file.zero_from(max(0, offset - file.start))
            if zeroed:
                file.sync()
                old_end = max(old_end, file.start + zeroed)
        return old_end - offset

    def delete_before(self, offset: int) -> int:
        """Delete files that end at or before `offset`, oldest first, never the last. Return how many.

        The folder is synced after each: until then, a power cut may restore any of the removed names, and that could
        leave a gap between files.
        """
        count = 0
        while len(self._starts) > 1 and self._starts[0] + self.file_size <= offset:
            self._delete_first()
            sync_directory(self.directory)
            count += 1
        return count

    def _delete_first(self) -> None:
        """Delete the first file, hiding it from readers first. If that fails, list it again: no gap may arise."""
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
        """Close files that end at or before `offset`, which another process deleted. The last one stays."""
        with self._lock:
            last = self._starts[-1:]
            self._forget(tuple(s for s in self._starts if s + self.file_size > offset or (s,) == last))

    def forget_all(self) -> None:
        """Close all files: the folder was deleted."""
        with self._lock:
            self._forget(())

    def _forget(self, kept: tuple[int, ...]) -> None:
        self._drop(set(self._starts).difference(kept))
        self._starts = kept

    def _drop(self, starts: set[int]) -> None:
        dropped = [file for start in starts if (file := self._files.pop(start, None)) is not None]
        if self._bounded:
            open_files.close(dropped)

    def _remove(self, start: int) -> None:
        with self._lock:
            self._forget(tuple(kept for kept in self._starts if kept != start))
            (self.directory / file_name(start)).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files. Existing views stay valid."""
        with self._lock:
            self._drop(set(self._files))
