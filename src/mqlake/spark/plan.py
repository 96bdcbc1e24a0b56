"""Beside the driver: options -> splits.

Each store is opened for reading and looked at once: where its log begins, and up to where it may be read. That is the
snapshot; whatever is written or deleted later, the splits say exactly these bytes. Then the selection is narrowed to a
byte range, the way that reads least is chosen (`ways.py`), and the range is cut between records.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mqlake.config import IndexConfig, StoreConfig
from mqlake.errors import ChangedUnderRead, InvalidConfig, NotAStore, OffsetOutOfRange
from mqlake.spark.boundaries import Boundaries, FileGone
from mqlake.spark.options import SourceOptions
from mqlake.spark.split import Split
from mqlake.spark.ways import Snapshot, Way, choose
from mqlake.store.follower import Follower
from mqlake.store.opening import find_store, resolve

CLOCK_STEP_MS = 120_000
"""Store times rise along the log, but for steps of the clock: by less than this, it is taken."""
SPLITS_A_CORE = 2
TRIES = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StorePlan:
    """What is read of one store, and why so."""

    store: str
    first: int
    end: int
    start: int
    stop: int
    way: Way
    splits: list[Split]

    def __str__(self) -> str:
        size = self.stop - self.start
        return (
            f"{self.store}: log [{self.first}, {self.end}), selected [{self.start}, {self.stop})\n"
            f"  {self.way.name}: {self.way.reason}; reads about {self.way.cost:,} bytes of {size:,}, "
            f"in {len(self.splits)} splits"
        )


def plan(options: SourceOptions) -> list[StorePlan]:
    """The plan of a read, store by store; from a new snapshot where a file is deleted meanwhile."""
    for _ in range(TRIES):
        try:
            plans = _plan(options)
        except FileGone as gone:
            last = gone
            continue
        for made in plans:
            _log.info("%s", made)
        return plans
    raise ChangedUnderRead(", ".join(options.paths), last.args[0], "files that vanish", "a log that stays for a second")


def _plan(options: SourceOptions) -> list[StorePlan]:
    snapshots: list[Snapshot] = []
    try:
        paths = expand(options.paths)
        if options.lake is not None:
            from mqlake.spark.archived import require_lake_of

            require_lake_of(options.lake, paths)
        for path in paths:
            snapshots.append(take_snapshot(path))
        return cut([(snapshot, *narrow(snapshot, options)) for snapshot in snapshots], options)
    finally:
        for snapshot in snapshots:
            snapshot.follower.close()


def cut(parts: Sequence[tuple[Snapshot, int, int]], options: SourceOptions) -> list[StorePlan]:
    """Byte ranges of stores, between record boundaries, as splits of about the same cost."""
    ways = [choose(snapshot, options, start, stop) for snapshot, start, stop in parts]
    size = split_size(sum(way.cost for way in ways), options)
    return [
        StorePlan(snapshot.root, snapshot.first, snapshot.end, start, stop, way, _cut(snapshot, options, way, size))
        for (snapshot, start, stop), way in zip(parts, ways, strict=True)
    ]


def _cut(snapshot: Snapshot, options: SourceOptions, way: Way, size: int) -> list[Split]:
    """The splits of the log, behind those of what only the lake has."""
    splits = way.cut(size)
    if options.lake is None:
        return splits
    from mqlake.spark.archived import begins_at, cut_archived  # it takes as long to import as all of the rest

    start, stop = begins_at(options, snapshot.root, snapshot.first), snapshot.first
    start = max(start, options.start_offset or 0)
    stop = min(stop, options.end_offset if options.end_offset is not None else stop)
    archived = snapshot.split(start, stop, topics=options.topics, lake=options.lake)
    return [*cut_archived(archived, options.split_size), *(replace(split, lake=options.lake) for split in splits)]


def expand(paths: tuple[str, ...]) -> list[Path]:
    """The folders that paths and patterns name, each once."""
    found: dict[Path, Path] = {}
    for text in paths:
        path = text.removeprefix("file://") if text.startswith("file:///") else text.removeprefix("file:")
        if "://" in path:
            raise InvalidConfig("option path", text, "stores are read from a file system that every worker sees")
        is_pattern = glob.has_magic(path) and not Path(path).exists()
        matches = sorted(glob.glob(path)) if is_pattern else [path]  # noqa: PTH207  # patterns may be absolute
        if not matches:
            raise NotAStore(Path(path), "no folder matches this pattern", "check the path")
        for match in matches:
            found.setdefault(Path(match).resolve(), Path(match).absolute())
    return list(found.values())


def take_snapshot(path: Path) -> Snapshot:
    """Look at a store once. The index is left alone here: only look-ups of keys need it, and know what it is like."""
    layout = find_store(path, read_only=True, create=False)
    config = resolve(layout, StoreConfig(index=IndexConfig(enabled=False)))
    return snapshot_of(str(path), Follower(layout, config, derive=False))


def snapshot_of(root: str, follower: Follower) -> Snapshot:
    """A store as its follower sees it now."""
    end = follower.readable_end()
    follower.log.follow(end)  # the writer may have gone on to a new file since the folder was listed
    return Snapshot(root, follower.log.first_offset, end, follower)


def narrow(snapshot: Snapshot, options: SourceOptions) -> tuple[int, int]:
    """The byte range, between record boundaries, that holds all messages of the offsets and times asked for."""
    first, end = snapshot.first, snapshot.end
    begin = first
    if options.lake is not None:
        from mqlake.spark.archived import begins_at

        begin = begins_at(options, snapshot.root, first)
    for offset in (options.start_offset, options.end_offset):
        if offset is not None and options.fail_on_data_loss and not begin <= offset <= end:
            raise OffsetOutOfRange(f"{snapshot.root}, commit log", offset, begin, end)
    low = min(end, max(first, options.start_offset if options.start_offset is not None else first))
    high = min(end, max(low, options.end_offset if options.end_offset is not None else end))
    boundaries = Boundaries(snapshot.follower.log, first, end)
    if options.start_time is not None:
        low = max(low, boundaries.around_time(options.start_time - CLOCK_STEP_MS)[0])
    if options.end_time is not None:
        high = max(low, min(high, boundaries.around_time(options.end_time + CLOCK_STEP_MS)[1]))
    # The log's own beginning is one, damaged or not: damage there is to be told, too.
    return low if low == first else boundaries.at_or_behind(low), boundaries.at_or_behind(high)


def split_size(total: int, options: SourceOptions) -> int:
    """Bytes a split: few enough to keep every core busy, not so few that starting tasks costs more than reading."""
    wanted = options.min_partitions or SPLITS_A_CORE * (os.cpu_count() or 1)
    return max(options.smallest_split, min(options.split_size, -(-total // wanted)))
