"""The part of YAML that RocketMQ's `plain_acl.yml` is written in: block maps, block lists and one-line texts.

Every scalar is a text; an empty one, `~` and `null` are None. What is outside of that part (flow style, anchors, tags,
texts over several lines, tabs, a repeated key) is refused rather than guessed. An error names the line and never shows
it: a line may hold a secret.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from mqlake.errors import InvalidConfig

_KEY = re.compile(r"([A-Za-z][\w.]*):(?:\s+(.*))?$")
_QUOTED = re.compile(r"""("[^"\\]*"|'[^']*')\s*(?:#.*)?$""")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
NOTHING = ("", "~", "null")
RESERVED = "[]{}&*!|>%@`\"',"
"""A plain text that begins with one of these means something else in YAML."""


def parse(text: str, name: str) -> dict[str, Any]:
    """Return the map that a file holds; `name` is the file's, for errors."""
    reader = _Reader(text, name)
    found = reader.map(0) if reader.lines else {}
    if reader.lines:
        reader.fail("begins at a column that fits no line above it")
    return found


class _Reader:
    """The lines that are not read yet: number, indentation, text."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._last = 0
        self.lines: list[tuple[int, int, str]] = []
        for number, line in enumerate(text.splitlines(), 1):
            content = line.strip()
            if not content or content.startswith("#") or (content == "---" and not self.lines):
                continue
            if "\t" in line:
                self._last = number
                self.fail("has a tab: indent with blanks")
            self.lines.append((number, len(line) - len(line.lstrip()), content))

    def fail(self, what: str) -> NoReturn:
        line = self.lines[0][0] if self.lines else self._last
        raise InvalidConfig(self._name, f"line {line}", what)

    def map(self, indent: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.lines and self.lines[0][1] == indent and not self.lines[0][2].startswith("- "):
            match = _KEY.match(self.lines[0][2])
            if match is None:
                self.fail("must read `name: value`")
            key, rest = match[1], (match[2] or "").strip()
            if key in found:
                self.fail(f"gives {key} a second time")
            value = self._scalar(rest)
            self._last = self.lines.pop(0)[0]
            found[key] = self._below(indent) if value is None else value
        return found

    def _below(self, indent: int) -> Any:
        """Return the list or map under a key; a list may begin at the key's own column."""
        if not self.lines:
            return None
        _, column, content = self.lines[0]
        if (content == "-" or content.startswith("- ")) and column >= indent:
            return self._list(column)
        return self.map(column) if column > indent else None

    def _list(self, indent: int) -> list[Any]:
        found: list[Any] = []
        while self.lines and self.lines[0][1] == indent and (self.lines[0][2] + " ").startswith("- "):
            number, _, content = self.lines[0]
            item = content[1:].lstrip()
            if _KEY.match(item):
                column = indent + len(content) - len(item)
                self.lines[0] = number, column, item
                found.append(self.map(column))
            else:
                found.append(self._scalar(item))
                self._last = self.lines.pop(0)[0]
        return found

    def _scalar(self, text: str) -> str | None:
        quoted = _QUOTED.match(text)
        if quoted is not None:
            return quoted[1][1:-1]
        plain = _COMMENT.sub("", text).strip()
        if plain in NOTHING:
            return None
        if (plain[0] in RESERVED and not _is_address(plain)) or plain.startswith(("- ", "? ", ": ")) or ": " in plain:
            self.fail("is YAML that this file needs not have: write a plain or quoted text on one line")
        return plain


def _is_address(text: str) -> bool:
    """Whether a text is an address pattern that begins with a star, which RocketMQ's files quote or not."""
    return re.fullmatch(r"\*([.:][\d*a-fA-F-]*)*", text) is not None
