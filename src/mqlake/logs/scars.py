"""`mqlake/scars`: ranges of the commit log that hold no whole record, although they were durable.

One JSON object a line, in the order of the log: `{"start": …, "end": …, "reason": …}`, half-open. A scar is found by
whoever comes upon it (recovery, dispatch, a read, a scan), listed once, and passed over from then on. The log's bytes
stay as they are. Derived from the log: a lost or damaged list is found again.

The writer keeps the file; readers have a list of their own, in memory. Any thread adds.
"""

from __future__ import annotations

import json
import logging
import threading
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from mqlake.files.small_files import replace_file

_log = logging.getLogger(__name__)


class Scar(NamedTuple):
    """A range [start, end) of the log."""

    start: int
    end: int
    reason: str


class Scars:
    """All scars of a store, sorted, none touching another."""

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        """`scratch`: where the file is made anew; without it scars are kept in memory only."""
        self._path = path
        self._scratch = scratch
        self._lock = threading.Lock()
        self.ranges: tuple[Scar, ...] = ()

    def load(self, first_offset: int = 0) -> None:
        """Take the file as it is, without lines that are none and scars of log files that are gone."""
        found = [scar for scar in read_scars(self._path) if scar is not None and scar.end > first_offset]
        self.ranges = _joined(found)

    def add(self, start: int, end: int, reason: str) -> bool:
        """List a scar; False where it was listed already."""
        with self._lock:
            if self.end_of(start) >= end:
                return False
            self.ranges = _joined([*self.ranges, Scar(start, end, reason)])
            _log.error("the log is damaged from %d to %d, which is passed over: %s", start, end, reason)
            if self._scratch is not None:
                self._save(self._scratch)
        return True

    def end_of(self, offset: int) -> int:
        """Where the scar ends that covers an offset; -1 where none does."""
        at = bisect_right(self.ranges, offset, key=lambda scar: scar.start) - 1
        return self.ranges[at].end if at >= 0 and offset < self.ranges[at].end else -1

    def _save(self, scratch: Path) -> None:
        lines = "".join(json.dumps(scar._asdict()) + "\n" for scar in self.ranges)
        try:
            replace_file(self._path, lines.encode(), scratch)
        except OSError as error:
            _log.warning("%s is not kept up to date: %s", self._path, error)


def read_scars(path: Path) -> list[Scar | None]:
    """The lines of a list of scars, None for one that is none; a missing list is an empty one."""
    try:
        return [_parse(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except FileNotFoundError:
        return []
    except OSError:
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
