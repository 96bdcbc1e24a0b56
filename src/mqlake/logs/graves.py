"""`mqlake/graves`: topics that were deleted, each with the log's end at that moment.

Records of a deleted topic stay in the log until retention takes their file. Those before its grave are in no queue:
whoever writes queues from the log leaves them out, so that a deleted topic does not come back with the next crash, and
one that is made again under its name begins at 0. One JSON object, replaced whole.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE
from mqlake.files.small_files import replace_file

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

    def living(self, topic: str, first: int, entries: bytes) -> tuple[int, bytes]:
        """Entries of a queue from number `first` on, without those of records that are buried."""
        end = self.ends.get(topic, 0)
        while entries and ENTRY.unpack_from(entries)[0] < end:
            first, entries = first + 1, entries[ENTRY_SIZE:]
        return first, entries
