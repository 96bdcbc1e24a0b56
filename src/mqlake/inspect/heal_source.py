"""Where the bytes of a damaged range come from: another copy of the same log.

A source is asked for ranges of the log and may answer with anything: whoever asks proves every byte (`heal`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path
from typing import Protocol

from mqlake.errors import NotAStore, SourceFailed, file_error
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import open_regular
from mqlake.files.names import file_name, list_files


class Source(Protocol):
    """A copy of a log."""

    name: str

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the log, fewer if it ends before; SourceFailed if it has none of them.

        After its end there may be zeros: files of a log have their full size from the beginning.
        """


class FolderSource:
    """Another store, a backup, or a slave's store: any folder with a `commitlog`, live or not."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._folder = Layout(path).commit_log
        self._files = list_files(self._folder, strict=False)
        if not self._files:
            raise NotAStore(path, "it has no files of a log", "name a store or a backup of this log, or HOST:PORT")

    def read(self, start: int, end: int) -> bytes:
        parts: list[bytes] = []
        position = start
        while position < end:
            at = bisect_right(self._files, position, key=lambda file: file[0]) - 1
            first, size = self._files[at] if at >= 0 else (0, 0)
            stop = min(end, first + size)
            if stop <= position:
                if parts and at == len(self._files) - 1:
                    break
                raise SourceFailed(self.name, f"it does not have the log at {position}")
            parts.append(self._read_file(first, position - first, stop - position))
            position = stop
        return b"".join(parts)

    def _read_file(self, first: int, position: int, size: int) -> bytes:
        path = self._folder / file_name(first)
        try:
            descriptor = open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            raise SourceFailed(self.name, f"{path.name} was deleted meanwhile") from None
        try:
            data = os.pread(descriptor, size, position)
        except OSError as error:
            raise file_error(path, "read", size, error) from error
        finally:
            os.close(descriptor)
        if len(data) < size:
            raise SourceFailed(self.name, f"{path.name} ends before {first + position + size}")
        return data
