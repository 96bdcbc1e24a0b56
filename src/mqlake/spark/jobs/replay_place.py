"""The folder in which a replay builds its store: `.NAME.replay` next to the target, renamed to it when complete.

The folder is locked while the store is built. The operating system releases the lock when the process ends, in whatever
way. So an unlocked folder was left by a killed replay, and the next one clears it. A worker that outlives its driver
may still write there: its files have names of their own, and nobody reads them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqlake.errors import NotAStore
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import sync_directory


@contextmanager
def making(place: Path) -> Iterator[Path]:
    """Yield an empty folder, and rename it to `place` after the block. If the block fails, delete the folder."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise NotAStore(place, "it exists", "a replay makes a new store: name a new or an empty folder")
    path = place.with_name(f".{place.name}.replay")
    descriptor = _claim(path)
    try:
        yield path
        path.rename(place)
        sync_directory(place.parent)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _claim(path: Path) -> int:
    """Make the folder, or take over what a killed replay left. Return the descriptor that holds the lock."""
    try:
        path.mkdir(parents=True)
        is_new = True
    except FileExistsError:
        is_new = False
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _is_ours(path, descriptor, is_new):
            raise NotAStore(path, "another replay is writing it, or was killed", "wait for it, or remove the folder")
        _clear(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_ours(path: Path, descriptor: int, is_new: bool) -> bool:
    """Lock the folder. On a file system without folder locks, a folder is ours only if we made it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return is_new
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:  # the other replay just finished and renamed it
        return False


def _clear(path: Path) -> None:
    """Empty the folder. The folder itself stays, because it holds the lock."""
    left = list(path.iterdir())
    if left and not Layout(path).own.is_dir():
        names = ", ".join(sorted(entry.name for entry in left)[:4])
        raise NotAStore(path, f"it holds something that no replay left ({names})", "remove it")
    for entry in left:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
