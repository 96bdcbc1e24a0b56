"""The manifest on disk: one file per commit, and from time to time a snapshot of the whole state.

`%020d.json` holds what one commit changed, `%020d.snapshot` the state after that commit. Each file is one line of JSON
and a line with its CRC-32. A commit's file is written and synced under a temporary name and then linked to its own
name. The link fails if the name is taken, so of two processes that commit the same version one loses, with or without
the lock. A power cut leaves a commit whole or not at all.

Loading takes the newest valid snapshot and the commits after it. Files older than the last snapshot but one are
deleted, so loading costs the same after thousands of commits.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mqlake.errors import BadFile, LakeConflict
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import create_file, replace_file
from mqlake.lake.snapshot import LakeSnapshot

COMMIT, SNAPSHOT = ".json", ".snapshot"
SNAPSHOT_EVERY = 64
TRIES = 20


class Manifest:
    """The folder `_mqlake/manifest`."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        self._directory = directory
        self._scratch = scratch

    def load(self) -> LakeSnapshot:
        """Return the newest version."""
        for _ in range(TRIES):
            try:
                return self._load()
            except FileNotFoundError as missing:  # a writer took a snapshot and deleted old commits meanwhile
                last = missing
        raise BadFile(Path(last.filename), "no file", "a commit that was listed a moment ago")

    def _load(self) -> LakeSnapshot:
        state = self._newest_snapshot()
        for version in self._versions(COMMIT):
            if version <= state.version:
                continue
            path = self._path(version, COMMIT)
            if version != state.version + 1:
                raise BadFile(path, f"commit {version} after {state.version}", "commits without a gap")
            state = state.after(_read(path))
        return state

    def _newest_snapshot(self) -> LakeSnapshot:
        bad: BadFile | None = None
        for version in reversed(self._versions(SNAPSHOT)):
            try:
                return LakeSnapshot.of_json(_read(self._path(version, SNAPSHOT)))
            except BadFile as error:
                bad = error
        if bad is not None and 1 not in self._versions(COMMIT):
            raise bad
        return LakeSnapshot()

    def write(self, commit: Mapping[str, Any], state: LakeSnapshot) -> None:
        """Write the commit that leads to `state`, durably. Raises LakeConflict if that version already exists."""
        version = state.version
        made = create_file(self._path(version, COMMIT), _encode(commit), self._scratch)
        if not made or max(self._versions(SNAPSHOT), default=0) >= version:
            raise LakeConflict(self._directory, f"version {version}, committed by another job", "the next version")
        if version % SNAPSHOT_EVERY == 0:
            replace_file(self._path(version, SNAPSHOT), _encode(state.to_json()), self._scratch)
            self._forget_old()

    def sync(self) -> None:
        """Make loaded commits durable, whoever wrote them: a process may die between a link and its sync."""
        sync_directory(self._directory)

    def _forget_old(self) -> None:
        keep = self._versions(SNAPSHOT)[-2:][0]
        for kind in (COMMIT, SNAPSHOT):
            for version in self._versions(kind):
                if version < keep:
                    self._path(version, kind).unlink(missing_ok=True)

    def _versions(self, kind: str) -> list[int]:
        names = (entry.name for entry in self._directory.iterdir() if entry.suffix == kind)
        return sorted(int(name.removesuffix(kind)) for name in names if name.removesuffix(kind).isdigit())

    def _path(self, version: int, kind: str) -> Path:
        return self._directory / f"{version:020d}{kind}"


def _encode(content: Mapping[str, Any]) -> bytes:
    line = json.dumps(content, separators=(",", ":")).encode() + b"\n"
    return line + b"%08x\n" % zlib.crc32(line)


def _read(path: Path) -> dict[str, Any]:
    line, _, rest = path.read_bytes().partition(b"\n")
    if rest != b"%08x\n" % zlib.crc32(line + b"\n"):
        raise BadFile(path, "a wrong checksum", "a commit as it was written; restore the file from a backup")
    content: dict[str, Any] = json.loads(line)
    return content
