"""`mqlake/deleted-topics`: the topics that were deleted, each with the end of the log at that moment.

Records of a deleted topic stay in the log until retention deletes their file. Records before the topic's marker belong
to no queue: everything that derives queues from the log leaves them out (`without_deleted`). So a deleted topic does
not come back after a crash or a rebuild, and a new topic of the same name starts at queue offset 0.

Nothing else in a store says that a topic was deleted, so there are two copies, each replaced whole: a JSON object on
one line, then its CRC-32. If one is damaged the other is read, and a writer replaces the damaged one.
"""

from __future__ import annotations

import json
import logging
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE
from mqlake.errors import BadFile, NotWritten
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
        self._copies = path, copy_of(path)
        self._scratch = scratch
        self.ends: dict[str, int] = {}
        """Topic -> its records that begin before this offset are in no queue."""
        self.damaged: list[Path] = []
        """Copies that could not be read when the file was loaded."""
        self.is_lost = False
        """No copy could be read, although there are some: deleted topics may come back."""

    def load(self, first_offset: int = 0) -> None:
        """Read the first copy that is whole. Markers of records that retention has deleted are dropped."""
        found: list[dict[str, int]] = []
        self.damaged = []
        for path in self._copies:
            try:
                found.append(_decode(path, read_small_file(path, MAX_SIZE)))
            except FileNotFoundError:
                continue
            except (OSError, BadFile) as error:
                self.damaged.append(path)
                _log.error("%s cannot be used: %s", path, error)
        self.is_lost = bool(self.damaged) and not found
        if self.is_lost:
            _log.error("no copy of %s can be read, deleted topics may come back", self._copies[0])
        if not found and not self.damaged:
            found.append(_read_old(self._copies[0].with_name(OLD_NAME)))
        self.ends = {topic: end for topic, end in (found[0] if found else {}).items() if end > first_offset}

    def mark(self, topic: str, end: int) -> None:
        """Mark a topic as deleted up to `end`. The marker is on disk when this returns."""
        ends = {**self.ends, topic: end}
        self._save(ends)
        self.ends = ends

    def mend(self) -> None:
        """Replace damaged copies."""
        if self.damaged:
            self._save(self.ends)
            self.damaged, self.is_lost = [], False

    def _save(self, ends: Mapping[str, int]) -> None:
        text = json.dumps(ends).encode()
        for path in self._copies:
            try:
                replace_file(path, b"%b\n%08x\n" % (text, zlib.crc32(text)), self._scratch)
            except OSError as error:
                raise NotWritten(path, error.strerror or str(error)) from error


def copy_of(path: Path) -> Path:
    """Return the name of the second copy."""
    return path.with_name(f"{path.name}.bak")


def _decode(path: Path, content: bytes) -> dict[str, int]:
    """Return the markers in one copy. Raises BadFile if it is damaged."""
    text, _, checksum = content.partition(b"\n")
    if checksum != b"%08x\n" % zlib.crc32(text):
        raise BadFile(path, "a wrong checksum", "a JSON object and its CRC-32")
    markers: dict[str, int] = json.loads(text)
    return markers


def _read_old(path: Path) -> dict[str, int]:
    """Return the markers in a file of version 0.1, which has no checksum."""
    try:
        return {str(topic): int(end) for topic, end in json.loads(read_small_file(path, MAX_SIZE)).items()}
    except FileNotFoundError:
        return {}
    except (OSError, BadFile, ValueError, TypeError, AttributeError) as error:
        _log.error("%s cannot be read, deleted topics may come back: %s", path, error)
        return {}


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
