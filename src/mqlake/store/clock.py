"""Decide whether the wall clock can be trusted.

Retention deletes by age, and age is measured with the wall clock. A clock that jumps ahead, even for a second, would
make every message old. So the wall clock is compared with one that cannot be set: the time since boot. The difference
of the two changes only when somebody sets the wall clock.

The clock is plausible while that difference is within TOLERANCE_S of the last one that was accepted. After a jump
nothing is deleted by age until the clock is back, or until the new difference has held for HOLD_S: then the jump was
somebody setting the clock right. The accepted difference is kept in `mqlake/clock.json`, so that a jump between two
openings is noticed too, as long as the machine was not booted in between.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mqlake.errors import StoreError
from mqlake.files.small_files import read_small_file, replace_file

TOLERANCE_S: Final = 60.0
HOLD_S: Final = 3600.0
MAX_SIZE: Final = 4096
_log = logging.getLogger(__name__)


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # includes the time that the machine slept


class ClockJudge:
    """Judges the wall clock for one store. One thread at a time asks."""

    def __init__(
        self,
        path: Path,
        scratch: Path,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = _since_boot,
    ) -> None:
        self._path = path
        self._scratch = scratch
        self._wall = wall
        self._steady = steady
        self._boot = _boot_id()
        known = self._load()
        self._accepted = self._difference() if known is None else known
        self._candidate = self._accepted
        self._held_since = steady()
        if known is None:
            self.save()  # now, not only at close: a process that is killed does not close

    def jump_s(self) -> float:
        """Return by how many seconds the clock jumped since it was last accepted; 0 while it is plausible."""
        found, now = self._difference(), self._steady()
        jump = found - self._accepted
        if abs(jump) <= TOLERANCE_S:
            self._accepted = self._candidate = found  # small changes are somebody keeping the clock right
            return 0.0
        if abs(found - self._candidate) > TOLERANCE_S:
            self._candidate, self._held_since = found, now
            _log.warning("the clock jumped by %.0f s: nothing is deleted by age until it is back or %d s are over",
                         jump, HOLD_S)  # fmt: skip
        if now - self._held_since < HOLD_S:
            return jump
        self._accepted = found
        self.save()
        return 0.0

    def _difference(self) -> float:
        return self._wall() - self._steady()

    def save(self) -> None:
        """Keep the accepted difference for the next opening."""
        content = json.dumps({"boot": self._boot, "difference": self._accepted}).encode()
        try:
            replace_file(self._path, content, self._scratch)
        except OSError as error:
            _log.warning("%s is not written: %s", self._path, error)

    def _load(self) -> float | None:
        try:
            kept = json.loads(read_small_file(self._path, MAX_SIZE))
            return float(kept["difference"]) if kept["boot"] == self._boot else None
        except (OSError, StoreError, ValueError, TypeError, KeyError):
            return None


def _boot_id() -> str:
    """Return what tells one boot of the machine from another; empty if the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
