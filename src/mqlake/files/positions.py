"""`mqlake/positions`: the writer's live ends, for readers in other processes.

A page of 8-byte words, in the machine's own byte order and aligned, so that each is written and read whole. The writer
keeps them as it goes; they are never synced and prove nothing after a crash. Whether a writer is there at all says the
lock, not this file.
"""

from __future__ import annotations

import os
from pathlib import Path

from mqlake.files.mapped_file import MappedFile

SIZE = 4096
FORMAT = 1
VERSION, WRITER, APPENDED, DURABLE, DISPATCHED, GENERATION, FIRST, NEXT_CLEANING, DELETIONS = range(9)
"""The words: format, pid of the writer (0 after a clean close), three ends of the log, how often it was opened, where
the log begins, when the cleaner looks next (milliseconds since 1970, 0 where none runs), and how many topics were
deleted."""


class Positions:
    """The words of one store; `words[APPENDED] = end` is all that a put does here."""

    def __init__(self, file: MappedFile) -> None:
        self._file: MappedFile | None = file
        self.words = memoryview(file.pages).cast("q")

    @classmethod
    def create(cls, path: Path) -> Positions:
        """The writer's side: keeps the file if it is there, so that readers which follow it go on."""
        try:
            file = MappedFile.open(path, 0, SIZE, writable=True)
        except Exception:
            path.unlink(missing_ok=True)
            file = MappedFile.create(path, 0, SIZE, reserve=True)
        positions = cls(file)
        positions.words[VERSION] = FORMAT
        positions.words[GENERATION] += 1
        return positions

    @classmethod
    def open(cls, path: Path) -> Positions | None:
        """A reader's side; None where there is no such file or another format."""
        try:
            positions = cls(MappedFile.open(path, 0, SIZE, writable=False))
        except Exception:
            return None
        return positions if positions.words[VERSION] == FORMAT else None

    @property
    def generation(self) -> int:
        return self.words[GENERATION]

    def announce(self, appended: int, durable: int, dispatched: int) -> None:
        """The writer is ready: first the ends, then its name."""
        self.words[APPENDED] = appended
        self.words[DURABLE] = durable
        self.words[DISPATCHED] = dispatched
        self.words[WRITER] = os.getpid()

    def close(self) -> None:
        """The writer leaves cleanly, and lets go of the page."""
        if self._file is not None:
            self.words[WRITER] = 0
            self.words.release()
            self._file = None
