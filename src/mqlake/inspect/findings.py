"""Findings of a check: one row for each broken promise, with a short stable name.

The table below is the complete list: severity, cost and remedy. An error is damage in the log: something is lost, or
cannot be read as it is. A warning is derived data that is wrong and can be rebuilt, or a file that prevents opening. A
note is worth knowing and breaks no promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

MAX_ROWS = 100
"""At most this many rows of one kind in one file; the last counts the others."""


class Severity(IntEnum):
    NOTE = 0
    WARNING = 1
    ERROR = 2


class Promise(NamedTuple):
    """What a broken promise means."""

    severity: Severity
    cost: str
    remedy: str


NOTE, WARNING, ERROR = Severity
REPAIR = "mqlake repair"
NOTHING_TO_DO = "nothing"
CONFIGURE = "--config broker.conf"
LOST = "its message cannot be read; readers skip it"
REBUILT = "mqlake repair rebuilds it from the log"
HEAL = "mqlake repair --from COPY, a backup or a replica of this log"
ACCEPT = "mqlake repair, if there is no copy: it accepts the blocks as they are"
UNREADABLE = {"record-crc", "record-magic", "record-size", "record-lengths", "record-offset", "record-zero"}
HEALABLE = UNREADABLE | {"file-missing", "seal-broken"}
"""Damage of the log that another copy can undo, and that a repair without one makes final."""

PROMISES = {
    "record-crc": Promise(ERROR, LOST, REPAIR),
    "record-magic": Promise(ERROR, LOST, REPAIR),
    "record-size": Promise(ERROR, LOST, REPAIR),
    "record-lengths": Promise(ERROR, LOST, REPAIR),
    "record-offset": Promise(ERROR, LOST, REPAIR),
    "record-zero": Promise(ERROR, "what was here is lost; readers skip it", REPAIR),
    "record-header": Promise(ERROR, "its message has a wrong queue, queue offset or state", REPAIR),
    "record-host": Promise(WARNING, "RocketMQ cannot decode the record; its clients stop here", REPAIR),
    "number-gap": Promise(
        ERROR, "these queue offsets are lost, or were never stored", "look in a backup for the lost queue offsets"
    ),
    "number-repeat": Promise(ERROR, "one message hides another in its queue", "read both messages by physical offset"),
    "tail-lost": Promise(ERROR, "messages at the end of the log are lost", REPAIR),
    "file-missing": Promise(ERROR, "all messages of the file are lost, and the store does not open", REPAIR),
    "file-misnamed": Promise(ERROR, "its messages cannot be read under this name", REPAIR),
    "file-apart": Promise(
        ERROR,
        "its messages are lost: files between it and the log are missing",
        f"put the missing files back, else {REPAIR}",
    ),
    "file-short": Promise(WARNING, "the store does not open", REPAIR),
    "file-long": Promise(WARNING, "the store does not open", REPAIR),
    "file-empty": Promise(WARNING, "RocketMQ 4.9 does not start", REPAIR),
    "file-surplus": Promise(WARNING, "not part of the log; the store may not open, or have a wrong end", REPAIR),
    "file-foreign": Promise(WARNING, "the store does not open", "move the file away, or mqlake repair"),
    "file-irregular": Promise(WARNING, "the store does not open, or its readers block for ever", REPAIR),
    "file-ahead": Promise(NOTE, "none: RocketMQ creates the next file in advance", NOTHING_TO_DO),
    "marker": Promise(WARNING, "the marker gives a wrong length for the rest of the file", REPAIR),
    "torn-tail": Promise(WARNING, "the torn tail from an unclean stop is cut off", "open the store, or mqlake repair"),
    "tail-dirty": Promise(WARNING, "bytes after the end could be taken for records", REPAIR),
    "seal-broken": Promise(ERROR, "a record here is not what was put; no CRC of its own shows it", HEAL),
    "seal-file": Promise(
        WARNING, "changes in its log file are not noticed", "open the store: the log file is sealed again"
    ),
    "seal-stale": Promise(NOTE, "none: another program has written since, and opening drops them", NOTHING_TO_DO),
    "time-order": Promise(NOTE, "look-ups by time may miss messages", NOTHING_TO_DO),
    "queue-missing": Promise(WARNING, "its messages are not delivered", REBUILT),
    "queue-file-size": Promise(WARNING, "the queue does not open", REBUILT),
    "queue-file-name": Promise(WARNING, "the queue does not open", REBUILT),
    "queue-file-missing": Promise(WARNING, "the queue does not open", REBUILT),
    "queue-entry": Promise(WARNING, "a message is not delivered, or a wrong one is", REBUILT),
    "queue-hole": Promise(WARNING, "RocketMQ fails here, or skips messages", REPAIR),
    "queue-tail": Promise(WARNING, "bytes after the end could be taken for entries", REBUILT),
    "index-file-size": Promise(WARNING, "keys are not found, or the store does not open", REBUILT),
    "index-numbers": Promise(
        WARNING, "keys are not found, and the index is not checked", "give the sizes of index files: " + CONFIGURE
    ),
    "index-header": Promise(WARNING, "keys may not be found", REBUILT),
    "index-chain": Promise(WARNING, "keys may not be found", REBUILT),
    "index-entry": Promise(WARNING, "a look-up reads a wrong record, and its own key is not found", REBUILT),
    "index-missing": Promise(WARNING, "these keys are not found", REBUILT),
    "index-fewer": Promise(NOTE, "these keys are not found, as in the RocketMQ that wrote the index", NOTHING_TO_DO),
    "index-double": Promise(NOTE, "none: RocketMQ 4.9 enters some keys again at each start", NOTHING_TO_DO),
    "checkpoint-size": Promise(WARNING, "RocketMQ may recover from a wrong place", REPAIR),
    "checkpoint-ahead": Promise(WARNING, "RocketMQ may recover from a wrong place", REPAIR),
    "own-checkpoint": Promise(WARNING, "the next opening takes longer", REPAIR),
    "own-checkpoint-behind": Promise(NOTE, "none: another program has written since", NOTHING_TO_DO),
    "positions": Promise(WARNING, "readers in other processes may be misled", REPAIR),
    "settings": Promise(WARNING, "the sizes of index files must be configured", REPAIR),
    "scars": Promise(WARNING, "known damage is searched for at each opening", REPAIR),
    "deleted-topics": Promise(WARNING, "none: its other copy is used", REPAIR),
    "deleted-topics-lost": Promise(
        ERROR, "deleted topics may come back", "delete the topics again after mqlake repair"
    ),
    "abort": Promise(NOTE, "the next opening recovers", "open the store"),
    "config-json": Promise(WARNING, "its .bak is used, here and by RocketMQ", REPAIR),
    "config-absent": Promise(NOTE, "none: its .bak is used, and the next change writes it", NOTHING_TO_DO),
    "config-lost": Promise(ERROR, "its contents are lost", "mqlake repair moves it away; restore it from a backup"),
    "leftover": Promise(NOTE, "space only", "open the store: opening removes it"),
    "foreign": Promise(NOTE, "none: it is ignored", NOTHING_TO_DO),
}


class Finding(NamedTuple):
    """One broken promise."""

    severity: Severity
    what: str
    file: str
    """Path relative to the store."""
    offset: int | None
    """Offset in the file; in the log if the file itself is missing."""
    found: str
    expected: str
    cost: str
    remedy: str


class Findings:
    """Collects findings, at most MAX_ROWS of one kind in one file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._rows: list[Finding] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, what: str, file: Path, offset: int | None, found: str, expected: str, cost: str = "") -> None:
        name = file.relative_to(self._root).as_posix()
        self._counts[what, name] += 1
        if self._counts[what, name] <= MAX_ROWS:
            severity, usual_cost, remedy = PROMISES[what]
            self._rows.append(Finding(severity, what, name, offset, found, expected, cost or usual_cost, remedy))

    def add_more(self, what: str, file: Path, count: int) -> None:
        """Count more findings of a kind without listing them."""
        if count:
            self._counts[what, file.relative_to(self._root).as_posix()] += count

    def forget(self, folder: Path) -> None:
        """Drop what was found in a folder."""
        under = folder.relative_to(self._root).as_posix() + "/"
        self._rows = [row for row in self._rows if not row.file.startswith(under)]
        self._counts = Counter({key: count for key, count in self._counts.items() if not key[1].startswith(under)})

    def rows(self) -> Iterator[Finding]:
        """Return the findings, worst first, then by place. The last of a kind counts those left out."""
        left = {key: count - MAX_ROWS for key, count in self._counts.items() if count > MAX_ROWS}
        yield from sorted(self._rows, key=lambda row: (-row.severity, row.file, row.offset or 0, row.what))
        for (what, name), count in sorted(left.items()):
            severity, cost, remedy = PROMISES[what]
            yield Finding(severity, what, name, None, f"{count} more of these", "none", cost, remedy)

    def worst(self, *parts: str) -> Severity | None:
        """Return the worst finding under these folders; None if there is none."""
        found = [row.severity for row in self._rows if not parts or row.file.split("/")[0] in parts]
        return max(found, default=None)
