"""Seal the log, and compare it with its seals again: one worker, never on the way of a put.

Every few seconds a round seals the whole blocks that became durable and dispatched since the last one; closing also
seals the short block at the end. Parts of the log that are older than this opening and have no seals yet (a store that
RocketMQ wrote) are sealed at a limited rate. The records of all of them are walked first: damage that a CRC shows must
not be sealed as if it were right, and a slave gets its master's damage as it gets its records. Blocks with a scar stay
without a seal until they are healed.

Scrubbing reads sealed blocks at the same rate and compares them. Its position and what it found are kept in
`mqlake/scrub.json`, so a pass over a large log goes on after a restart.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqlake.codec.seal_file import BLOCK_BYTES, SealTable, empty_table
from mqlake.config import SealConfig
from mqlake.errors import StoreError
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.small_files import publish_file, read_small_file
from mqlake.kernel import survey_records
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.logs.scars import Scars
from mqlake.logs.seals import CHUNK_BYTES, Range, Seals, broken_blocks, extend, fill, first_time
from mqlake.runtime.locks import make_lock
from mqlake.runtime.workers import Workers

if TYPE_CHECKING:
    from mqlake.logs.log_writer import LogWriter

CLOSE_S: Final = 2.0
"""How long closing may seal; the next opening continues."""
HOUR_MS: Final = 3_600_000
MAX_LISTED: Final = 1_000
"""Broken blocks that are listed; `check` finds all."""
SMALL: Final = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealStats:
    """How much of the log is sealed, and what scrubbing found."""

    sealed_end: int = 0
    """Blocks before this offset are sealed, except those with a scar."""
    broken: tuple[Range, ...] = ()
    """Sealed blocks that scrubbing found changed, and that were not healed since."""
    scrub_position: int | None = None
    """How far the pass that is under way has come; None between two passes."""
    scrub_started_ms: int = 0
    """When the last pass began; 0 if there was none."""
    scrub_finished_ms: int = 0
    """When the last whole pass ended; 0 if there was none."""


@dataclass(slots=True)
class ScrubState:
    """The content of `mqlake/scrub.json`."""

    position: int = -1
    started_ms: int = 0
    finished_ms: int = 0
    known_ms: int = 0
    """When this file was begun: the first pass is due so long after it."""
    broken: list[Range] | None = None

    @classmethod
    def load(cls, layout: Layout) -> ScrubState:
        """Return what was kept; a new state if there is none that can be used."""
        try:
            fields = json.loads(read_small_file(layout.scrub, SMALL))
            broken = [(int(low), int(high)) for low, high in fields["broken"]]
            return cls(
                int(fields["position"]),
                int(fields["startedMs"]),
                int(fields["finishedMs"]),
                int(fields["knownMs"]),
                broken,
            )
        except (OSError, StoreError, ValueError, TypeError, KeyError):
            return cls(broken=[])

    def save(self, layout: Layout) -> None:
        fields = {
            "position": self.position,
            "startedMs": self.started_ms,
            "finishedMs": self.finished_ms,
            "knownMs": self.known_ms,
            "broken": self.broken,
        }
        publish_file(layout.scrub, json.dumps(fields).encode())

    def stats(self, sealed_end: int) -> SealStats:
        return SealStats(
            sealed_end=sealed_end,
            broken=tuple(self.broken or ()),
            scrub_position=self.position if self.position >= 0 else None,
            scrub_started_ms=self.started_ms,
            scrub_finished_ms=self.finished_ms,
        )


class Sealer:
    """Seals and scrubs the log of an open writer. `lock` keeps it away from blocks that are being healed."""

    def __init__(
        self,
        layout: Layout,
        log: LogWriter,
        seals: Seals,
        scars: Scars,
        config: SealConfig,
        after_damage: Callable[[int, str], int],
        workers: Workers,
        *,
        sealed_end: int,
    ) -> None:
        """`sealed_end`: where the seals that were found when the store was opened end."""
        self._layout = layout
        self._log = log
        self._ends = log.ends
        self.seals = seals
        self._scars = scars
        self._config = config
        self._after_damage = after_damage
        self._opened_at = log.ends.appended
        self._walked = (-1, 0)
        """The start of a log file, and the position in it up to which its records were walked."""
        self.sealed_end = sealed_end
        self._knows_end = False
        """Whether every file before `sealed_end` was looked at."""
        self._first_offset = -1
        self.state = ScrubState.load(layout)
        self.lock = make_lock("seals")
        self._worker = workers.add("seals", self._work, behind=self._behind, keeps_trying=True)

    def start(self) -> None:
        if self._config.enabled:
            self._worker.start()

    def _behind(self) -> int:
        return self._ends.durable - max(self.sealed_end, self._log.first_offset)

    def _work(self) -> float:
        with self.lock:
            self._drop_deleted()
            budget = self._config.scrub_bytes_per_s * self._config.interval_ms // 1000 or 1 << 62
            left = self._seal(budget)
            self._scrub(left)
        return self._config.interval_ms / 1000

    def _drop_deleted(self) -> None:
        if self._log.first_offset != self._first_offset:
            self._first_offset = self._log.first_offset
            self.seals.drop_deleted(self._log.files.starts)
            self.sealed_end = max(self.sealed_end, self._first_offset)

    # ---- sealing

    def _seal(self, budget: int, *, deadline: float | None = None, whole: bool = True) -> int:
        """Seal what can be sealed, old parts of the log up to `budget` bytes. Return what is left of the budget.

        With `whole`, only whole blocks.
        """
        bound = min(self._ends.durable, self._ends.dispatched)
        changed: list[SealTable] = []
        sealed_end, is_complete = self.sealed_end, True
        for start in self._log.files.starts:
            file = self._log.files.file_at(start)
            if file is None or (self._knows_end and start + file.size <= self.sealed_end):
                continue
            reach = min(bound - start, file.size)
            if whole and reach < file.size:
                reach -= reach % BLOCK_BYTES
            if reach <= 0:
                break
            known = self.seals.table(start) or empty_table(start, file.size, first_time(file.pages))
            table, budget = self._seal_file(file, known, reach, budget, deadline)
            changed += [table] if table is not known else []
            sealed_end, is_complete = start + table.end, table.end >= reach
            if not is_complete:
                break
        self.seals.save(changed)
        self.sealed_end = sealed_end
        self._knows_end = self._knows_end or is_complete
        return budget if is_complete else 0

    def _seal_file(
        self, file: MappedFile, table: SealTable, reach: int, budget: int, deadline: float | None
    ) -> tuple[SealTable, int]:
        """Seal the blocks of one file up to position `reach`. Return its table, and what is left of the budget."""
        old_end = max(0, min(self._opened_at - file.start, file.size))
        first = old_end if table.end >= old_end else 0
        while table.end < reach and not self._is_late(deadline):
            stop = min(reach, table.end - table.end % BLOCK_BYTES + CHUNK_BYTES)
            if table.end < old_end:
                if budget <= 0:
                    break
                affordable = (table.end + max(BLOCK_BYTES, budget)) // BLOCK_BYTES * BLOCK_BYTES
                stop = min(stop, affordable)
                budget -= stop - table.end
            self._walk(file, first, stop)
            holes = [(scar.start - file.start, scar.end - file.start) for scar in self._scars.ranges]
            table = extend(table, file.pages, stop, holes)
        return table, budget

    def _is_late(self, deadline: float | None) -> bool:
        if deadline is None:
            return self._worker.stopping
        return time.monotonic() > deadline

    def _walk(self, file: MappedFile, first: int, wanted: int) -> None:
        """Walk the records of a file up to position `wanted` or after it, listing damage as scars. `first` is where the
        first walk over the file begins.
        """
        start, position = self._walked
        if start != file.start:
            position = first
        end = min(self._ends.dispatched - file.start, file.size)
        while position < wanted:
            found = survey_records(file.pages, position, end, file.start, wanted - position)
            position = found.position
            if found.why == BLANK:
                position = file.size
            elif found.why != REACHED_END:
                position = self._after_damage(file.start + position, REASONS[found.why]) - file.start
        self._walked = file.start, position

    def seal_all(self) -> None:
        """Seal all that can be sealed, old parts too, however long it takes."""
        self._worker.stop()
        with self.lock:
            self._seal(1 << 62, deadline=math.inf, whole=False)

    def reseal(self, low: int, high: int) -> None:
        """Seal the blocks of a range that have no seal and no scar any more. The caller holds the lock."""
        size = self._log.file_size
        for start in range(low - low % size, high, size):
            table, file = self.seals.table(start), self._log.files.file_at(start)
            if table is None or file is None:
                continue
            self.seals.save([filled(table, file, low - start, high - start, self._scars)])

    def finish(self) -> None:
        """Seal up to the end of the log, as far as there is time. The store is closing, and its log is on disk."""
        self._worker.stop()
        if not self._config.enabled:
            return
        try:
            with self.lock:
                self._seal(CHUNK_BYTES, deadline=time.monotonic() + CLOSE_S, whole=False)
        except (StoreError, OSError) as error:  # the next opening seals it
            _log.warning("the end of the log is not sealed: %s", error)

    # ---- scrubbing

    def _scrub(self, budget: int) -> None:
        state, now_ms = self.state, time.time_ns() // 1_000_000
        if not self._config.scrub_hours or budget <= 0:
            return
        if not state.known_ms:
            state.known_ms = now_ms
            state.save(self._layout)
        if state.position < 0:
            if now_ms - max(state.known_ms, state.finished_ms) < self._config.scrub_hours * HOUR_MS:
                return
            state.position, state.started_ms = self._log.first_offset, now_ms
        self.scrub_on(budget)
        state.save(self._layout)

    def scrub_on(self, budget: int) -> int:
        """Compare the next sealed blocks; return how many bytes. At the end of the log the pass is over."""
        state, seen = self.state, 0
        state.position = max(state.position, self._log.first_offset)
        while seen < budget and not self._worker.stopping:
            file = self._log.files.file_at(state.position)
            table = self.seals.table(file.start) if file is not None else None
            if file is None or state.position >= self.sealed_end:
                state.position, state.finished_ms = -1, time.time_ns() // 1_000_000
                break
            low = state.position - file.start
            if table is None or low >= table.end:
                state.position = file.end
                continue
            high = min(low - low % BLOCK_BYTES + min(CHUNK_BYTES, max(BLOCK_BYTES, budget - seen)), table.end)
            high = table.end if high == table.end else high - high % BLOCK_BYTES
            self._note(file, low, high, [table.block(index) for index in broken_blocks(table, file.pages, low, high)])
            seen += high - low
            state.position = file.start + high if high < table.end else file.end
        return seen

    def _note(self, file: MappedFile, low: int, high: int, broken: list[Range]) -> None:
        """Keep what the comparison of positions [low, high) of a file found."""
        found = [(file.start + one, file.start + end) for one, end in broken]
        known = self.state.broken or []
        for block in found:
            if block not in known:
                _log.error("the log is not as it was sealed from %d to %d: heal it from a copy", *block)
        kept = [each for each in known if each[1] <= file.start + low or each[0] >= file.start + high]
        self.state.broken = sorted([*kept, *found])[:MAX_LISTED]

    def healed(self, low: int, high: int) -> None:
        """Forget broken blocks of a range that fits again. The caller holds the lock."""
        self.state.broken = [each for each in self.state.broken or [] if each[1] <= low or each[0] >= high]
        self.state.save(self._layout)

    def stats(self) -> SealStats:
        return self.state.stats(self.sealed_end)


def filled(table: SealTable, file: MappedFile, low: int, high: int, scars: Scars) -> SealTable:
    """Return the table with the blocks of positions [low, high) sealed that have no seal and no scar."""
    first, stop = max(0, low) // BLOCK_BYTES, -(-min(high, table.end) // BLOCK_BYTES)
    for index in range(first, stop):
        begin, end = (file.start + position for position in table.block(index))
        if not table.states[index] and not any(scar.start < end and scar.end > begin for scar in scars.ranges):
            table = fill(table, file.pages, index)
    return table


def read_seal_stats(layout: Layout, file_size: int) -> SealStats:
    """Return what any process can see."""
    seals = Seals(layout, file_size, writable=False)
    newest = next((table for start in reversed(seals.starts()) if (table := seals.table(start)) is not None), None)
    return ScrubState.load(layout).stats(0 if newest is None else newest.start + newest.end)
