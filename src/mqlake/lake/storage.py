"""The one seam between a lake and where it is stored. All that is read, written, listed and deleted goes through it.

Names are relative to the lake, with slashes. Two things make commits safe, and every storage provides both: `create`
lets exactly one caller make a name, and what `create`, `replace` or an output's `commit` has returned from is durable.
No rename, lock or link is asked for: object stores have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from mqlake.files.place import place_of


class Listed(NamedTuple):
    """A file of a lake."""

    name: str
    size: int
    time: float
    """When it was written, in seconds."""


class Output(Protocol):
    """A file being written. Arrow calls `write` and `flush`. Nobody sees it before `commit`."""

    size: int
    crc: int
    closed: bool

    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> None: ...

    def commit(self) -> None:
        """Give the file its name, durably. It replaces a file of the same name."""
        ...

    def drop(self) -> None:
        """Abandon the file, unless `commit` has returned."""
        ...


class Storage(Protocol):
    """A lake's files. Pickles as its place, so that workers can open it."""

    place: str
    """As a user would name it."""
    exclusive: bool
    """Whether `lock` keeps other jobs out."""

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Create a file. Return False, and change nothing, if the name is taken."""
        ...

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a file. Readers see the old content or the new one."""
        ...

    def files(self, prefix: str) -> Iterator[Listed]:
        """Yield the files below a folder (`messages/`, or empty for all), in no order."""
        ...

    def top(self) -> list[str] | None:
        """Return the names of files and folders at the top. None if there is no such folder."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete files. A file that is gone is no error."""
        ...

    def size(self, name: str) -> int:
        """Return a file's size. Raises FileNotFoundError."""
        ...

    def open_input(self, name: str) -> Any:
        """Return a file that Arrow reads at any place. Raises FileNotFoundError, at the latest when it is read."""
        ...

    def open_output(self, name: str) -> Output: ...

    def lock(self) -> AbstractContextManager[None]:
        """Hold the lake for a job, where the storage has locks. Raises LakeInUse. Without locks, `create` decides."""
        ...

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable, whoever made them."""
        ...


def storage_at(place: str | os.PathLike[str]) -> Storage:
    """Return the storage of a lake."""
    from mqlake.lake.local import LocalStorage

    parsed = place_of(place)
    if parsed.is_local:
        return LocalStorage(parsed.path)
    from mqlake.lake.object_store import ObjectStorage  # takes long to import, and must not be imported before a fork

    return ObjectStorage(str(parsed))
