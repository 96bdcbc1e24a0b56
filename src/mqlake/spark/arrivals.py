"""Stores that appear under a pattern while a stream runs: when are they complete enough to be read?

A store whose mqlake writer runs is: the writer announces itself when everything is in place. So is one whose mqlake
writer closed it, if the log's files reach from the beginning to the end that the writer left word of. Any other one may
be half of a store: RocketMQ is creating it, or it is being copied. Nothing marks the end of a copy, so the store is
taken once the files of its log have kept their names and sizes for a moment. A log that only grows later is followed
like any other, so no record is missed if the copy was not at its end yet.
"""

from __future__ import annotations

import time
from pathlib import Path

from mqlake.errors import NotAStore
from mqlake.files.layout import Layout
from mqlake.files.lock import writer_of
from mqlake.files.names import list_files
from mqlake.files.positions import DISPATCHED, FIRST, WRITER, Positions
from mqlake.store.opening import find_store

READY_S = 1.0
"""For this long the log's files must stay as they are. Also how long a query that ends by itself waits for them."""

Listing = list[tuple[int, int]]


class Arrivals:
    """The stores that are not complete yet, as they were when last looked at."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[Listing, float]] = {}

    def __bool__(self) -> bool:
        """Return whether some store might be complete soon."""
        return bool(self._seen)

    def require_complete(self, path: Path) -> None:
        """Raise an error with the reason if a store is not complete, or not known to be."""
        layout = find_store(path, read_only=True, create=False)
        listing = list_files(layout.commit_log)
        if not has_writer(layout) and not reaches_its_end(layout, listing):
            self._require_rest(path, listing)
        self._seen.pop(path, None)

    def _require_rest(self, path: Path, listing: Listing) -> None:
        if not any(size for _, size in listing):
            raise NotAStore(path, "its log has no file yet", "wait for its first message")
        now = time.monotonic()
        before, since = self._seen.get(path, ([], now))
        if not before or listing[: len(before)] != before:  # further files at the end are a log that is written
            self._seen[path] = listing, now
            since = now
        if now - since < READY_S:
            raise NotAStore(path, "the files of its log are new", f"wait until they stay the same for {READY_S:g} s")


def has_writer(layout: Layout) -> bool:
    """Return whether an mqlake writer has the store open and is ready."""
    positions = Positions.open(layout.positions)
    writer = positions.words[WRITER] if positions is not None else 0
    return writer > 0 and writer_of(layout.lock) == writer


def reaches_its_end(layout: Layout, listing: Listing) -> bool:
    """Return whether the log is as long as its mqlake writer said when it closed the store."""
    positions = Positions.open(layout.positions)
    if positions is None or positions.words[WRITER] != 0 or not listing:
        return False
    start, size = listing[-1]
    return listing[0][0] == positions.words[FIRST] and start + size >= positions.words[DISPATCHED] > 0
