"""Check and cut the folder of one consume queue, without opening the queue.

Recovery does this for every queue of a store, of which there may be many thousands. It costs a few system calls each;
nothing is mapped and nothing stays open.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE
from mqlake.errors import BadFile, typed_errors
from mqlake.files.mapped_file import open_regular
from mqlake.files.names import file_name, start_of


class Folder(NamedTuple):
    """What a queue's folder holds: its files as (start, size), and `strangers`, names that are not a queue file's."""

    path: str
    files: tuple[tuple[int, int], ...] = ()
    strangers: tuple[str, ...] = ()


def read_folder(path: str) -> Folder:
    """List a folder. A missing one counts as empty."""
    files, strangers = [], []
    with typed_errors(Path(path), "listed"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                start = start_of(name)
                if start is not None and entry.is_file(follow_symlinks=True):
                    files.append((start, entry.stat().st_size))
                elif start is not None or not entry.is_dir():
                    strangers.append(name)
    return Folder(path, tuple(sorted(files)), tuple(strangers))


def is_whole(folder: Folder, file_size: int, end: int, *, from_zero: bool = False) -> bool:
    """Return whether the files of the entries before `end` are contiguous and each has the right size.

    With `from_zero` they must begin at entry 0; else older files may have been deleted.
    """
    if any(start_of(name) is not None for name in folder.strangers):  # a folder instead of a file
        return False
    stop = end * ENTRY_SIZE
    expected = folder.files[0][0] if folder.files and not from_zero else 0
    for start, size in folder.files:
        if start >= stop:
            break
        if start != expected or start % file_size or size != file_size:
            return False
        expected += file_size
    return expected >= stop


def is_regular(folder: Folder, file_size: int, *, from_zero: bool = False) -> bool:
    """Return whether all files are contiguous and each has the right size. An empty last file is ignored."""
    files = folder.files[:-1] if folder.files and folder.files[-1][1] == 0 else folder.files
    end = (files[-1][0] + file_size) // ENTRY_SIZE if files else 0
    return is_whole(folder._replace(files=files), file_size, end, from_zero=from_zero)


def is_plausible(folder: Folder, file_size: int, end: int, log_end: int) -> bool:
    """Return whether the first and the last entry of each file before entry `end` are plausible, not zeros or noise."""
    starts = [start for start, _ in folder.files if start < end * ENTRY_SIZE]
    return all(_is_plausible(folder.path, start, file_size, end, log_end) for start in starts)


def is_whole_and_plausible(path: str, file_size: int, end: int, log_end: int) -> bool:
    """Check both for a queue that begins at entry 0. Its file names are known, so the folder is not listed."""
    stop = -(-end * ENTRY_SIZE // file_size) * file_size
    # A folder with the name of the next file. A Path would cost more.
    if os.path.isdir(f"{path}/{file_name(stop)}"):  # noqa: PTH112
        return False
    return all(_is_plausible(path, start, file_size, end, log_end) for start in range(0, stop, file_size))


def _is_plausible(path: str, start: int, file_size: int, end: int, log_end: int) -> bool:
    """Check one file. Return False also if it is missing or has another size."""
    last = min(start + file_size, end * ENTRY_SIZE) - start - ENTRY_SIZE
    try:
        descriptor = open_regular(f"{path}/{file_name(start)}", os.O_RDONLY)
    except (FileNotFoundError, BadFile):
        return False
    try:
        if os.fstat(descriptor).st_size != file_size:
            return False
        entries = [os.pread(descriptor, ENTRY_SIZE, at) for at in {0, last}]
    finally:
        os.close(descriptor)
    return all(
        size > 0 and offset >= 0 and (size == FILLER_SIZE or offset + size <= log_end)
        for offset, size, _ in map(ENTRY.unpack, entries)
    )


def cut_folder(folder: Folder, file_size: int, end: int) -> str | None:
    """Delete the files after entry `end` and zero the rest of its own. Return the changed file, which must be synced.

    The folder must be whole up to `end`.
    """
    stop = end * ENTRY_SIZE
    changed = None
    for start, size in folder.files:
        path = f"{folder.path}/{file_name(start)}"
        if start >= stop:
            Path(path).unlink()
        elif start + file_size > stop and _zero_from(path, stop - start, size):
            changed = path
    return changed


def _zero_from(path: str, position: int, size: int) -> bool:
    """Zero a file from `position` on, and return whether anything was written. Holes are skipped."""
    changed = False
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        while position < size:
            try:
                position = os.lseek(descriptor, position, os.SEEK_DATA)
                stop = min(os.lseek(descriptor, position, os.SEEK_HOLE), size, position + (1 << 20))
            except OSError:  # only a hole is left
                break
            if os.pread(descriptor, stop - position, position).strip(b"\0"):
                os.pwrite(descriptor, bytes(stop - position), position)
                changed = True
            position = stop
    finally:
        os.close(descriptor)
    return changed


def clear_folder(folder: Folder, set_aside: Path) -> None:
    """Delete a queue's files, which dispatch rewrites. Anything else in the folder is moved to `set_aside`."""
    for start, _ in folder.files:
        Path(folder.path, file_name(start)).unlink()
    for name in folder.strangers:
        topic, queue_id = Path(folder.path).parts[-2:]
        place = set_aside / topic / queue_id
        place.mkdir(parents=True, exist_ok=True)
        Path(folder.path, name).replace(place / name)
