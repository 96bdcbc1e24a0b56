"""One of RocketMQ's small state files, `config/NAME.json`, with its previous version as `NAME.json.bak`.

Invariant: at every moment, even after a power cut, at least one of the two is whole. A new text is first made durable
in a temporary file; then the present file becomes the `.bak`, and the new one takes its name. A first text is written
as both, so that there are always two copies. If the file is missing or damaged, the `.bak` is read and this is logged.

Unknown fields are kept: a file of a newer RocketMQ loses nothing when it is written here.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mqlake.codec.config_json import MAX_CONFIG_BYTES, SHAPES, Json, Shape, decode
from mqlake.errors import BadConfigFile, NotWritten, StoreError, is_passing
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import read_small_file, replace_file
from mqlake.runtime.locks import make_lock

__all__ = ["ConfigFile", "Json", "Version", "decode", "encode"]
Value = TypeVar("Value")
_log = logging.getLogger(__name__)


class ConfigFile:
    """Loads and saves the file. Callers interpret its content, and save one at a time."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """`scratch`: a folder on the same file system for temporary files."""
        self.path = path
        self.shape: Shape = SHAPES.get(path.name, lambda at, value: None)
        """The shape that the content must have."""
        self.backup = path.with_name(path.name + ".bak")
        self._scratch = scratch
        self._lock = make_lock("config_file")
        self.used_backup: str | None = None
        """Why the last load read the `.bak`; None if it did not."""

    def load(self) -> Json:
        """Return the content of the file, else of its `.bak`, else none; raise BadConfigFile if neither is usable."""
        return self.read(lambda content: content)

    def read(self, understand: Callable[[Json], Value]) -> Value:
        """Return what `understand` makes of the content. Content on which it raises a StoreError is damaged too."""
        self.used_backup = None
        problems = []
        for path in (self.path, self.backup):
            try:
                content = decode(read_small_file(path, MAX_CONFIG_BYTES))
                self.shape("", content)
                understood = understand(content)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, StoreError) as error:
                if is_passing(error):  # it says nothing about the file
                    raise
                problems.append(f"{path.name}: {error}")
                continue
            if path is self.backup and (problems or not self.path.exists()):
                self.used_backup = "; ".join(problems) or f"{self.path.name} is missing"
                _log.error("%s is used: %s", path, self.used_backup)
            return understood
        if problems:
            raise BadConfigFile(self.path, "; ".join(problems))
        return understand({})

    def save(self, content: Json) -> None:
        """Replace the content durably; the old one becomes the `.bak`. Raise NotWritten if that fails."""
        with self._lock:
            try:
                self._save(encode(content))
            except OSError as error:
                raise NotWritten(self.path, error.strerror or str(error)) from error
            except ValueError as error:  # a text that is no Unicode
                raise NotWritten(self.path, str(error)) from error

    def _save(self, text: bytes) -> None:
        if self.path.exists() and not self._is_damaged():
            self._scratch.mkdir(parents=True, exist_ok=True)
            linked = self._scratch / self.backup.name
            linked.unlink(missing_ok=True)
            os.link(self.path, linked)
            linked.replace(self.backup)
            sync_directory(self.backup.parent)
        elif not self.backup.exists():
            replace_file(self.backup, text, self._scratch)
        replace_file(self.path, text, self._scratch)

    def _is_damaged(self) -> bool:
        """Return whether the last load found the file damaged; then `save` must not replace the `.bak` with it."""
        damaged = self.used_backup is not None
        self.used_backup = None
        return damaged


class Version:
    """RocketMQ's `dataVersion`: grows with every change, so that readers notice it."""

    def __init__(self, content: Json) -> None:
        self._known: Json = content if isinstance(content, dict) else {}

    def next(self) -> Json:
        counter = self._known.get("counter", 0)
        self._known = {
            **self._known,
            "counter": (counter if isinstance(counter, int) else 0) + 1,
            "stateVersion": self._known.get("stateVersion", 0),
            "timestamp": time.time_ns() // 1_000_000,
        }
        return self._known


_encode_plain = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Made once: `json.dumps` makes an encoder for each value, and a table of 10,000 topics has 90,000 values."""


def encode(content: Json) -> bytes:
    """Encode as RocketMQ 5 does: tabs, and integer keys without quotes."""
    return _encode(content, "\n").encode("utf-8")


def _encode(value: object, newline: str) -> str:
    if not isinstance(value, dict) or not value:
        return _encode_plain(value)
    inner = newline + "\t"
    items = (
        f"{key if isinstance(key, int) else json.dumps(key)}:{_encode(item, inner)}" for key, item in value.items()
    )
    return "{" + inner + f",{inner}".join(items) + newline + "}"
