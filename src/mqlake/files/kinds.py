"""What each path of a store must be: a file or a folder.

One table for all: opening refuses an entry of another kind, `check` reports it and `repair` moves it away. A link
counts as what it leads to. Names that are not in the table may be files or folders, but nothing else: opening a FIFO
may block for ever.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from mqlake.files.layout import Layout

FILE: Final = "a file"
FOLDER: Final = "a folder"
FILE_OR_FOLDER: Final = "a file or a folder"
SPECIAL: Final = "a FIFO, a socket or a device"
NOWHERE: Final = "a link that leads nowhere"

_TOPIC, _QUEUE, _START = "[^/.][^/]*", "[0-9]+", "[0-9]{20}"
_FOLDERS: Final = re.compile(
    "commitlog|index|config|timerlog|mqlake"
    f"|(batch)?consumequeue(/{_TOPIC}(/{_QUEUE})?)?"
    "|mqlake/(spare|scratch|gates|set-aside|backup|sinks|times|seals|staging(/[^/]+)?)"
)
_FILES: Final = re.compile(
    "lock|abort|checkpoint|timerwheel"
    r"|config/([^/]+\.json(\.bak)?|timercheck)"
    f"|((commitlog|timerlog|mqlake/spare|mqlake/times|mqlake/seals|(batch)?consumequeue/{_TOPIC}/{_QUEUE})/{_START})"
    "|index/[0-9]+"
    r"|mqlake/(positions|checkpoint|scars|deleted-topics(\.bak)?|timer|identity|epoch)"
    r"|mqlake/(settings|recovery|health|clock|scrub)\.json"
    "|mqlake/(gates|sinks)/[^/.][^/]*"
)
_NOT_ENTERED: Final = "mqlake/backup"
"""Holds what earlier repairs moved away."""
_ENTERED_BY_OPENING: Final = frozenset({"", "commitlog", "config", "mqlake", "timerlog"})
"""The folders without queues: there are few files in them. A queue reports its own files when it is opened."""


class WrongKind(NamedTuple):
    """An entry of a store that is of another kind than its path must be."""

    path: Path
    found: str
    expected: str


def wrong_kinds(layout: Layout) -> list[WrongKind]:
    """Return every entry of a store that is of a wrong kind, by path."""
    return sorted(_look(layout.root, "", everywhere=True))


def in_the_way(layout: Layout) -> list[WrongKind]:
    """Return the entries of a wrong kind that opening could stumble over, except in queues. Costs a few listings."""
    return sorted(each for each in _look(layout.root, "", everywhere=False) if each.expected != FILE_OR_FOLDER)


def _look(root: Path, folder: str, *, everywhere: bool) -> Iterator[WrongKind]:
    try:
        with os.scandir(root / folder) as entries:
            listed = list(entries)
    except OSError:  # deleted since, or not for this user
        return
    for entry in listed:
        name = f"{folder}/{entry.name}" if folder else entry.name
        found, expected = _found(entry), _expected(name)
        if expected is None:
            if found == SPECIAL:
                yield WrongKind(Path(entry.path), found, FILE_OR_FOLDER)
        elif found not in (expected, None):
            yield WrongKind(Path(entry.path), str(found), expected)
            continue
        # A link of another name may lead back here.
        is_ours = found == FOLDER and (expected is not None or not entry.is_symlink())
        if is_ours and name != _NOT_ENTERED and (everywhere or name in _ENTERED_BY_OPENING):
            yield from _look(root, name, everywhere=everywhere)


def _expected(name: str) -> str | None:
    if _FILES.fullmatch(name):
        return FILE
    return FOLDER if _FOLDERS.fullmatch(name) else None


def _found(entry: os.DirEntry[str]) -> str | None:
    """Return what an entry is; None if it was deleted since."""
    if entry.is_file(follow_symlinks=False):
        return FILE
    if entry.is_dir(follow_symlinks=False):
        return FOLDER
    try:
        mode = entry.stat().st_mode
    except OSError:
        return NOWHERE if entry.is_symlink() else None
    if stat.S_ISREG(mode):
        return FILE
    return FOLDER if stat.S_ISDIR(mode) else SPECIAL
