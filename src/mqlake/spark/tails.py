"""The stores of a stream, each kept open: what is in them now, and whether the stream's position still is.

A store is opened once, and then followed: by its writer's live positions, or record by record where nobody keeps any.
New folders that a pattern matches are taken in as they become stores.
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
from mqlake.spark.plan import CLOCK_STEP_MS, TRIES, expand, snapshot_of, take_snapshot
from mqlake.spark.ways import Snapshot
from mqlake.store.follower import Follower

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Tails:
    """Looked at by one thread, beside the driver."""

    def __init__(self, options: SourceOptions, stream: StreamOptions) -> None:
        self._options = options
        self._stream = stream
        self._open: dict[str, tuple[object, Follower]] = {}
        self._told: set[str] = set()

    def look(self, positions: Positions | None = None) -> dict[str, Snapshot]:
        """Every store as it is now. All must be stores when a stream begins; later, folders that a pattern matches may
        be about to become one, or were one."""
        found = {}
        for path in expand(self._options.paths):
            try:
                found[str(path)] = self._look_at(path)
            except NotAStore as reason:
                if positions is None or not any(map(glob.has_magic, self._options.paths)):
                    raise
                self._tell_once(f"{reason}; it is passed over until it is a store")
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
        """Queues and index of this store hold, up to what was last looked at."""
        return root in self._open and self._open[root][1].derived_holds

    def begin(self, snapshot: Snapshot) -> int:
        """Where a stream that has not begun starts to read a store."""
        boundaries = boundaries_of(snapshot)
        if self._stream.starting_timestamp is not None:
            return boundaries.first_since(self._stream.starting_timestamp, CLOCK_STEP_MS)
        if self._stream.starting_offsets == "latest":
            return snapshot.end
        return self.enter(snapshot)

    def enter(self, snapshot: Snapshot) -> int:
        """Where a store is read from that the stream did not know: at its first record, unless its offset was given."""
        given = self._stream.starting_offsets
        offset = (
            given_offsets(given).get(Path(snapshot.root).resolve(), EARLIEST) if isinstance(given, dict) else EARLIEST
        )
        if offset in (EARLIEST, LATEST):
            return snapshot.first if offset == EARLIEST else snapshot.end
        if not snapshot.first <= offset <= snapshot.end:
            return self._lost(snapshot, offset)
        if not boundaries_of(snapshot).is_one(offset):
            near = boundaries_of(snapshot).at_or_behind(offset)
            raise InvalidConfig(
                "option startingOffsets", offset, f"no record of {snapshot.root} begins there; one at {near}"
            )
        return offset

    def settle(self, snapshot: Snapshot, position: int) -> int:
        """A position, if it still is a place in the log; else where to go on, if that is allowed."""
        if snapshot.first <= position <= snapshot.end and boundaries_of(snapshot).is_one(position):
            return position
        return self._lost(snapshot, position)

    def _lost(self, snapshot: Snapshot, position: int) -> int:
        first, end = snapshot.first, snapshot.end
        found = f"where no record begins: the log is [{first}, {end}), and was written anew"
        if position < first:
            found = f"and the log is [{first}, {end}) now: {first - position} bytes were deleted before they were read"
        elif position > end:
            found = f"and the log is [{first}, {end}) now: it lost its last {position - end} bytes"
        error = PositionLost(snapshot.root, position, found)
        if self._options.fail_on_data_loss:
            raise error
        inside = min(max(position, first), end)
        reached = inside if inside == first else boundaries_of(snapshot).at_or_behind(inside)
        self._tell_once(f"{error}; going on at {reached}")
        return reached

    def missing(self, root: str, position: int) -> None:
        """A store that the stream has read is not among those of its paths."""
        error = PositionLost(root, position, "and this store is gone, or not among the paths")
        if self._options.fail_on_data_loss:
            raise error
        self._tell_once(f"{error}; going on without it")

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("%s", text)

    def close(self) -> None:
        for _, follower in self._open.values():
            follower.close()
        self._open.clear()


def folder_identity(path: Path) -> object:
    """Tells a folder from another one that took its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def boundaries_of(snapshot: Snapshot) -> Boundaries:
    return Boundaries(snapshot.follower.log, snapshot.first, snapshot.end)


def given_offsets(offsets: dict[str, int]) -> dict[Path, int]:
    return {Path(store).resolve(): offset for store, offset in offsets.items()}


def while_files_go(ask: Callable[[], Result]) -> Result:
    """Ask again, from new snapshots, where a file was deleted meanwhile."""
    for _ in range(TRIES):
        try:
            return ask()
        except FileGone as gone:
            last = gone
    raise ChangedUnderRead("a store of this stream", last.args[0], "files that vanish", "a log that stays for a second")
