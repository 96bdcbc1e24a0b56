"""Keeps the pages just ahead of the writer ready.

The first write to a page costs more than the copy into it. This thread makes the next few megabytes writable while
the writer fills the ones before; the writer only compares a number, and rings when it comes near the edge.
"""

from __future__ import annotations

import threading

from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import populate

CHUNK = 4 << 20


class WarmAhead:
    """One thread that runs `window` bytes ahead of the writer."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._bell = threading.Event()
        self._file: MappedFile | None = None
        self._position = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="mqlake-warm", daemon=True)
        self._thread.start()

    def advance(self, file: MappedFile, position: int) -> int:
        """The writer is here; returns the position at which it should call again."""
        self._file = file
        self._position = position
        self._bell.set()
        return position + self._window // 2

    def _run(self) -> None:
        warmed_file: MappedFile | None = None
        warmed = 0
        while True:
            self._bell.wait()
            self._bell.clear()
            file, position = self._file, self._position
            if self._stopping or file is None:
                return
            if file is not warmed_file:
                warmed_file, warmed = file, 0
            warmed = max(warmed, position - position % CHUNK)
            stop = min(file.size, position + self._window)
            while warmed < stop:
                size = min(CHUNK, file.size - warmed)
                if not populate(file.pages, warmed, size):
                    return
                warmed += size

    def close(self) -> None:
        self._stopping = True
        self._file = None
        self._bell.set()
        self._thread.join()
