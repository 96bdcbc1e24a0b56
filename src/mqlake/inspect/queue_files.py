"""Compare the files of one queue, in whatever state they are, with the entries that the log requires."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name, folder_names
from mqlake.inspect.findings import MAX_ROWS
from mqlake.inspect.survey import look, open_file
from mqlake.logs.topic_table import can_be_folder


class Wrong(NamedTuple):
    """Wrong entries of one file: how many, and the first of them (queue offset, found, expected)."""

    entries: list[tuple[int, bytes, bytes]]
    entry_count: int


def queue_folder(layout: Layout, topic: str, queue_id: int) -> Path:
    """Return the folder of a queue. A damaged topic name that cannot be a folder gives one that does not exist."""
    return layout.consume_queues / (topic if can_be_folder(topic) else "?") / str(queue_id)


def queue_folders(directory: Path) -> list[Path]:
    """Return what the folders of topics hold, in order. A topic that is deleted meanwhile is left out."""
    found = []
    for topic in folder_names(str(directory)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found += [directory / topic / name for name in os.listdir(directory / topic)]
    return sorted(found)


class QueueFiles:
    """The folder of a queue. Nothing stays open: a store may have more queues than a process has descriptors."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.known = directory.is_dir()

    def all(self) -> Iterator[MappedFile]:
        """Return all files with the name of a queue file, in order."""
        for found in look(self.directory):
            file = open_file(found.path, found.start) if found.start is not None else None
            if file is not None:
                yield file

    def path_of(self, number: int) -> Path:
        position = number * ENTRY_SIZE
        return self.directory / file_name(max(0, position - position % self.file_size))

    def bytes_at(self, position: int, size: int) -> bytes:
        """Return the bytes of a range, as far as they exist."""
        parts = []
        while size > 0:
            start = position - position % self.file_size
            part = _read(
                f"{self.directory}/{file_name(start)}", position - start, min(size, start + self.file_size - position)
            )
            parts.append(part)
            if not part or position + len(part) < min(position + size, start + self.file_size):
                break
            position, size = position + len(part), size - len(part)
        return b"".join(parts)

    def differences(self, first: int, entries: bytes) -> list[Wrong]:
        """Yield the wrong entries from queue offset `first`, file by file."""
        found = self.bytes_at(first * ENTRY_SIZE, len(entries)) if self.known else entries
        if found == entries:
            return []
        by_file: dict[Path, Wrong] = {}
        for at in range(0, len(entries), ENTRY_SIZE):
            here, wanted = found[at : at + ENTRY_SIZE], entries[at : at + ENTRY_SIZE]
            if here != wanted:
                number = first + at // ENTRY_SIZE
                path = self.path_of(number)
                told, count = by_file.get(path, Wrong([], 0))
                if count < MAX_ROWS:
                    told.append((number, here, wanted))
                by_file[path] = Wrong(told, count + 1)
        return list(by_file.values())


def _read(path: str, position: int, size: int) -> bytes:
    """Return bytes of a file, as far as they exist; none if it is missing or no regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, size, position) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)
