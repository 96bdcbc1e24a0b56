"""An immutable version of a lake: its files, and the log ranges that they cover.

Invariant: the lake has one range [start, end) of every store's log. Every byte of that range is in exactly one row of
the table `messages` or in exactly one listed gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from mqlake.lake.entries import Gap, LakeFile, LakeRange, Seam, TableName, file_of, gaps_of, range_of, to_json


@dataclass(frozen=True, slots=True)
class StoreState:
    """The archived part of one store."""

    name: str
    identity: str
    path: str
    start: int
    end: int
    gaps: tuple[Gap, ...] = ()
    seam: Seam | None = None

    def with_range(self, part: LakeRange) -> StoreState:
        assert part.start == self.end
        gaps, seam = self.gaps + part.gaps, part.seam or self.seam
        return replace(self, path=part.path, end=part.end, gaps=gaps, seam=seam)


@dataclass(frozen=True)
class LakeSnapshot:
    """The lake after commit `version`. Version 0 is an empty lake. Every table has the same version."""

    version: int = 0
    time_ms: int = 0
    stores: Mapping[str, StoreState] = field(default_factory=dict)
    by_path: Mapping[str, LakeFile] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    """Files that a compaction replaced, and when, in ms. They stay on disk for the grace time."""

    def files(self, table: TableName, store: str | None = None) -> list[LakeFile]:
        """Return the files of a table, of one store or of all, in log order."""
        if store is not None:
            return list(self._sorted.get((table, store), ()))
        return [file for (of_table, _), files in self._sorted.items() if of_table == table for file in files]

    @cached_property
    def _sorted(self) -> dict[tuple[TableName, str], list[LakeFile]]:
        """The files by table and store: a lake may have a hundred stores and many thousand files."""
        found: dict[tuple[TableName, str], list[LakeFile]] = {}
        for file in sorted(self.by_path.values(), key=lambda file: (file.store, file.start, file.path)):
            found.setdefault((file.table, file.store), []).append(file)
        return found

    def after(self, commit: Mapping[str, Any]) -> LakeSnapshot:
        """Return the version that a commit produces from this one."""
        stores, files, removed = dict(self.stores), dict(self.by_path), dict(self.removed)
        for part in map(range_of, commit.get("ranges", ())):
            known = stores.get(part.store)
            begun = StoreState(part.store, part.identity, part.path, part.start, part.start)
            stores[part.store] = (known or begun).with_range(part)
        for path in commit.get("remove", ()):
            del files[path]
            removed[path] = commit["time"]
        for path in commit.get("forget", ()):
            removed.pop(path, None)
        files.update((fields["path"], file_of(fields)) for fields in commit.get("add", ()))
        return LakeSnapshot(commit["version"], commit["time"], stores, files, removed)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "time": self.time_ms,
            "stores": [asdict(state) for state in self.stores.values()],
            "files": [to_json(file) for file in self.by_path.values()],
            "removed": dict(self.removed),
        }

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> LakeSnapshot:
        stores = {state["name"]: _state(state) for state in fields["stores"]}
        files = {file["path"]: file_of(file) for file in fields["files"]}
        return cls(fields["version"], fields["time"], stores, files, fields["removed"])


def _state(fields: Mapping[str, Any]) -> StoreState:
    seam = Seam(*fields["seam"]) if fields["seam"] is not None else None
    return StoreState(**{**fields, "gaps": gaps_of(fields["gaps"]), "seam": seam})


def commit_json(
    version: int,
    time_ms: int,
    ranges: Iterable[LakeRange],
    add: Iterable[LakeFile],
    remove: Iterable[str],
    forget: Iterable[str],
    writer: str = "",
) -> dict[str, Any]:
    """Return a commit as its manifest file holds it. `writer` tells apart commits of the same content."""
    commit = {
        "version": version,
        "time": time_ms,
        "writer": writer,
        "ranges": [to_json(part) for part in ranges],
        "add": [to_json(file) for file in add],
        "remove": list(remove),
        "forget": list(forget),
    }
    return {name: value for name, value in commit.items() if value not in ([], "")}
