"""Where a store or a lake is: a folder of this machine, or a prefix in an object store. Every path is parsed here.

A path with a scheme that nobody here can write to is refused before anything is written. Taken as the name of a local
folder, `hdfs://…` would become an archive that nobody looks for, and retention would delete the original.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mqlake.errors import InvalidConfig

OBJECT_STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az"}
"""Schemes that are object stores, and the name under which each is known here."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)")


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed path. `scheme` is empty for a folder of this machine."""

    scheme: str
    path: str
    """An absolute path, or bucket and prefix."""

    @property
    def is_local(self) -> bool:
        return not self.scheme

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}" if self.scheme else self.path


def place_of(path: str | os.PathLike[str], what: str = "lake") -> Place:
    """Parse the path of a lake. Raises InvalidConfig for a scheme that is not supported."""
    text = os.fspath(path)
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found is not None else ""
    if found is None or scheme == "file":
        return Place("", str(_folder(text, what)))
    if scheme not in OBJECT_STORES:
        raise InvalidConfig(what, text, "a folder, file:///…, s3://…, gs://… or az://…; no other kind of storage")
    rest = text[found.end() :].strip("/")
    if found[2] != "//" or not rest or text[found.end() :].startswith("/"):
        raise InvalidConfig(what, text, f"a bucket after two slashes: {scheme}://bucket/lake")
    return Place(OBJECT_STORES[scheme], rest)


def local_path(path: str | os.PathLike[str], what: str = "option path") -> Path:
    """Parse the path of a store, which must be a folder of a mounted file system. Patterns are left as they are."""
    text = os.fspath(path)
    found = _SCHEME.match(text)
    if found is not None and found[1].lower() != "file":
        raise InvalidConfig(what, text, "a folder of a file system that every worker can see, or file:///…")
    return _folder(text, what)


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether something has this path. A text that cannot be a path (too long, a null byte) names nothing."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _folder(text: str, what: str) -> Path:
    """Return the folder that `file:///a`, `file:/a` or `a` names."""
    if not text:
        raise InvalidConfig(what, text, "the name of a folder")
    if not re.match(r"file:/", text, re.IGNORECASE):
        return home_expanded(text).absolute()
    rest = text[len("file:") :]
    if rest.startswith("//") and not rest.startswith("///"):
        raise InvalidConfig(what, text, "file:///… without a host")
    return Path("/" + rest.lstrip("/"))


def home_expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` at its begin replaced by the home folder, as a shell does. A folder named so is `./~`."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser takes ./~ for ~
