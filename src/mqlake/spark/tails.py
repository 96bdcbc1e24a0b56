"""The open stores of a stream: what they hold now, and whether the stream's position is still valid.

A store is opened once and then followed: through its writer's positions file or, if no writer keeps one, record by
record. It is opened again if its files were replaced. New folders that match a pattern are added once they are complete
stores (`arrivals.py`).
"""

from __future__ import annotations

import glob
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from mqlake.errors import ChangedUnderRead, InvalidConfig, NotAStore, PositionLost, StoreError
from mqlake.files.names import list_files
from mqlake.spark.arrivals import READY_S, Arrivals, has_writer
from mqlake.spark.boundaries import Boundaries, FileGone
from mqlake.spark.offsets import Positions, Seam, Seams
from mqlake.spark.options import EARLIEST, LATEST, SourceOptions, StreamOptions
from mqlake.spark.plan import TRIES, expand, snapshot_of, take_snapshot
from mqlake.spark.seam import contradiction, identity_in, is_same_store, seam_before
from mqlake.spark.ways import Snapshot
from mqlake.store.follower import Follower

REMIND_S = 60.0
"""How often the log mentions a store that is still skipped."""

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Tail(NamedTuple):
    """An open store, and the folder that it was when it was opened."""

    folder: object
    follower: Follower


class Tails:
    """The open stores of a stream. Used by one thread, in a process next to the driver."""

    def __init__(self, options: SourceOptions, stream: StreamOptions) -> None:
        self._options = options
        self._stream = stream
        self._has_pattern = any(map(glob.has_magic, options.paths))
        self._open: dict[str, Tail] = {}
        self._identities: dict[str, str | None] = {}
        self._read: set[str] = set()
        """Stores of which the stream has a position: if one is gone, that is a loss, not a wrong path."""
        self._arrivals = Arrivals()
        self._warned: dict[str, float] = {}

    def look(self, positions: Positions | None = None) -> dict[str, Snapshot]:
        """Return a snapshot of every store. When a stream begins (`positions` is None), all folders must be stores.
        Later, a folder that matches a pattern may not be a store yet, and one that was read may be gone: `missing`."""
        self._read |= (positions or {}).keys()
        found = {}
        for path in expand(self._options.paths, may_match_none=bool(self._read)):
            root = str(path)
            may_be_new = positions is not None and self._has_pattern
            try:
                if may_be_new and positions is not None and root not in positions and root not in self._open:
                    self._take_in(path)
                found[root] = self._look_at(path)
            except NotAStore as reason:
                if root in self._read:
                    continue
                if not may_be_new:
                    raise
                self._warn(f"{reason}; it is skipped until it is a store", root, REMIND_S)
        return found

    def look_at_all(self, positions: Positions | None) -> dict[str, Snapshot]:
        """Do the same for a query that ends by itself: wait for new stores that may be complete in a moment."""
        found = self.look(positions)
        if self._arrivals:
            time.sleep(READY_S)
            found = self.look(positions)
        return found

    def _take_in(self, path: Path) -> None:
        """Open a store that is new under a pattern. Raises NotAStore with the reason if it is not complete yet.

        Half of a store fails in many ways. If it stays like this, the log says so again and again.
        """
        try:
            self._arrivals.require_complete(path)
            follower = self._look_at(path).follower
        except NotAStore:
            raise
        except (StoreError, OSError) as reason:
            self._open.pop(str(path), None)
            raise NotAStore(path, f"it cannot be opened ({reason})", "wait until it is complete") from None
        if self._options.via == "auto" and not has_writer(follower.layout):
            follower.derived_holds = False  # its queues may not be complete yet

    def _look_at(self, path: Path) -> Snapshot:
        root = str(path)
        tail, folder = self._open.get(root), folder_identity(path)
        if tail is None or tail.folder != folder or not has_same_files(tail.follower):
            tail = self._open[root] = Tail(folder, take_snapshot(path).follower)
            self._identities.pop(root, None)
        tail.follower.walk_on()
        if self._identities.get(root) is None:  # a store gets its identity when something first needs it
            self._identities[root] = identity_in(tail.follower.layout)
        return snapshot_of(root, tail.follower)

    def believes(self, root: str) -> bool:
        """Return whether queues and index of this store are valid, up to the last snapshot."""
        return root in self._open and self._open[root].follower.derived_holds

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

    def settle(self, snapshot: Snapshot, position: int, seam: Seam | None) -> int:
        """Return a position if it is still valid. Else return where to continue, or raise PositionLost."""
        if seam is not None:
            identity = self._identities[snapshot.root]
            found = contradiction(snapshot, seam, identity)
            if found is not None and is_same_store(seam, identity):
                return self._continue(PositionLost(snapshot.root, position, f"and {found}"), snapshot)
            if found is not None:
                effect = "reads all that is there now, from the first record"
                error = PositionLost(snapshot.root, position, f"and {found}", effect)
                return self._continue(error, snapshot, snapshot.first)
        if snapshot.first <= position <= snapshot.end and boundaries_of(snapshot).is_one(position):
            return position
        return self._lost(snapshot, position)

    def seams(self, snapshots: Mapping[str, Snapshot], positions: Positions) -> Seams:
        """Return the seams of positions, of those that have one."""
        found = {
            root: seam_before(snapshots[root], position, self._identities[root]) for root, position in positions.items()
        }
        return {root: seam for root, seam in found.items() if seam is not None}

    def _lost(self, snapshot: Snapshot, position: int) -> int:
        first, end = snapshot.first, snapshot.end
        found = f"where no record begins: the log is [{first}, {end}) and was rewritten"
        if position < first:
            found = f"and the log is [{first}, {end}) now: {first - position} bytes were deleted before they were read"
        elif position > end:
            found = f"and the log is [{first}, {end}) now: it lost its last {position - end} bytes"
        return self._continue(PositionLost(snapshot.root, position, found), snapshot)

    def _continue(self, error: PositionLost, snapshot: Snapshot, at: int | None = None) -> int:
        """Raise the error or, if loss is accepted, return where to continue: `at`, or the nearest boundary."""
        if self._options.fail_on_data_loss:
            raise error
        inside = min(max(error.position, snapshot.first), snapshot.end)
        if at is None:
            at = inside if inside == snapshot.first else boundaries_of(snapshot).at_or_after(inside)
        self._warn(f"{error}; continuing at {at}")
        return at

    def missing(self, root: str, position: int) -> None:
        """Raise PositionLost, or warn: a store that the stream has read is no longer among its paths."""
        error = PositionLost(root, position, "and this store is gone, or not among the paths")
        if self._options.fail_on_data_loss:
            raise error
        self._warn(f"{error}; continuing without it")

    def _warn(self, text: str, subject: str = "", again_s: float = float("inf")) -> None:
        """Log a warning once for each subject, or again after a time."""
        now = time.monotonic()
        if now - self._warned.get(subject or text, -again_s) >= again_s:
            self._warned[subject or text] = now
            _log.warning("%s", text)

    def close(self) -> None:
        for tail in self._open.values():
            tail.follower.close()
        self._open.clear()


def folder_identity(path: Path) -> object:
    """Return an id that differs if another folder replaced this one. None if there is no folder."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def has_same_files(follower: Follower) -> bool:
    """Return whether the log's files are still those that were opened, with their size.

    A store may be replaced or restored inside of its folder. The last file decides: it is never deleted alone. A log
    without files is opened again when it has some, because only they show their size.
    """
    files = follower.log.files
    if not files.starts:
        return not any(size for _, size in list_files(files.directory, strict=False))
    file = files.file_at(max(files.first_offset, follower.ends.visible - 1))
    if file is None:
        return False
    try:
        found, opened = file.path.stat(), os.fstat(file.descriptor)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino, found.st_size) == (opened.st_dev, opened.st_ino, file.size)


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
