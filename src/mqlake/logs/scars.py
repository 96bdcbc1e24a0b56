"""`mqlake/scars`: ranges of the commit log that were durable and no longer hold whole records.

One JSON object per line, in the order of the log: `{"start": …, "end": …, "reason": …}`, half-open. Recovery,
dispatch, a read or a scan lists a scar when it first meets it; from then on all of them skip it. The log's bytes stay
as they are. The list is derived from the log: if it is lost or damaged, the scars are found again.

The writer keeps the file; readers keep a list in memory. Any thread may add.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from mqlake.errors import BadFile
from mqlake.files.small_files import read_small_file, replace_file
from mqlake.runtime.locks import make_lock

MAX_SIZE = 1 << 30

_log = logging.getLogger(__name__)


class Scar(NamedTuple):
    """A damaged range [start, end) of the log."""

    start: int
    end: int
    reason: str


class Scars:
    """The scars of a store, sorted; no two touch or overlap."""

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        """`scratch` is where a new version of the file is written. Without it, scars are kept in memory only."""
        self._path = path
        self._scratch = scratch
        self._lock = make_lock("scars")
        self.ranges: tuple[Scar, ...] = ()

    def load(self, first_offset: int = 0) -> None:
        """Read the file, without invalid lines and without scars of deleted log files."""
        found = [scar for scar in read_scars(self._path) if scar is not None and scar.end > first_offset]
        self.ranges = _joined(found)

    def add(self, start: int, end: int, reason: str) -> bool:
        """List a scar. Return False if it was already listed."""
        with self._lock:
            if self.end_of(start) >= end:
                return False
            self.ranges = _joined([*self.ranges, Scar(start, end, reason)])
            _log.error("the log is damaged from %d to %d, and reads skip this range: %s", start, end, reason)
            if self._scratch is not None:
                self._save(self._scratch)
        return True

    def remove(self, start: int, end: int) -> None:
        """Take a range off the list: it holds whole records again."""
        with self._lock:
            kept: list[Scar] = []
            for scar in self.ranges:
                if scar.end <= start or scar.start >= end:
                    kept.append(scar)
                    continue
                kept += [scar._replace(end=start)] if scar.start < start else []
                kept += [scar._replace(start=end)] if scar.end > end else []
            self.ranges = tuple(kept)
            if self._scratch is not None:
                self._save(self._scratch)

    def end_of(self, offset: int) -> int:
        """Return the end of the scar that covers an offset, or -1 if none does."""
        at = bisect_right(self.ranges, offset, key=lambda scar: scar.start) - 1
        return self.ranges[at].end if at >= 0 and offset < self.ranges[at].end else -1

    def _save(self, scratch: Path) -> None:
        lines = "".join(json.dumps(scar._asdict()) + "\n" for scar in self.ranges)
        try:
            replace_file(self._path, lines.encode(), scratch)
        except OSError as error:
            _log.warning("%s could not be updated: %s", self._path, error)


def read_scars(path: Path) -> list[Scar | None]:
    """Return the scars of a file, None for each invalid line. A missing file is an empty list."""
    try:
        return [_parse(line) for line in read_small_file(path, MAX_SIZE).decode("utf-8", "replace").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, BadFile):
        return [None]


def _parse(line: str) -> Scar | None:
    try:
        fields = json.loads(line)
        scar = Scar(int(fields["start"]), int(fields["end"]), str(fields["reason"]))
    except (ValueError, KeyError, TypeError):
        return None
    return scar if 0 <= scar.start < scar.end else None


def _joined(scars: list[Scar]) -> tuple[Scar, ...]:
    joined: list[Scar] = []
    for scar in sorted(scars):
        if joined and scar.start <= joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(joined[-1].end, scar.end))
        else:
            joined.append(scar)
    return tuple(joined)
