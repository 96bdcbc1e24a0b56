"""A lake: a folder of Parquet files, and a manifest that says which of them count and what they hold.

    messages/topic=T/date=D/…parquet    the archived messages, with the columns of the Spark table
    index/…parquet                      keys, and where their messages are
    stats/…parquet, findings/…parquet   what the pipeline counted and found
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
from pathlib import Path

from mqlake.errors import LakeConflict, NotALake
from mqlake.files.mapped_file import sync_directory
from mqlake.files.small_files import create_file
from mqlake.lake.entries import LakeFile, LakeRange
from mqlake.lake.lock import locked
from mqlake.lake.manifest import Manifest
from mqlake.lake.snapshot import LakeSnapshot, commit_json

FORMAT = 1
OWN = "_mqlake"


class Lake:
    """An existing lake. Holds no open files, so an object may be kept for any time."""

    def __init__(self, root: Path, identity: str) -> None:
        self.root = root
        self.identity = identity
        self.own = root / OWN
        self.scratch = self.own / "scratch"
        self._manifest = Manifest(self.own / "manifest", self.scratch)
        self._locked = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Lake:
        """Open the lake in a folder. With `create`, make one if the folder is empty or missing."""
        root = Path(path).absolute()
        if root.exists() and not root.is_dir():
            raise NotALake(root, "it is a file", "name a folder")
        if create and not (root / OWN / "lake.json").exists():
            _create(root)
        try:
            content = json.loads((root / OWN / "lake.json").read_bytes())
        except FileNotFoundError:
            what = "it holds no lake" if root.exists() else "there is no such folder"
            raise NotALake(root, what, "archive a store first, or check the path") from None
        except ValueError:
            raise NotALake(root, f"{OWN}/lake.json is damaged", "restore it from a backup") from None
        if content.get("format") != FORMAT:
            raise NotALake(root, f"its format is {content.get('format')}, not {FORMAT}", "use a newer mqlake")
        return cls(root, content["id"])

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lake for a job. Raises LakeInUse, which names the holder."""
        with locked(self.root, self.own / "lock"):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def snapshot(self) -> LakeSnapshot:
        """Return the newest version."""
        return self._manifest.load()

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
        files, gone = list(add), list(remove)
        self._check_files(state, files, gone)
        commit = commit_json(state.version + 1, int(time.time() * 1000), new, files, gone, forget)
        self._manifest.write(commit, state.after(commit))
        return state.version + 1

    def _new(self, state: LakeSnapshot, parts: Sequence[LakeRange]) -> list[LakeRange]:
        """Return the parts if they continue the lake, or none if all were committed. Else raise LakeConflict."""
        ends = {name: store.end for name, store in state.stores.items()}
        if parts and all(part.end <= ends.get(part.store, -1) for part in parts):
            return []
        for part in parts:
            known = state.stores.get(part.store)
            if known is not None and known.identity != part.identity:
                raise LakeConflict(self.root, f"{part.store} as {part.identity}", f"the identity {known.identity}")
            if part.start != ends.get(part.store, part.start):
                found = f"{part.store} starting at {part.start}"
                raise LakeConflict(self.root, found, f"a commit that starts at {ends[part.store]}, the lake's end")
            ends[part.store] = part.end
        return list(parts)

    def _check_files(self, state: LakeSnapshot, add: Sequence[LakeFile], remove: Sequence[str]) -> None:
        for path in remove:
            if path not in state.by_path:
                raise LakeConflict(self.root, f"{path} to be removed but not in the lake", "a file of the lake")
        if len({file.path for file in add}) < len(add):
            raise LakeConflict(self.root, "a file added twice", "each file once")
        for file in add:
            if file.path in state.by_path or file.path in state.removed:
                raise LakeConflict(self.root, f"{file.path} to be added but already in the lake", "a new file")
            try:
                found = (self.root / file.path).stat().st_size
            except FileNotFoundError:
                raise LakeConflict(self.root, f"no file {file.path}", "the file to be committed") from None
            if found != file.bytes:
                raise LakeConflict(self.root, f"{file.path} with {found} bytes", f"{file.bytes} bytes")

    def sync(self) -> None:
        """Make the newest snapshot durable: the process that committed it may have died before its sync."""
        self._manifest.sync()


def _create(root: Path) -> None:
    """Make a lake in an empty folder, or finish making one."""
    begun = root / OWN
    foreign = sorted(entry.name for entry in root.iterdir() if entry != begun) if root.exists() else []
    if foreign:
        reason = f"it is not a lake and not empty (it holds {', '.join(foreign[:4])})"
        raise NotALake(root, reason, "name an empty or a new folder")
    (begun / "manifest").mkdir(parents=True, exist_ok=True)
    for folder in (begun, root, root.parent):
        sync_directory(folder)
    content = json.dumps({"format": FORMAT, "id": secrets.token_hex(8)}).encode() + b"\n"
    create_file(begun / "lake.json", content, begun / "scratch")  # if two processes get here, the first one wins
