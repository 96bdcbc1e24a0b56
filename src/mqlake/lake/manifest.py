"""The manifest: one file per commit, and from time to time a snapshot of the whole state.

`%020d.json` holds what one commit changed, `%020d.snapshot` the state after that commit. Each file is one line of JSON
and a line with its CRC-32. The storage lets only one caller create a name, so of two jobs that commit the same version
one loses, with or without a lock. A power cut leaves a commit whole or not at all.

Loading takes the newest valid snapshot and the commits after it. What is older than the last snapshot but one, and old
enough that nobody is reading it, is deleted. So loading costs the same after thousands of commits.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from typing import Any

from mqlake.errors import BadFile, LakeConflict, VersionGone
from mqlake.lake.snapshot import LakeSnapshot
from mqlake.lake.storage import Storage

FOLDER = "_mqlake/manifest/"
COMMIT, SNAPSHOT = ".json", ".snapshot"
SNAPSHOT_EVERY = 64
KEEP_S = 3600.0
"""Commits stay at least this long, for readers of older versions."""
TRIES = 20


class Manifest:
    """The commits of a lake. Remembers the newest version it has seen, so a second load reads only what is new."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known = LakeSnapshot()

    def load(self, version: int | None = None) -> LakeSnapshot:
        """Return a version, or the newest one. Raises VersionGone if it is too old or does not exist yet."""
        for _ in range(TRIES):
            try:
                return self._load(version)
            except FileNotFoundError as missing:  # a writer took a snapshot and deleted old commits meanwhile
                last = missing
        raise BadFile(self._storage.place, str(last), "a commit that was listed a moment ago")

    def _load(self, wanted: int | None) -> LakeSnapshot:
        versions = self._versions()
        commits = versions[COMMIT]
        state = self._start(versions[SNAPSHOT], commits, wanted)
        for version in commits:
            if version <= state.version or (wanted is not None and version > wanted):
                continue
            if version != state.version + 1:
                raise self._bad(_name(version, COMMIT), f"commit {version} after {state.version}", "no gap")
            state = state.after(self.read(version))
        if wanted is not None and state.version != wanted:
            first, newest = min([state.version, *commits]), max([state.version, *commits])
            raise VersionGone(self._storage.place, wanted, first, newest)
        if wanted is None:
            self._known = state
        return state

    def _start(self, snapshots: list[int], commits: list[int], wanted: int | None) -> LakeSnapshot:
        """Return a state from which the commits lead to the wanted version."""
        newest = max([*snapshots, *commits], default=0)
        known = self._known.version
        continues = known == newest or known + 1 in commits
        if wanted is None and continues and known >= max(snapshots, default=0):
            return self._known
        bad: BadFile | None = None
        for version in reversed(snapshots):
            if wanted is None or version <= wanted:
                try:
                    return LakeSnapshot.of_json(self._read(_name(version, SNAPSHOT)))
                except BadFile as error:
                    bad = error
        if 1 in commits or not newest:
            return LakeSnapshot()
        if wanted is not None:
            raise VersionGone(self._storage.place, wanted, min([*snapshots, *commits]), newest)
        raise bad or self._bad(_name(commits[0], COMMIT), f"commit {commits[0]} first", "a snapshot before it")

    def read(self, version: int) -> dict[str, Any]:
        """Return one commit. Raises FileNotFoundError if it was forgotten."""
        return self._read(_name(version, COMMIT))

    def write(self, commit: Mapping[str, Any], state: LakeSnapshot) -> None:
        """Write the commit that leads to `state`, durably. Raises LakeConflict if that version already exists."""
        version = state.version
        made = self._storage.create(_name(version, COMMIT), _encode(commit))
        if not made or max(self._versions()[SNAPSHOT], default=0) >= version:
            raise LakeConflict(self._storage.place, f"version {version}, committed by another job", "the next version")
        self._known = state
        if version % SNAPSHOT_EVERY == 0:
            self._storage.replace(_name(version, SNAPSHOT), _encode(state.to_json()))

    def forget_old(self) -> int:
        """Delete what no load needs and nobody reads any more. Return the first version that must stay."""
        files = list(self._storage.files(FOLDER))
        snapshots = sorted(_version(file.name, SNAPSHOT) for file in files if file.name.endswith(SNAPSHOT))
        keep = snapshots[-2] if len(snapshots) > 1 else 0
        before = time.time() - KEEP_S
        old = [
            file.name
            for file in files
            for kind in (COMMIT, SNAPSHOT)
            if file.name.endswith(kind) and _version(file.name, kind) < keep and file.time <= before
        ]
        self._storage.delete(old)
        return keep

    def sync(self) -> None:
        """Make loaded commits durable, whoever wrote them: a process may die between a link and its sync."""
        self._storage.sync(FOLDER)

    def _versions(self) -> dict[str, list[int]]:
        """Return the versions of commits and of snapshots."""
        found: dict[str, list[int]] = {COMMIT: [], SNAPSHOT: []}
        for file in self._storage.files(FOLDER):
            for kind, versions in found.items():
                if file.name.endswith(kind) and file.name[len(FOLDER) : -len(kind)].isdigit():
                    versions.append(_version(file.name, kind))
        return {kind: sorted(versions) for kind, versions in found.items()}

    def _read(self, name: str) -> dict[str, Any]:
        line, _, rest = self._storage.read(name).partition(b"\n")
        if rest != b"%08x\n" % zlib.crc32(line + b"\n"):
            raise self._bad(name, "a wrong checksum", "a commit as it was written; restore the file from a backup")
        content: dict[str, Any] = json.loads(line)
        return content

    def _bad(self, name: str, found: str, expected: str) -> BadFile:
        return BadFile(f"{self._storage.place}/{name}", found, expected)


def _name(version: int, kind: str) -> str:
    return f"{FOLDER}{version:020d}{kind}"


def _version(name: str, kind: str) -> int:
    return int(name[len(FOLDER) : -len(kind)])


def _encode(content: Mapping[str, Any]) -> bytes:
    line = json.dumps(content, separators=(",", ":")).encode() + b"\n"
    return line + b"%08x\n" % zlib.crc32(line)
