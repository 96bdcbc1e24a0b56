"""Check that a store may be archived into a lake, and that a lake belongs to a store, before either is touched.

A store is known by its identity. If the lake already has a part of it, the seam must match (the log still holds the
last archived record), and the log must reach back to the lake's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mqlake.errors import LakeGap, NotAStore, WrongLake
from mqlake.files.layout import Layout
from mqlake.files.names import file_name, list_files
from mqlake.kernel import crc32
from mqlake.lake.entries import Gap, LakeRange, Seam
from mqlake.lake.identity import identity_of, make_identity
from mqlake.lake.lake import Lake
from mqlake.lake.snapshot import LakeSnapshot, StoreState
from mqlake.store.opening import find_store

LOST = "deleted before it was archived"


@dataclass(frozen=True)
class Member:
    """A store that may be archived. Archiving continues at `start`."""

    name: str
    identity: str
    path: Path
    start: int
    lost: Gap | None = None
    """What was deleted before it was archived. The next commit lists it as a gap."""

    def range(self, start: int, end: int, gaps: tuple[Gap, ...], seam: Seam | None) -> LakeRange:
        return LakeRange(self.name, self.identity, str(self.path), start, end, gaps, seam)


def admit(lake: Lake, paths: Sequence[Path], *, add_store: bool = False, accept_gap: bool = False) -> list[Member]:
    """Return the stores ready to be archived. Raises an error with the reason if one of them may not be."""
    snapshot = lake.snapshot()
    for path in paths:
        find_store(path, read_only=True, create=False)
    identities = [make_identity(path) for path in paths]
    for number, identity in enumerate(identities):
        if identity in identities[:number]:
            found = f"it is a copy of {paths[identities.index(identity)]}: both have the same identity"
            raise WrongLake(lake.place, str(paths[number]), found, "archive only one of them")
    if not add_store:
        refuse_strangers(lake.place, snapshot, paths, "name another lake, or add it to this one (--add-store)")
    known = {state.identity: state for state in snapshot.stores.values()}
    return [
        _continued(lake, known[identity], path, accept_gap) if identity in known else _new(lake, snapshot, path)
        for path, identity in zip(paths, identities, strict=True)
    ]


def refuse_strangers(lake: str, snapshot: LakeSnapshot, paths: Sequence[Path], remedy: str) -> None:
    """Raise WrongLake if the lake has stores but none of these. A store that no longer exists is known by its path."""
    known = {state.identity: state.path for state in snapshot.stores.values()}
    gone = {path for path in known.values() if not Path(path).exists()}
    if known and not any(identity_of(path) in known or str(path) in gone for path in paths):
        found = f"the lake was made from other stores ({', '.join(sorted(known.values())[:4])})"
        raise WrongLake(lake, str(paths[0]), found, remedy)


def _new(lake: Lake, snapshot: LakeSnapshot, path: Path) -> Member:
    """Return the member for a store that the lake does not have yet."""
    for state in snapshot.stores.values():
        if str(path) in (state.name, state.path):
            found = f"the lake has a store at this path with another identity ({state.identity})"
            raise WrongLake(lake.place, str(path), found, "another store took over the path: name another lake for it")
    return Member(str(path), make_identity(path), path, first_offset(path))


def _continued(lake: Lake, state: StoreState, path: Path, accept_gap: bool) -> Member:
    """Return the member for a store that the lake already has a part of."""
    check_seam(lake.place, state, path)
    first = first_offset(path)
    if first <= state.end:
        return Member(state.name, state.identity, path, state.end)
    if not accept_gap:
        raise LakeGap(lake.place, str(path), state.end, first)
    return Member(state.name, state.identity, path, first, Gap(state.end, first, LOST))


def check_seam(lake: str, state: StoreState, path: Path) -> None:
    """Raise WrongLake unless the log at `path` is the archived one, as far as identity and last record show."""
    if identity_of(path) != state.identity:
        raise WrongLake(lake, str(path), f"its identity is not {state.identity}, as in the lake", "name another lake")
    if str(path) != state.path and Path(state.path).exists() and identity_of(Path(state.path)) == state.identity:
        found = f"the same store is at {state.path}, from where it was archived"
        raise WrongLake(lake, str(path), found, "archive that one; a copy needs its own lake")
    if state.seam is None or state.seam.offset < first_offset(path):
        return
    if crc32(read_log(path, state.seam.offset, state.seam.size)) != state.seam.crc:
        raise WrongLake(
            lake,
            str(path),
            f"its log does not have the lake's last record at {state.seam.offset}: it was truncated and rewritten, "
            "or it is another copy",
            "archive it into a new lake",
        )


def first_offset(path: Path) -> int:
    """Return the physical offset at which a store's log begins."""
    files = list_files(Layout(path).commit_log)
    if not files:
        raise NotAStore(path, "its log has no file", "put a message first, or check the path")
    return files[0][0]


def read_log(path: Path, offset: int, size: int) -> bytes:
    """Read bytes of a log from one file. Returns fewer at the end of the file."""
    folder = Layout(path).commit_log
    for start, _ in reversed(list_files(folder)):
        if start <= offset:
            with (folder / file_name(start)).open("rb") as file:
                file.seek(offset - start)
                return file.read(size)
    return b""
