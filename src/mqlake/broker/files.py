"""Files that are read again when they change: of access rules, and of certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

WATCH_S: Final = 5.0
"""How often files are looked at: RocketMQ's own interval."""
Marks = tuple[tuple[int, int, int] | None, ...]
"""Of each file its time of change, size and inode; None if it is not there."""


class Watched(Protocol):
    """Something that comes from files."""

    def refresh(self) -> None:
        """Read the files again if they changed. Must not raise: what was read before stays."""


def marks_of(*files: Path | None) -> Marks:
    """Return what shows that files changed."""
    return tuple(_mark(file) for file in files if file is not None)


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
