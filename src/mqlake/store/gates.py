"""Gates: what another part says of the log it still needs.

`mqlake/gates/NAME` holds one number: NAME is done with the log before this offset, and needs what lies from it on. The
file is replaced whole and synced, so a gate outlives its process and a power cut, and any process may set its own; each
name has one owner. Retention looks at the gates before each file that it deletes.

A gate that cannot be read needs everything: losing files to a damaged number is worse than keeping them for too long.
"""

from __future__ import annotations

import re
from pathlib import Path

from mqlake.errors import InvalidConfig
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import replace_file

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Gates:
    """The gates of one store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def hold(self, name: str, offset: int) -> None:
        """Keep the log from `offset` on, from when this returns: what was deleted before it stays deleted."""
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise InvalidConfig(f"gate {name}", offset, "must be an offset of the log, 0 or more")
        path = self._path(name)
        self._directory.mkdir(exist_ok=True)
        replace_file(path, b"%d\n" % offset, self._directory / ".new")

    def release(self, name: str) -> None:
        """Nothing is kept for `name` any longer."""
        self._path(name).unlink(missing_ok=True)
        if self._directory.exists():
            sync_directory(self._directory)

    def offsets(self) -> dict[str, int]:
        """Each gate and the offset from which on it needs the log."""
        if not self._directory.exists():
            return {}
        files = sorted(path for path in self._directory.iterdir() if path.is_file())
        return {path.name: _read(path) for path in files}

    def _path(self, name: str) -> Path:
        if NAME.fullmatch(name) is None:
            raise InvalidConfig("gate", name, "must be a name of at most 64 letters, digits, - and _")
        return self._directory / name


def _read(path: Path) -> int:
    try:
        text = path.read_bytes().strip()
    except FileNotFoundError:  # released since it was listed
        return 2**63 - 1
    except OSError:
        return 0
    return int(text) if text.isdigit() and len(text) < 20 else 0
