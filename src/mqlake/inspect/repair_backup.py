"""Save what a repair changes, under `mqlake/backup/<time>/`.

`manifest` has one line for each change: file, offset and length of the old bytes, and where they are kept. Overwritten
ranges are copied one after the other into `ranges`; removed files are moved to the same path under `files/`, and what
is of a wrong kind (a folder instead of a file, a FIFO) under `wrong-kind/`: there, a path may be the parent of another.

A range and its line are on disk before `seal` returns; the line of a move is on disk before the file moves. So whenever
a repair is interrupted, everything it changed is kept here.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mqlake.files.layout import Layout
from mqlake.files.mapped_file import sync_directory

CHUNK = 1 << 20
WRONG = ".wrong-kind"
"""The suffix of what stood where the backup belongs; an interrupted repair leaves it."""


class Backup:
    """Created when the first change is saved."""

    def __init__(self, layout: Layout) -> None:
        self._root = layout.root
        self._own = layout.own
        self._parent = layout.own / "backup"
        self.folder: Path | None = None

    def keep_range(self, file: Path, offset: int, data: bytes | memoryview) -> None:
        """Copy a range that is about to be overwritten; call `seal` before overwriting it."""
        with self._open("ranges") as kept:
            at = kept.tell()
            kept.write(data)
        self._note(file, offset, len(data), "ranges", at)

    def seal(self) -> None:
        """Sync everything saved so far, and its lines."""
        if self.folder is None:
            return
        for path in self.folder.iterdir():
            if path.is_file():
                _sync(path)
        sync_directory(self.folder)

    def move(self, path: Path, under: str = "files") -> None:
        """Move a file, or a folder with its contents, into the backup."""
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        target = self._folder() / under / path.relative_to(self._root)
        while os.path.lexists(target):
            target = target.with_name(f"{target.name}~")
        target.parent.mkdir(parents=True, exist_ok=True)
        for file in files or [path]:
            kept = target / file.relative_to(path) if file != path else target
            size = file.stat().st_size if file.is_file() else 0
            self._note(file, 0, size, kept.relative_to(self._folder()).as_posix(), 0)
        self.seal()
        with contextlib.suppress(FileNotFoundError):
            path.rename(target)
        sync_directory(target.parent)
        sync_directory(path.parent)

    def move_wrong_kind(self, path: Path) -> None:
        """Move what is of a wrong kind into the backup; first out of the way if the backup itself belongs there."""
        if path in (self._own, self._parent):
            aside = path.with_name(f"{path.name}{WRONG}")
            while os.path.lexists(aside):
                aside = aside.with_name(f"{aside.name}~")
            path.rename(aside)
            path = aside
        self.move(path, "wrong-kind")

    def _folder(self) -> Path:
        if self.folder is None:
            folder = self._parent / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            while folder.exists():
                folder = folder.with_name(f"{folder.name}~")
            folder.mkdir(parents=True)
            sync_directory(self._parent)
            self.folder = folder
        return self.folder

    def _open(self, name: str) -> IO[bytes]:
        return (self._folder() / name).open("ab")

    def _note(self, file: Path, offset: int, length: int, saved_as: str, saved_at: int) -> None:
        name = file.relative_to(self._root).as_posix()
        line = {"file": name, "offset": offset, "length": length, "savedAs": saved_as, "savedAt": saved_at}
        with self._open("manifest") as manifest:
            manifest.write(json.dumps(line).encode() + b"\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_store(source: Path, target: Path) -> None:
    """Copy a store; holes stay holes. Spare files and earlier backups are not copied."""
    left_out = {source / "mqlake" / "spare", source / "mqlake" / "scratch", source / "mqlake" / "backup"}
    for path in _walk(source, left_out):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif path.is_file():
            _copy_file(path, copy)


def _walk(folder: Path, left_out: set[Path]) -> Iterator[Path]:
    yield folder
    for path in sorted(folder.iterdir()):
        if path in left_out:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, left_out)
        else:
            yield path


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        size = os.fstat(read.fileno()).st_size
        os.ftruncate(write.fileno(), size)
        position = 0
        while position < size:
            try:
                position = os.lseek(read.fileno(), position, os.SEEK_DATA)
                stop = os.lseek(read.fileno(), position, os.SEEK_HOLE)
            except OSError:  # only a hole is left
                break
            while position < stop:
                data = os.pread(read.fileno(), min(CHUNK, stop - position), position)
                position += os.pwrite(write.fileno(), data, position)
        os.fsync(write.fileno())
