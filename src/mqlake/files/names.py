"""File names: a queue's file is named after the offset of its first byte, in 20 digits."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mqlake.errors import BadFile, typed_errors

LAST_START = (1 << 63) - (1 << 32)
"""No file starts later: its end must still be an offset, which is a signed 64-bit number."""


def file_name(start: int) -> str:
    return f"{start:020d}"


def start_of(name: str) -> int | None:
    """Return the offset in the name of a file; None if the name is no offset that a file can have."""
    if len(name) != 20 or not (name.isascii() and name.isdigit()):
        return None
    return int(name) if int(name) <= LAST_START else None


def list_files(directory: Path, *, strict: bool = True) -> list[tuple[int, int]]:
    """Return start and size of every file of a queue, in order. Folders are skipped; a missing folder counts as empty.

    If `strict`, raises BadFile for a name that is not an offset and for anything that is not a regular file; else such
    names are skipped.
    """
    while True:
        try:
            with typed_errors(directory, "listed"):
                return _list_once(directory, strict)
        except _Vanished:  # the writer deleted it meanwhile: a list half old and half new could have a gap
            continue


class _Vanished(Exception):
    """A file was deleted between listing its name and looking at it."""


def _list_once(directory: Path, strict: bool) -> list[tuple[int, int]]:
    found = []
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return []
    for entry in entries:
        try:
            status = entry.stat()
        except OSError as error:
            if not entry.is_symlink():
                if isinstance(error, FileNotFoundError):
                    raise _Vanished from None
                raise
            status = entry.stat(follow_symlinks=False)
        start = start_of(entry.name)
        is_file = stat.S_ISREG(status.st_mode)
        if start is not None and is_file:
            found.append((start, status.st_size))
        elif strict and (start is not None or not stat.S_ISDIR(status.st_mode)):
            what = "a name that is not an offset" if is_file else "no regular file"
            raise BadFile(Path(entry.path), what, "only files named by 20 digits here; move it away")
    return sorted(found)


def folder_names(directory: str) -> list[str]:
    """Return the names of the folders in a folder; none if it is missing or not a folder."""
    with typed_errors(Path(directory), "listed"):
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in entries if entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
