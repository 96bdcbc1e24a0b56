"""Gates: offsets from which other parts still need the log.

`mqlake/gates/NAME` holds one physical offset: NAME needs the log from there on, and retention may delete before it. The
file is replaced atomically and synced, so a gate survives its process and a power cut. Any process may set a gate; each
name has one owner. Retention reads the gates before it deletes a file.

A gate that cannot be read counts as offset 0: keeping files too long is better than losing them to a damaged gate.
"""

from __future__ import annotations

import re
from pathlib import Path

from mqlake.errors import BadFile, InvalidConfig, NotWritten
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import read_small_file, replace_file

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Gates:
    """The gates of one store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def hold(self, name: str, offset: int) -> None:
        """Keep the log from `offset` on. Takes effect when the call returns; what was deleted before stays deleted."""
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise InvalidConfig(f"gate {name}", offset, "must be an offset of the log, 0 or more")
        path = self._path(name)
        try:
            self._directory.mkdir(exist_ok=True)
            replace_file(path, b"%d\n" % offset, self._directory)
        except OSError as error:
            raise NotWritten(path, error.strerror or str(error)) from error

    def release(self, name: str) -> None:
        """Remove the gate `name`; do nothing if there is none."""
        path = self._path(name)
        path.unlink(missing_ok=True)
        path.with_name(f"{name}.new").unlink(missing_ok=True)  # what a killed owner left half made
        if self._directory.exists():
            sync_directory(self._directory)

    def offsets(self) -> dict[str, int]:
        """Return each gate and the offset from which it needs the log."""
        if not self._directory.exists():
            return {}
        if not self._directory.is_dir():  # what the gates were is unknown, so nothing may be deleted
            root = self._directory.parent.parent
            raise BadFile(self._directory, "no folder", f"the folder of the gates; run: mqlake repair {root}")
        files = sorted(path for path in self._directory.iterdir() if NAME.fullmatch(path.name) and path.is_file())
        return {path.name: _read(path) for path in files}

    def _path(self, name: str) -> Path:
        if NAME.fullmatch(name) is None:
            raise InvalidConfig("gate", name, "must be a name of at most 64 letters, digits, - and _")
        return self._directory / name


def _read(path: Path) -> int:
    try:
        text = read_small_file(path, 4096).strip()
    except FileNotFoundError:  # released since it was listed
        return 2**63 - 1
    except (OSError, BadFile):
        return 0
    return int(text) if text.isdigit() and len(text) < 20 else 0
