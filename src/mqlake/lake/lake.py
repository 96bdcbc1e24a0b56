"""A lake: Parquet files, and a manifest that says which of them count and what they hold.

    messages/…parquet                   the archived messages, with the columns of the Spark table
    index/…parquet                      keys, and where their messages are
    stats/…parquet, findings/…parquet   what the pipeline counted and found
    TABLE/_delta_log/                   the same as a Delta table, for other engines
    _mqlake/                            the manifest, the lock, the pipeline's state

A file counts once a commit names it; until then readers ignore it. Commits are atomic and durable. Each continues
exactly where the lake ends, so work that is done twice is in the lake once. Readers take a snapshot and no lock. One
job at a time changes the lake.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mqlake.errors import LakeConflict, NotALake
from mqlake.lake.delta import DeltaLogs
from mqlake.lake.entries import LakeFile, LakeRange
from mqlake.lake.manifest import SNAPSHOT_EVERY, Manifest
from mqlake.lake.snapshot import LakeSnapshot, commit_json
from mqlake.lake.storage import Storage, storage_at

FORMAT = 2
OWN = "_mqlake"
DESCRIPTION = f"{OWN}/lake.json"


class Lake:
    """An existing lake. Holds no open files, so an object may be kept for any time."""

    def __init__(self, storage: Storage, identity: str, created_ms: int) -> None:
        self.storage = storage
        self.place = storage.place
        self.identity = identity
        self._manifest = Manifest(storage)
        self._delta = DeltaLogs(storage, identity, created_ms, self._manifest.read)
        self._locked = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Lake:
        """Open the lake at a place. With `create`, make one if there is nothing."""
        storage = storage_at(path)
        try:
            content = json.loads(storage.read(DESCRIPTION))
        except (FileNotFoundError, NotADirectoryError):
            top = storage.top()
            if not create:
                what = "it holds no lake" if top is not None else "there is no such folder"
                raise NotALake(storage.place, what, "archive a store first, or check the path") from None
            content = _create(storage, top, secrets.token_hex(8))
        except ValueError:
            raise NotALake(storage.place, f"{DESCRIPTION} is damaged", "restore it from a backup") from None
        if content.get("format") == 1:
            remedy = f"convert it into a new one: mqlake lake convert {storage.place} NEW"
            raise NotALake(storage.place, "it has an older format, with a folder for each topic", remedy)
        if content.get("format") != FORMAT:
            found = f"its format is {content.get('format')}, not {FORMAT}"
            raise NotALake(storage.place, found, "use a newer mqlake")
        lake = cls(storage, content["id"], content["created"])
        if create:
            lake.finish()
        return lake

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lake for a job. Raises LakeInUse, which names the holder.

        An object store has no locks. There two jobs may run, and the one whose commit comes second fails.
        """
        with self.storage.lock():
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def snapshot(self, version: int | None = None) -> LakeSnapshot:
        """Return a version, or the newest one. Versions stay for an hour, and the newest 64 for longer."""
        return self._manifest.load(version)

    def commit(
        self,
        ranges: Iterable[LakeRange],
        add: Iterable[LakeFile],
        remove: Iterable[str] = (),
        *,
        forget: Iterable[str] = (),
    ) -> int:
        """Commit ranges and files, all or none of them, durably. Return their version.

        The ranges of a store must continue where the lake ends. If all of them end before that, they were committed
        earlier and nothing changes. `remove` lists paths that no longer count; `forget`, removed paths that were
        deleted from disk.
        """
        if not self._locked:
            with self.lock():
                return self.commit(ranges, add, remove, forget=forget)
        state = self.snapshot()
        parts = sorted((part for part in ranges if part.start < part.end), key=lambda part: (part.store, part.start))
        new = self._new(state, parts)
        if parts and not new:
            return state.version
        now = int(time.time() * 1000)
        files, gone = [replace(file, added=now) for file in add], list(remove)
        self._check_files(state, files, gone)
        commit = commit_json(state.version + 1, now, new, files, gone, forget, secrets.token_hex(8))
        self._delta.roll_forward(state)
        after = state.after(commit)
        self._manifest.write(commit, after)
        self._delta.write(commit, after)
        if after.version % SNAPSHOT_EVERY == 0:
            self._delta.forget_old(self._manifest.forget_old())
        return after.version

    def _new(self, state: LakeSnapshot, parts: Sequence[LakeRange]) -> list[LakeRange]:
        """Return the parts if they continue the lake, or none if all were committed. Else raise LakeConflict."""
        ends = {name: store.end for name, store in state.stores.items()}
        if parts and all(part.end <= ends.get(part.store, -1) for part in parts):
            return []
        for part in parts:
            known = state.stores.get(part.store)
            if known is not None and known.identity != part.identity:
                raise LakeConflict(self.place, f"{part.store} as {part.identity}", f"the identity {known.identity}")
            if part.start != ends.get(part.store, part.start):
                found = f"{part.store} starting at {part.start}"
                raise LakeConflict(self.place, found, f"a commit that starts at {ends[part.store]}, the lake's end")
            ends[part.store] = part.end
        return list(parts)

    def _check_files(self, state: LakeSnapshot, add: Sequence[LakeFile], remove: Sequence[str]) -> None:
        if len(set(remove)) < len(remove):
            raise LakeConflict(self.place, "a file removed twice", "each file once")
        for path in remove:
            if path not in state.by_path:
                raise LakeConflict(self.place, f"{path} to be removed but not in the lake", "a file of the lake")
        if len({file.path for file in add}) < len(add):
            raise LakeConflict(self.place, "a file added twice", "each file once")
        for file in add:
            if file.path in state.by_path or file.path in state.removed:
                raise LakeConflict(self.place, f"{file.path} to be added but already in the lake", "a new file")
            try:
                found = self.storage.size(file.path)
            except FileNotFoundError:
                raise LakeConflict(self.place, f"no file {file.path}", "the file to be committed") from None
            if found != file.bytes:
                raise LakeConflict(self.place, f"{file.path} with {found} bytes", f"{file.bytes} bytes")

    def sync(self) -> None:
        """Make the newest snapshot durable: the process that committed it may have died before its sync."""
        self._manifest.sync()

    def finish(self) -> None:
        """Write what a killed job left undone after its last commit: entries of the Delta logs."""
        self._delta.roll_forward(self.snapshot())


def create_lake(path: str, identity: str) -> Lake:
    """Make a lake with a given identity, or open the one that has it."""
    storage = storage_at(path)
    if DESCRIPTION.partition("/")[0] not in (storage.top() or ()):
        _create(storage, storage.top(), identity)
    lake = Lake.open(path, create=True)
    if lake.identity != identity:
        raise NotALake(storage.place, "it holds another lake", "name an empty or a new folder")
    return lake


def _create(storage: Storage, top: Sequence[str] | None, identity: str) -> dict[str, Any]:
    """Make a lake in an empty place, or finish making one. Return its description."""
    foreign = [name for name in top or () if name != OWN]
    if foreign:
        reason = f"it is not a lake and not empty (it holds {', '.join(foreign[:4])})"
        raise NotALake(storage.place, reason, "name an empty or a new folder")
    content = {"format": FORMAT, "id": identity, "created": int(time.time() * 1000)}
    storage.create(DESCRIPTION, json.dumps(content).encode() + b"\n")  # if two processes get here, the first one wins
    made: dict[str, Any] = json.loads(storage.read(DESCRIPTION))
    return made
