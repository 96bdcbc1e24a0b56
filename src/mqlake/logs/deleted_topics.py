"""`mqlake/deleted-topics`: the topics that were deleted, each with the end of the log at that moment.

Records of a deleted topic stay in the log until retention deletes their file. Records before the topic's marker belong
to no queue: everything that derives queues from the log leaves them out (`without_deleted`). So a deleted topic does
not come back after a crash or a rebuild, and a new topic of the same name starts at queue offset 0. The file is one
JSON object, replaced whole.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE
from mqlake.errors import BadFile
from mqlake.files.layout import Layout
from mqlake.files.small_files import read_small_file, replace_file
from mqlake.kernel.types import Run

MAX_SIZE = 1 << 30
OLD_NAME = "graves"
"""The file's name before version 0.2; read if the new name is missing."""
_log = logging.getLogger(__name__)


class DeletedTopics:
    """The markers of a store. The dispatcher's thread writes them; any thread reads."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch
        self.ends: dict[str, int] = {}
        """Topic -> its records that begin before this offset are in no queue."""

    def load(self, first_offset: int = 0) -> None:
        """Read the file. Markers of records that retention has deleted are dropped."""
        try:
            content = json.loads(self._read())
            found = {str(topic): int(end) for topic, end in content.items()}
        except FileNotFoundError:
            found = {}
        except (OSError, BadFile, ValueError, TypeError, AttributeError) as error:
            _log.error("%s cannot be read, deleted topics may come back: %s", self._path, error)
            found = {}
        self.ends = {topic: end for topic, end in found.items() if end > first_offset}

    def _read(self) -> bytes:
        try:
            return read_small_file(self._path, MAX_SIZE)
        except FileNotFoundError:
            return read_small_file(self._path.with_name(OLD_NAME), MAX_SIZE)

    def mark(self, topic: str, end: int) -> None:
        """Mark a topic as deleted up to `end`. The marker is on disk when this returns."""
        ends = {**self.ends, topic: end}
        replace_file(self._path, json.dumps(ends).encode(), self._scratch)
        self.ends = ends


def deleted_topics_of(layout: Layout) -> dict[str, int]:
    """Return the markers of a store that is not open."""
    deleted = DeletedTopics(layout.deleted_topics, layout.scratch)
    deleted.load()
    return deleted.ends


def without_deleted(runs: list[Run], deleted: Mapping[str, int]) -> list[Run]:
    """Leave out the entries of records that belong to deleted topics."""
    if not deleted:
        return runs
    return [run for run in (_after(run, deleted.get(run[0], 0)) for run in runs) if run[3]]


def _after(run: Run, end: int) -> Run:
    """Drop a run's entries before `end`. Offsets rise along a run, so they come first."""
    topic, queue_id, first, entries = run
    count = len(entries) // ENTRY_SIZE
    gone = bisect_left(range(count), end, key=lambda index: int(ENTRY.unpack_from(entries, index * ENTRY_SIZE)[0]))
    return (topic, queue_id, first + gone, entries[gone * ENTRY_SIZE :]) if gone else run
