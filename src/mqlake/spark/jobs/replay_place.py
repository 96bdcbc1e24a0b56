"""Where a replay makes its store: `.NAME.replay` beside its place, which gets the store's own name when it is whole.

The folder itself is locked while it is made; the operating system lets go of the lock with the process, however that
ends. So a folder that nobody holds is what a killed replay left, and the next one clears it. A worker that outlives its
driver may still write there: its files have names of their own, and nobody asks for them.
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
    """An empty folder, which is `place` behind the block; where the block fails, nothing is left of it."""
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
    """Make the folder, or take over what a killed replay left; its lock."""
    try:
        path.mkdir(parents=True)
        is_new = True
    except FileExistsError:
        is_new = False
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _is_ours(path, descriptor, is_new):
            raise NotAStore(path, "a replay is making it, or was killed", "wait for it, or remove it")
        _clear(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_ours(path: Path, descriptor: int, is_new: bool) -> bool:
    """Lock it; on a file system that locks no folders, a new one is nobody else's."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return is_new
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:  # it became a store just now
        return False


def _clear(path: Path) -> None:
    """The folder itself stays: it has the lock."""
    left = list(path.iterdir())
    if left and not Layout(path).own.is_dir():
        names = ", ".join(sorted(entry.name for entry in left)[:4])
        raise NotAStore(path, f"it holds something that no replay left ({names})", "remove it")
    for entry in left:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
