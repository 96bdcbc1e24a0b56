"""The files of one queue as they lie there, whatever they are like, against the entries that the log asks for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name
from mqlake.logs.topic_table import can_be_folder
from mqlake.store.findings import MAX_ROWS
from mqlake.store.survey import look, open_file


class Wrong(NamedTuple):
    """Entries of one file that are not what they must be: the first of them as number, found, wanted; and how many."""

    entries: list[tuple[int, bytes, bytes]]
    entry_count: int


def queue_folder(layout: Layout, topic: str, queue_id: int) -> Path:
    """A name that cannot be a folder is a damaged one: it has no queue."""
    return layout.consume_queues / (topic if can_be_folder(topic) else "?") / str(queue_id)


class QueueFiles:
    """A queue's folder; files are mapped when they are first read."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.known = directory.is_dir()
        self._files: dict[int, MappedFile | None] = {}

    def file(self, start: int) -> MappedFile | None:
        if start not in self._files:
            self._files[start] = open_file(self.directory / file_name(start), start) if self.known else None
        return self._files[start]

    def all(self) -> list[MappedFile]:
        """Every file that is named as one of a queue, in order."""
        starts = [found.start for found in look(self.directory) if found.start is not None]
        return [file for start in starts if (file := self.file(start)) is not None]

    def path_of(self, number: int) -> Path:
        position = number * ENTRY_SIZE
        return self.directory / file_name(max(0, position - position % self.file_size))

    def bytes_at(self, position: int, size: int) -> bytes:
        """The bytes that are there, as far as they are."""
        parts = []
        while size > 0:
            start = position - position % self.file_size
            file = self.file(start)
            part = b"" if file is None else file.pages[position - start : position - start + size]
            part = part[: self.file_size - (position - start)]
            parts.append(part)
            if not part or position + len(part) < min(position + size, start + self.file_size):
                break
            position, size = position + len(part), size - len(part)
        return b"".join(parts)

    def differences(self, first: int, entries: bytes) -> list[Wrong]:
        """What of the entries from number `first` on is not there as it must be, file by file."""
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
