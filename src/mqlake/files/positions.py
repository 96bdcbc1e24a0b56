"""`mqlake/positions`: the ends that the writer keeps for readers in other processes.

A page of 8-byte words, aligned and in the machine's byte order, so that each is written and read whole. The writer
updates them as it goes and never syncs them. Recovery relies on the DURABLE word: it moves only after a sync, and
mapped pages survive the death of the process. They do not survive a power cut; then the checkpoint's durable end
counts. The lock, not this file, says whether there is a writer.
"""

from __future__ import annotations

import os
from pathlib import Path

from mqlake.errors import StoreError
from mqlake.files.mapped_file import MappedFile

SIZE = 4096
FORMAT = 1
OPENING = -1
"""Stands for the writer's process id while it recovers the store."""
VERSION, WRITER, APPENDED, DURABLE, DISPATCHED, GENERATION, FIRST, NEXT_CLEANING, DELETIONS = range(9)
"""The words: format, pid of the writer (0 after a clean close), three ends of the log, how often it was opened, where
the log begins, when the cleaner runs next (milliseconds since 1970, 0 if none runs), and how many topics were
deleted."""


class Positions:
    """The words of one store; `words[APPENDED] = end` is all that a put does here."""

    def __init__(self, file: MappedFile) -> None:
        self._file: MappedFile | None = file
        self.words = memoryview(file.pages).cast("q")

    @classmethod
    def create(cls, path: Path) -> Positions:
        """Open or create the file for the writer. An existing file is kept, so that followers continue with it."""
        try:
            file = MappedFile.open(path, 0, SIZE, writable=True)
            file.reserve(SIZE)  # a sparse copy of a store has a hole here
        except Exception:
            path.unlink(missing_ok=True)
            file = MappedFile.create(path, 0, SIZE, reserve=SIZE)
        positions = cls(file)
        positions.words[WRITER] = OPENING  # first: followers must not take the last writer's words for this one's
        positions.words[VERSION] = FORMAT
        positions.words[GENERATION] += 1
        return positions

    @classmethod
    def open(cls, path: Path) -> Positions | None:
        """Open the file for a follower; None if there is none or it has another format."""
        try:
            positions = cls(MappedFile.open(path, 0, SIZE, writable=False))
        except (OSError, ValueError, StoreError):  # nothing else: it may be a signal handler's
            return None
        return positions if positions.words[VERSION] == FORMAT else None

    def read(self, word: int) -> int:
        """Return a word; 0 if the writer has closed the page meanwhile."""
        try:
            return self.words[word]
        except ValueError:
            return 0

    @property
    def generation(self) -> int:
        return self.words[GENERATION]

    def announce(self, appended: int, durable: int, dispatched: int) -> None:
        """Publish the ends, then the writer's process id: the writer is ready."""
        self.words[APPENDED] = appended
        self.words[DURABLE] = durable
        self.words[DISPATCHED] = dispatched
        self.words[WRITER] = os.getpid()

    def close(self) -> None:
        """Mark a clean close, and release the page."""
        if self._file is not None:
            self.words[WRITER] = 0
            self.words.release()
            self._file = None
