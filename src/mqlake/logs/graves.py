"""`mqlake/graves`: topics that were deleted, each with the log's end at that moment.

Records of a deleted topic stay in the log until retention takes their file. Those before its grave are in no queue:
whoever derives queues from the log leaves them out (`living`), so that a deleted topic does not come back with the next
crash or rebuild, and one that is made again under its name begins at 0. One JSON object, replaced whole.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE
from mqlake.files.layout import Layout
from mqlake.files.small_files import replace_file
from mqlake.kernel.types import Run

_log = logging.getLogger(__name__)


class Graves:
    """All graves of a store. The writer digs, under the log's lock; others read."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch
        self.ends: dict[str, int] = {}
        """Topic -> its records that begin before this offset are in no queue."""

    def load(self, first_offset: int = 0) -> None:
        """Take the file as it is, without graves of records that are gone."""
        try:
            content = json.loads(self._path.read_bytes())
            found = {str(topic): int(end) for topic, end in content.items()}
        except FileNotFoundError:
            found = {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _log.error("%s cannot be read, deleted topics may come back: %s", self._path, error)
            found = {}
        self.ends = {topic: end for topic, end in found.items() if end > first_offset}

    def dig(self, topic: str, end: int) -> None:
        """Durable on return."""
        ends = {**self.ends, topic: end}
        replace_file(self._path, json.dumps(ends).encode(), self._scratch)
        self.ends = ends


def graves_of(layout: Layout) -> dict[str, int]:
    """The graves of a store that is not opened."""
    graves = Graves(layout.graves, layout.scratch)
    graves.load()
    return graves.ends


def living(runs: list[Run], graves: Mapping[str, int]) -> list[Run]:
    """What dispatch puts into queues of the runs that the log gives: no entries of buried records."""
    if not graves:
        return runs
    return [run for run in (_living(run, graves.get(run[0], 0)) for run in runs) if run[3]]


def _living(run: Run, end: int) -> Run:
    """A run's records rise: those before the grave come first."""
    topic, queue_id, first, entries = run
    count = len(entries) // ENTRY_SIZE
    gone = bisect_left(range(count), end, key=lambda number: int(ENTRY.unpack_from(entries, number * ENTRY_SIZE)[0]))
    return (topic, queue_id, first + gone, entries[gone * ENTRY_SIZE :]) if gone else run
