"""One of RocketMQ's small state files, `config/NAME.json`, with the one before it as `NAME.json.bak`.

Invariant: at every moment, a power cut included, at least one of the two is whole. A new text first becomes durable
beside them; then the present file becomes the `.bak`, and the new one takes its name. A first text is written as both,
so that no single bit is the only one. Where the file is missing or damaged the `.bak` is read, and it is said so.

Fields that are not known here are kept: a file that a newer RocketMQ wrote loses nothing by being written here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

from mqlake.errors import BadConfigFile
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import replace_file

Json = dict[str, Any]
BARE_NUMBER_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[{,\s])(-?\d+)(?=\s*:)')
"""A text, left alone, or a map's key that is a number without quotes, as RocketMQ writes them."""

_log = logging.getLogger(__name__)


class ConfigFile:
    """Loads and saves; callers keep what it means, and one of them saves at a time."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """`scratch`: a folder of the same file system, where a new text is made."""
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self._scratch = scratch
        self._lock = threading.Lock()
        self.used_backup: str | None = None
        """Why the `.bak` was read at the last loading; None where it was not."""

    def load(self) -> Json:
        """The file, else its `.bak`, else nothing; BadConfigFile where there is one and neither can be read."""
        self.used_backup = None
        problems = []
        for path in (self.path, self.backup):
            try:
                content = decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(f"{path.name}: {error}")
                continue
            if path is self.backup and (problems or not self.path.exists()):
                self.used_backup = "; ".join(problems) or f"{self.path.name} is missing"
                _log.error("%s is used: %s", path, self.used_backup)
            return content
        if problems:
            raise BadConfigFile(self.path, "; ".join(problems))
        return {}

    def save(self, content: Json) -> None:
        """Make it the file's content, durably; what was there before is the `.bak` then."""
        with self._lock:
            text = encode(content)
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
        """A damaged file must not take the place of the `.bak` that it was read from."""
        damaged = self.used_backup is not None
        self.used_backup = None
        return damaged


class Version:
    """RocketMQ's `dataVersion`: grows with every change, so that others see there was one."""

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


def decode(data: bytes) -> Json:
    """RocketMQ's JSON, in which the keys of some maps are bare numbers; ValueError for what is none."""
    text = BARE_NUMBER_KEY.sub(lambda found: found[1] or f'"{found[2]}"', data.decode("utf-8"))
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"a JSON object was expected, found {type(content).__name__}")
    return content


def encode(content: Json) -> bytes:
    """As RocketMQ 5 lays it out: tabs, keys that are numbers (`int`) without quotes."""
    return _encode(content, "\n").encode("utf-8")


def _encode(value: object, newline: str) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    inner = newline + "\t"
    items = (
        f"{key if isinstance(key, int) else json.dumps(key)}:{_encode(item, inner)}" for key, item in value.items()
    )
    return "{" + inner + f",{inner}".join(items) + newline + "}"
