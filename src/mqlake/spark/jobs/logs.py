"""The logs that a pipeline follows: which stores there are, up to where each can be read, and what is wrong with some.

A store is opened once and then followed. Stores fail one by one: one that is gone, was replaced or lost messages is
reported, tried again at every look, and keeps no other from being archived.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pyspark.sql.streaming.datasource import ReadMaxBytes

from mqlake.errors import ChangedUnderRead, LakeGap, StoreError, WrongLake
from mqlake.files.layout import Layout
from mqlake.files.names import list_files
from mqlake.lake import Lake, StoreState
from mqlake.lake.stores import Member, admit, check_seam, refuse_strangers
from mqlake.spark.admission import admit as share
from mqlake.spark.boundaries import Boundaries, FileGone
from mqlake.spark.jobs.archive import prepare
from mqlake.spark.jobs.stages import Work
from mqlake.spark.options import parse_options
from mqlake.spark.plan import TRIES, cut, expand, snapshot_of, take_snapshot
from mqlake.spark.ways import Snapshot
from mqlake.store.follower import Follower
from mqlake.store.opening import find_store

Result = TypeVar("Result")


@dataclass
class Log:
    """A store that is followed."""

    folder: object
    """Differs if another folder took the path."""
    member: Member
    follower: Follower
    start: int = 0
    """Where the lake ends."""
    end: int = 0
    """Where the log can be read to."""


class Logs:
    """The stores of a pipeline. `failed` has the reason for each that could not be read at the last look."""

    def __init__(
        self, lake: Lake, paths: Sequence[str], *, split_bytes: int, add_store: bool, accept_gap: bool
    ) -> None:
        self._lake, self._paths, self._accept_gap = lake, paths, accept_gap
        self._open: dict[str, Log] = {}
        self.failed: dict[str, StoreError] = {}
        options = {"path": "-", "via": "scan", "includeInternal": "true", "splitSize": str(split_bytes)}
        self._options = replace(parse_options(options), min_partitions=os.cpu_count())
        if not add_store:
            found = [path for path in self._found() if has_log(path)]
            if found:
                remedy = "name another lake, or add it to this one (--add-store)"
                refuse_strangers(lake.place, lake.snapshot(), found, remedy)

    def look(self) -> dict[str, Log]:
        """Return the stores that can be read now, by path."""
        self.failed = {}
        found = {}
        stores = self._lake.snapshot().stores
        for path in self._found():
            try:
                if has_log(path):  # a new store has no log; it joins with its first message
                    log = self._look_at(path, stores)
                    found[str(log.member.path)] = log
            except StoreError as error:
                self.failed[str(path)] = error
        for gone in self._open.keys() - found.keys():
            self._open.pop(gone).follower.close()
        return found

    def _found(self) -> list[Path]:
        return folders_named_by(self._paths, self.failed)

    def _look_at(self, path: Path, stores: Mapping[str, StoreState]) -> Log:
        path = find_store(path, read_only=True, create=False).root
        log = self._open.get(str(path))
        if log is None or log.folder != folder_of(path):
            log = Log(folder_of(path), self._admit(path), take_snapshot(path).follower)
            self._open[str(path)] = log
            stores = self._lake.snapshot().stores  # bytes that are lost for good may have been committed as a gap
        state = stores.get(log.member.name)
        log.start = state.end if state is not None else log.member.start
        if state is not None:
            check_seam(self._lake.place, state, path)
        log.follower.walk_on()
        snapshot = snapshot_of(str(path), log.follower)
        if snapshot.first > log.start:
            raise LakeGap(self._lake.place, str(path), log.start, snapshot.first)
        if snapshot.end < log.start:
            found = f"its log ends at {snapshot.end}, the lake ends at {log.start}: the log was truncated"
            raise WrongLake(self._lake.place, str(path), found, "archive it into a new lake")
        log.end = snapshot.end
        return log

    def _admit(self, path: Path) -> Member:
        [member] = admit(self._lake, [path], add_store=True, accept_gap=self._accept_gap)
        for other in self._open.values():
            if other.member.identity == member.identity and other.member.path != path:
                found = f"it is a copy of {other.member.path}: both have the same identity"
                raise WrongLake(self._lake.place, str(path), found, "archive only one of them")
        return prepare(self._lake, member)

    def plan(self, logs: dict[str, Log], ends: dict[str, int], limit: int) -> list[Work]:
        """Return the ranges of a batch: from the lake's end on, at most up to `ends`, at most `limit` bytes in all."""
        return _again_if_deleted(lambda: self._plan(logs, ends, limit))

    def _plan(self, logs: dict[str, Log], ends: dict[str, int], limit: int) -> list[Work]:
        snapshots = {path: snapshot_of(path, log.follower) for path, log in logs.items() if log.start < ends[path]}
        boundaries = {path: Boundaries(one.follower.log, one.first, one.end) for path, one in snapshots.items()}
        starts = {path: logs[path].start for path in snapshots}
        reached = share(starts, {path: ends[path] for path in snapshots}, ReadMaxBytes(limit), boundaries)
        parts: list[tuple[Snapshot, int, int]] = [
            (snapshot, starts[path], reached[path]) for path, snapshot in snapshots.items()
        ]
        return [
            Work(logs[made.store].member, split, queues=logs[made.store].follower.derived_holds)
            for made in cut([part for part in parts if part[1] < part[2]], self._options)
            for split in made.splits
        ]

    def reason(self, path: str) -> StoreError | None:
        """Return what is wrong with a store, if looking at it again shows that. It says what to do."""
        log = self._open.pop(path, None)
        if log is not None:
            log.follower.close()
        try:
            self._look_at(Path(path), self._lake.snapshot().stores)
        except StoreError as error:
            return error
        return None

    def close(self) -> None:
        for log in self._open.values():
            log.follower.close()
        self._open.clear()


def has_log(path: Path) -> bool:
    """Return whether a store has a log, or is no store at all."""
    folder = Layout(path).commit_log
    return not folder.is_dir() or bool(list_files(folder))


def folder_of(path: Path) -> object:
    found = path.stat()
    return found.st_dev, found.st_ino


def folders_named_by(paths: Iterable[str], failed: dict[str, StoreError]) -> list[Path]:
    """Return the folders that paths and patterns name. Patterns that match nothing yet are among the `failed`."""
    found: dict[Path, None] = {}
    for text in paths:
        try:
            found |= dict.fromkeys(expand((text,)))
        except StoreError as error:
            failed[text] = error
    return list(found)


def require_one(paths: Iterable[str]) -> None:
    """Raise what is wrong with one of the paths if none of them leads to a store."""
    failed: dict[str, StoreError] = {}
    for path in folders_named_by(paths, failed):
        try:
            find_store(path, read_only=True, create=False)
            return
        except StoreError as error:
            failed[str(path)] = error
    if failed:
        raise next(iter(failed.values()))


def _again_if_deleted(plan: Callable[[], Result]) -> Result:
    """Plan again if a file was deleted meanwhile."""
    for _ in range(TRIES):
        try:
            return plan()
        except FileGone as gone:
            last = gone
    raise ChangedUnderRead("a store of this pipeline", last.args[0], "files deleted again and again", "a stable log")
