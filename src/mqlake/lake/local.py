"""A lake in a folder of this machine, or of a mounted file system.

Files are written past the page cache under a name that begins with `_`, synced and renamed; small files are linked to
their name, which fails if the name is taken. Every new name is synced too, so what was committed survives a power cut.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa

from mqlake.errors import NotALake
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import create_file, replace_file
from mqlake.lake.direct import DirectFile
from mqlake.lake.lock import locked
from mqlake.lake.storage import Listed

OWN = "_mqlake"
NEW = ".new"


class LocalStorage:
    """The files of a lake below one folder."""

    exclusive = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.place = str(root)
        self._scratch = self.root / OWN / "scratch"

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def create(self, name: str, content: bytes) -> bool:
        self._make_folder(self.root / name)
        return create_file(self.root / name, content, self._scratch)

    def replace(self, name: str, content: bytes) -> None:
        self._make_folder(self.root / name)
        replace_file(self.root / name, content, self._scratch)

    def files(self, prefix: str) -> Iterator[Listed]:
        yield from _walk(self.root / prefix, prefix.rstrip("/"))

    def top(self) -> list[str] | None:
        try:
            return sorted(os.listdir(self.root))
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise NotALake(self.place, "it is a file", "name a folder") from None

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self.root / name).unlink(missing_ok=True)

    def size(self, name: str) -> int:
        return (self.root / name).stat().st_size

    def open_input(self, name: str) -> Any:
        return pa.OSFile(str(self.root / name))

    def open_output(self, name: str) -> LocalOutput:
        self._make_folder(self.root / name)
        return LocalOutput(self.root / name)

    def lock(self) -> AbstractContextManager[None]:
        return locked(self.place, self.root / OWN / "lock")

    def sync(self, folder: str) -> None:
        if (self.root / folder).exists():
            sync_directory(self.root / folder)

    def _make_folder(self, path: Path) -> None:
        make_folders(path.parent)


class LocalOutput(DirectFile):
    """A file under a temporary name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made = path.with_name(f"_{path.name}.{os.getpid()}.{threading.get_ident()}{NEW}")
        super().__init__(self._made)

    def commit(self) -> None:
        self.sync()
        self._made.rename(self._path)
        sync_directory(self._path.parent)

    def drop(self) -> None:
        self.close()
        self._made.unlink(missing_ok=True)


def _walk(folder: Path, name: str) -> Iterator[Listed]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        below = f"{name}/{entry.name}" if name else entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder / entry.name, below)
            else:
                found = entry.stat()
                yield Listed(below, found.st_size, found.st_mtime)
        except FileNotFoundError:  # deleted since it was listed
            continue


def make_folders(folder: Path) -> None:
    """Make a folder and those above it. Every new name on the way is durable."""
    if folder.exists():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_directory(folder.parent)
