"""The open stores of a stream: what they hold now, and whether the stream's position is still valid.

A store is opened once and then followed: through its writer's positions file or, if no writer keeps one, record by
record. New folders that match a pattern are added once they are stores.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mqlake.errors import ChangedUnderRead, InvalidConfig, NotAStore, PositionLost
from mqlake.spark.boundaries import Boundaries, FileGone
from mqlake.spark.offsets import Positions
from mqlake.spark.options import EARLIEST, LATEST, SourceOptions, StreamOptions
from mqlake.spark.plan import TRIES, expand, snapshot_of, take_snapshot
from mqlake.spark.ways import Snapshot
from mqlake.store.follower import Follower

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Tails:
    """The open stores of a stream. Used by one thread, in a process next to the driver."""

    def __init__(self, options: SourceOptions, stream: StreamOptions) -> None:
        self._options = options
        self._stream = stream
        self._open: dict[str, tuple[object, Follower]] = {}
        self._warned: set[str] = set()

    def look(self, positions: Positions | None = None) -> dict[str, Snapshot]:
        """Return a snapshot of every store. When a stream begins (`positions` is None), all folders must be stores.
        Later, a folder that matches a pattern may not be a store yet, or no longer."""
        found = {}
        for path in expand(self._options.paths):
            try:
                found[str(path)] = self._look_at(path)
            except NotAStore as reason:
                if positions is None or not any(map(glob.has_magic, self._options.paths)):
                    raise
                self._warn_once(f"{reason}; it is skipped until it is a store")
        return found

    def _look_at(self, path: Path) -> Snapshot:
        root = str(path)
        known, follower = self._open.get(root, (None, None))
        identity = folder_identity(path)
        if follower is None or known != identity:
            follower = take_snapshot(path).follower
            self._open[root] = identity, follower
        follower.walk_on()
        return snapshot_of(root, follower)

    def believes(self, root: str) -> bool:
        """Return whether queues and index of this store are valid, up to the last snapshot."""
        return root in self._open and self._open[root][1].derived_holds

    def begin(self, snapshot: Snapshot) -> int:
        """Return where a stream that has not begun starts to read a store."""
        boundaries = boundaries_of(snapshot)
        if self._stream.starting_timestamp is not None:
            return boundaries.first_since(self._stream.starting_timestamp, rising=self._options.rising_times)
        if self._stream.starting_offsets == "latest":
            return snapshot.end
        return self.enter(snapshot)

    def enter(self, snapshot: Snapshot) -> int:
        """Return where to start reading a new store: at its first record, or at the given offset."""
        given = self._stream.starting_offsets
        offset = (
            given_offsets(given).get(Path(snapshot.root).resolve(), EARLIEST) if isinstance(given, dict) else EARLIEST
        )
        if offset in (EARLIEST, LATEST):
            return snapshot.first if offset == EARLIEST else snapshot.end
        if not snapshot.first <= offset <= snapshot.end:
            return self._lost(snapshot, offset)
        if not boundaries_of(snapshot).is_one(offset):
            near = boundaries_of(snapshot).at_or_after(offset)
            raise InvalidConfig(
                "option startingOffsets", offset, f"no record of {snapshot.root} begins there; the next is at {near}"
            )
        return offset

    def settle(self, snapshot: Snapshot, position: int) -> int:
        """Return a position if it is still valid. Else return where to continue, or raise PositionLost."""
        if snapshot.first <= position <= snapshot.end and boundaries_of(snapshot).is_one(position):
            return position
        return self._lost(snapshot, position)

    def _lost(self, snapshot: Snapshot, position: int) -> int:
        first, end = snapshot.first, snapshot.end
        found = f"where no record begins: the log is [{first}, {end}) and was rewritten"
        if position < first:
            found = f"and the log is [{first}, {end}) now: {first - position} bytes were deleted before they were read"
        elif position > end:
            found = f"and the log is [{first}, {end}) now: it lost its last {position - end} bytes"
        error = PositionLost(snapshot.root, position, found)
        if self._options.fail_on_data_loss:
            raise error
        inside = min(max(position, first), end)
        reached = inside if inside == first else boundaries_of(snapshot).at_or_after(inside)
        self._warn_once(f"{error}; continuing at {reached}")
        return reached

    def missing(self, root: str, position: int) -> None:
        """Raise PositionLost, or warn: a store that the stream has read is no longer among its paths."""
        error = PositionLost(root, position, "and this store is gone, or not among the paths")
        if self._options.fail_on_data_loss:
            raise error
        self._warn_once(f"{error}; continuing without it")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def close(self) -> None:
        for _, follower in self._open.values():
            follower.close()
        self._open.clear()


def folder_identity(path: Path) -> object:
    """Return an id that differs if another folder replaced this one. None if there is no folder."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def boundaries_of(snapshot: Snapshot) -> Boundaries:
    return Boundaries(snapshot.follower.log, snapshot.first, snapshot.end)


def given_offsets(offsets: dict[str, int]) -> dict[Path, int]:
    return {Path(store).resolve(): offset for store, offset in offsets.items()}


def retry_if_deleted(ask: Callable[[], Result]) -> Result:
    """Call `ask` again, from new snapshots, if a file was deleted meanwhile."""
    for _ in range(TRIES):
        try:
            return ask()
        except FileGone as gone:
            last = gone
    raise ChangedUnderRead("a store of this stream", last.args[0], "files deleted again and again", "a stable log")
