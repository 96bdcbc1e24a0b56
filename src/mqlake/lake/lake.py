"""A lake: a folder of Parquet files, and a manifest that says which of them count and what they hold.

    messages/topic=T/date=D/…parquet    the archived messages, with the columns of the Spark table
    index/…parquet                      keys, and where their messages are
    stats/…parquet, findings/…parquet   what the pipeline counted and found
    _mqlake/                            the manifest, the lock, the pipeline's state

A file counts once a commit names it; until then it is nothing, whatever it holds. Commits are atomic and durable, and
go on exactly where the lake ends, so that work which is done twice is in the lake once. Readers take a snapshot and no
lock; one job at a time changes the lake.
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
    """A lake that is there. Nothing is kept open: an object may be used as long as one likes."""

    def __init__(self, root: Path, identity: str) -> None:
        self.root = root
        self.identity = identity
        self.own = root / OWN
        self.scratch = self.own / "scratch"
        self._manifest = Manifest(self.own / "manifest", self.scratch)
        self._locked = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Lake:
        """The lake in a folder; with `create`, a new one where the folder is empty or not there."""
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
            raise NotALake(root, f"{OWN}/lake.json is damaged", "bring it back from a copy") from None
        if content.get("format") != FORMAT:
            raise NotALake(root, f"its format is {content.get('format')}, known is {FORMAT}", "use a newer mqlake")
        return cls(root, content["id"])

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lake for a job; LakeInUse names who has it."""
        with locked(self.root, self.own / "lock"):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def snapshot(self) -> LakeSnapshot:
        """The newest version."""
        return self._manifest.load()

    def commit(
        self,
        ranges: Iterable[LakeRange],
        add: Iterable[LakeFile],
        remove: Iterable[str] = (),
        *,
        forget: Iterable[str] = (),
    ) -> int:
        """Make ranges and files a part of the lake, all or none of them, durably; the version they are in.

        The ranges of a store must go on where the lake ends. Where all of them lie before that they were committed
        before, and nothing changes. `remove` are paths that no longer count; `forget`, those that are off the disk.
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
        """The parts, where they go on; none of them, where all are there. Anything else is a conflict."""
        ends = {name: store.end for name, store in state.stores.items()}
        if parts and all(part.end <= ends.get(part.store, -1) for part in parts):
            return []
        for part in parts:
            known = state.stores.get(part.store)
            if known is not None and known.identity != part.identity:
                raise LakeConflict(self.root, f"{part.store} as {part.identity}", f"the identity {known.identity}")
            if part.start != ends.get(part.store, part.start):
                found = f"{part.store} from {part.start} on"
                raise LakeConflict(self.root, found, f"a commit that begins at {ends[part.store]}, the lake's end")
            ends[part.store] = part.end
        return list(parts)

    def _check_files(self, state: LakeSnapshot, add: Sequence[LakeFile], remove: Sequence[str]) -> None:
        for path in remove:
            if path not in state.by_path:
                raise LakeConflict(self.root, f"{path}, which is to be removed, not in the lake", "a file of the lake")
        if len({file.path for file in add}) < len(add):
            raise LakeConflict(self.root, "a file that is added twice", "each once")
        for file in add:
            if file.path in state.by_path or file.path in state.removed:
                raise LakeConflict(self.root, f"{file.path}, which is to be added, in the lake", "a new file")
            try:
                found = (self.root / file.path).stat().st_size
            except FileNotFoundError:
                raise LakeConflict(self.root, f"no file {file.path}", "the file that is committed") from None
            if found != file.bytes:
                raise LakeConflict(self.root, f"{file.path} with {found} bytes", f"{file.bytes} bytes")

    def sync(self) -> None:
        """What `snapshot` shows is durable when this returns: a process may have died between the two."""
        self._manifest.sync()


def _create(root: Path) -> None:
    """Make a lake of an empty folder, or of one where that was begun."""
    begun = root / OWN
    foreign = sorted(entry.name for entry in root.iterdir() if entry != begun) if root.exists() else []
    if foreign:
        reason = f"it holds something that is not a lake ({', '.join(foreign[:4])})"
        raise NotALake(root, reason, "name an empty or a new folder")
    (begun / "manifest").mkdir(parents=True, exist_ok=True)
    for folder in (begun, root, root.parent):
        sync_directory(folder)
    content = json.dumps({"format": FORMAT, "id": secrets.token_hex(8)}).encode() + b"\n"
    create_file(begun / "lake.json", content, begun / "scratch")  # where two do this at once, the first one counts
