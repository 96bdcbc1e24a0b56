"""Turn options into splits. Runs in a process next to the driver.

Each store is opened for reading and inspected once: where its log begins, and up to where it may be read. That is the
snapshot. The splits name exactly these bytes, whatever is written or deleted later. The selection is narrowed to a byte
range, the cheapest way to read it is chosen (`ways.py`), and the range is cut between records.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mqlake.config import IndexConfig, StoreConfig
from mqlake.errors import ChangedUnderRead, NotAStore, OffsetOutOfRange
from mqlake.files.place import exists, local_path
from mqlake.spark.boundaries import CLOCK_STEP_MS, Boundaries, FileGone
from mqlake.spark.options import SourceOptions
from mqlake.spark.split import Split
from mqlake.spark.ways import Snapshot, Way, choose
from mqlake.store.follower import Follower
from mqlake.store.opening import find_store, resolve

SPLITS_A_CORE = 2
TRIES = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StorePlan:
    """What is read of one store, and why in this way."""

    store: str
    first: int
    end: int
    start: int
    stop: int
    way: Way
    splits: list[Split]
    lake: str = ""
    """What is read of a lake."""

    def __str__(self) -> str:
        size = self.stop - self.start
        return (
            f"{self.store}: log [{self.first}, {self.end}), selected [{self.start}, {self.stop})\n"
            f"  {self.way.name}: {self.way.reason}; reads about {self.way.cost:,} bytes of {size:,}, "
            f"in {len(self.splits)} splits{self.lake}"
        )


def plan(options: SourceOptions) -> list[StorePlan]:
    """Plan a read, store by store. Starts over from a new snapshot if a file is deleted meanwhile."""
    for _ in range(TRIES):
        try:
            plans = _plan(options)
        except FileGone as gone:
            last = gone
            continue
        for made in plans:
            _log.info("%s", made)
        return plans
    raise ChangedUnderRead(", ".join(options.paths), last.args[0], "files deleted again and again", "a stable log")


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
    """Cut byte ranges of stores, which begin and end at record boundaries, into splits of about equal cost."""
    ways = [choose(snapshot, options, start, stop) for snapshot, start, stop in parts]
    size = split_size(sum(way.cost for way in ways), options)
    return [
        StorePlan(snapshot.root, snapshot.first, snapshot.end, start, stop, way, *_cut(snapshot, options, way, size))
        for (snapshot, start, stop), way in zip(parts, ways, strict=True)
    ]


def _cut(snapshot: Snapshot, options: SourceOptions, way: Way, size: int) -> tuple[list[Split], str]:
    """Return the splits of what only the lake has, then those of the log; and what is read of the lake."""
    splits = way.cut(size)
    if options.lake is None:
        return splits, ""
    # Importing this takes as long as everything else here.
    from mqlake.spark.archived import begins_at, cut_archived, files_between

    start, stop = begins_at(options, snapshot.root, snapshot.first), snapshot.first
    start = max(start, options.start_offset or 0)
    stop = min(stop, options.end_offset if options.end_offset is not None else stop)
    archived = snapshot.split(start, stop, topics=options.topics, lake=options.lake)
    told = f"\n  lake: {files_between(options, archived)}"
    return [*cut_archived(archived), *(replace(split, lake=options.lake) for split in splits)], told


def expand(paths: tuple[str, ...], *, may_match_none: bool = False) -> list[Path]:
    """Return the folders that paths and patterns name, each once: under its own name, if that is among them.

    Streams keep positions by name, so a link that comes later must not rename a store. A pattern without a match
    raises NotAStore, unless it `may_match_none`.
    """
    found: dict[Path, Path] = {}
    for text in paths:
        path = str(local_path(text))
        is_pattern = glob.has_magic(path) and not exists(path)
        matches = sorted(glob.glob(path)) if is_pattern else [path]  # noqa: PTH207  # patterns may be absolute
        if not matches and not may_match_none:
            raise NotAStore(Path(path), "no folder matches this pattern", "check the path")
        for match in matches:
            folder, name = Path(match).resolve(), Path(match).absolute()
            if folder not in found or name == folder:
                found[folder] = name
    return list(found.values())


def take_snapshot(path: Path) -> Snapshot:
    """Open a store and take a snapshot. The index stays closed: only key look-ups need it, and open it themselves."""
    layout = find_store(path, read_only=True, create=False)
    config = resolve(layout, StoreConfig(index=IndexConfig(enabled=False)))
    return snapshot_of(str(path), Follower(layout, config, derive=False))


def snapshot_of(root: str, follower: Follower) -> Snapshot:
    """Return the snapshot of a store as its follower sees it now."""
    end = follower.ends.visible
    follower.log.follow(end)  # the writer may have rolled to a new file since the folder was listed
    return Snapshot(root, follower.log.first_offset, end, follower)


def narrow(snapshot: Snapshot, options: SourceOptions) -> tuple[int, int]:
    """Return the byte range, between record boundaries, that holds all messages in the selected offsets and times.

    Times narrow it only if the user said that they rise along the log. Otherwise workers look at all of them.
    """
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
    if options.rising_times and options.start_time is not None:
        low = max(low, boundaries.around_time(options.start_time - CLOCK_STEP_MS)[0])
    if options.rising_times and options.end_time is not None:
        high = max(low, min(high, boundaries.around_time(options.end_time + CLOCK_STEP_MS)[1]))
    # The log's first offset counts as a boundary even if it is damaged: that damage must be reported too.
    return low if low == first else boundaries.at_or_after(low), boundaries.at_or_after(high)


def split_size(total: int, options: SourceOptions) -> int:
    """Return the bytes per split: small enough to keep all cores busy, not so small that starting tasks dominates."""
    wanted = options.min_partitions or SPLITS_A_CORE * (os.cpu_count() or 1)
    return max(options.smallest_split, min(options.split_size, -(-total // wanted)))
