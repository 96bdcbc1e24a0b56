"""Which files of the log may go, and when.

Every ten seconds the cleaner looks at the age of the oldest file and at the disk:

    disk use          what goes                                                      puts
    up to 75 %        files older than 72 h, at the hours of `deleteWhen`            taken
    above 75 %        files older than 72 h, at any hour                             taken
    above 85 %        the oldest files, however young, until it is 85 % or less      taken
    above 90 %        the same, and gates hold nothing back (`hard_limit_percent`)   refused, until it is 85 % or less

Use is RocketMQ's: used / (used + available), in whole percents, rounded up. A round deletes ten files at most, with
100 ms between them, and looks at the disk again before each. `retain` deletes by hand, and obeys gates.

Invariant: files go oldest first, never the one that is written, and only once a checkpoint of this run covers them:
they are durable and dispatched, and their queues are on the disk, so that a queue whose messages are all gone still
knows its next number after a power cut. The name of each is off the disk before the next is touched, and queues and
index follow only then: whatever a crash leaves is a log without a gap, and queues that begin no later than it does.

Who reads a file that is deleted keeps valid bytes until the last view is released; the blocks are free after that.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mqlake.config import RetentionConfig, parse_hours
from mqlake.errors import DiskAboveLimit
from mqlake.files.layout import Layout
from mqlake.files.names import file_name
from mqlake.files.positions import FIRST, NEXT_CLEANING
from mqlake.logs.commit_log import CommitLog, LogWriter
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.key_index import KeyIndex
from mqlake.store.gates import Gates

HOUR_MS = 3_600_000
Rule = Callable[[int], str | None]
"""Why the file that starts here goes; None where it stays."""
_log = logging.getLogger(__name__)


class Retained(NamedTuple):
    """What was deleted, or would be."""

    first_offset: int
    """Where the log begins behind it."""
    file_count: int
    size_bytes: int
    held_by: tuple[str, ...] = ()
    """The gates that keep the next file, which would go otherwise."""


class GateState(NamedTuple):
    """One gate."""

    offset: int
    """It needs the log from here on."""
    held_bytes: int
    """Bytes of files, the one that is written left out, that cannot go on its account."""
    lost_bytes: int
    """Bytes from its offset on that the log no longer has: overruled by the hard limit, or set too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStats:
    """What is gone, and what keeps the rest."""

    deleted_bytes: int
    """All that the log held before its first offset."""
    deleted_file_count: int
    disk_used_percent: int
    next_run_ms: int = 0
    """When the cleaner looks next, in milliseconds since 1970; 0 where none runs."""
    gates: dict[str, GateState] = field(default_factory=dict)


class Retention:
    """The cleaner of a store's writer."""

    def __init__(
        self,
        layout: Layout,
        log: LogWriter,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        words: memoryview,
        config: RetentionConfig,
        checkpoint: Callable[[], int],
        *,
        clock: Callable[[], float] = time.time,
        disk_used: Callable[[Path], int] | None = None,
    ) -> None:
        """`checkpoint` writes one if it can, and says up to where the newest of this run goes."""
        self._layout = layout
        self._log = log
        self._queues = queues
        self._index = index
        self._words = words
        self._config = config
        self._checkpoint = checkpoint
        self._clock = clock
        self._disk_used = disk_used or disk_used_percent
        self._hours = parse_hours(config.delete_hours)
        self.gates = Gates(layout.gates)
        self.needs: dict[str, Callable[[], int]] = {}
        """Gates of this process, asked before each file: from which offset on is the log needed at this moment."""
        self.used_percent = 0
        """Of the disk, when it was last looked at."""
        self.failure: OSError | None = None
        """A sync of the log's folder failed: what is deleted next might leave a gap, so nothing is, until reopened."""
        self._checkpointed = 0
        self._trimmed_to = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqlake-clean", daemon=True)
        words[FIRST] = log.first_offset
        words[NEXT_CLEANING] = 0

    def start(self) -> None:
        if self._config.enabled:
            self._thread.start()

    def _run(self) -> None:
        pause_ms = self._config.interval_ms
        while True:
            self._words[NEXT_CLEANING] = int(self._clock() * 1000) + pause_ms
            if self._stopping.wait(pause_ms / 1000):
                return
            try:
                self.clean()
            except Exception:
                _log.exception("a round of cleaning failed; the next is in %d ms", pause_ms)

    # ---- by age and by disk use

    def clean(self) -> Retained:
        """One round."""
        self._look_at_disk()
        retained = self._delete(self._due_now, self._config.batch_files, obeys_gates=False)
        self._trim_derived()
        return retained

    def _look_at_disk(self) -> None:
        """Measure it, and refuse puts or take them again. Between the two limits nothing changes."""
        self.used_percent = self._disk_used(self._layout.commit_log)
        if self.used_percent > self._config.full_percent:
            if self._log.refusal is None:
                _log.error("%s", self._disk_is_full())
            self._log.pause(self._disk_is_full)
        elif self.used_percent <= self._config.force_percent:
            self._log.resume(self._disk_is_full)

    def _disk_is_full(self) -> DiskAboveLimit:
        limits = self._config.full_percent, self._config.force_percent
        return DiskAboveLimit(self._layout.root, self.used_percent, *limits)

    def _due_now(self, start: int) -> str | None:
        """The rules of the table above."""
        self._look_at_disk()
        if self._config.force and self.used_percent > self._config.force_percent:
            return f"the disk is {self.used_percent} % full"
        now = self._clock()
        if self.used_percent > self._config.used_percent or time.localtime(now).tm_hour in self._hours:
            age_ms = int(now * 1000) - self._log.file_time_ms(start)
            if age_ms >= self._config.reserved_hours * HOUR_MS:
                return f"older than {self._config.reserved_hours} h"
        return None

    # ---- by hand

    def retain(self, rule: Rule) -> Retained:
        """Delete what a rule of `by_hand` names, as far as gates let it."""
        retained = self._delete(rule, len(self._log.files.starts), obeys_gates=True)
        self._trim_derived()
        return retained

    def hold(self, name: str, offset: int) -> int:
        """Keep the log from `offset` on until `release`, over closing and opening; from where on it is really there.

        Another process does the same with `Gates`, and looks at the log's first offset afterwards.
        """
        with self._lock:
            self.gates.hold(name, offset)
            return max(offset, self._log.first_offset)

    def release(self, name: str) -> None:
        self.gates.release(name)

    def offsets(self) -> dict[str, int]:
        """Each gate, of the disk and of this process, and the offset from which on it needs the log."""
        return self.gates.offsets() | {name: need() for name, need in list(self.needs.items())}

    # ---- the deletion itself

    def _delete(self, rule: Rule, most: int, *, obeys_gates: bool) -> Retained:
        began = self._log.first_offset
        held: tuple[str, ...] | None = None
        for _ in range(most):
            with self._lock:
                held = self._delete_oldest(rule, obeys_gates)
            if held is not None or self._stopping.wait(self._config.pause_ms / 1000):
                break
        return _retained(self._log, began, self._log.first_offset, held or ())

    def _delete_oldest(self, rule: Rule, obeys_gates: bool) -> tuple[str, ...] | None:
        """None where the oldest file went, else the gates that keep it: none of them, if something else does."""
        starts = self._log.files.starts
        reason = rule(starts[0]) if len(starts) > 1 else None
        if reason is None or self.failure is not None:
            return ()
        start, end = starts[:2]
        if end > self._checkpointed:
            self._checkpointed = self._checkpoint()
        if end > self._checkpointed:
            _log.warning("%s stays: no checkpoint covers it yet", file_name(start))
            return ()
        gates = self.offsets()
        held = held_by(gates, end)
        if held and (obeys_gates or self.used_percent <= self._config.hard_limit_percent):
            return held
        for name in held:
            _log.error(
                "the disk is %d %% full, more than hard_limit_percent (%d): gate %r is overruled and loses [%d, %d)",
                *(self.used_percent, self._config.hard_limit_percent, name, max(start, gates[name]), end),
            )
        self._words[FIRST] = end  # readers elsewhere learn it before the name is gone
        try:
            self._log.files.delete_before(end)
        except OSError as error:
            if self._log.first_offset == end:  # the name is gone, but for how long?
                self.failure = error
            raise
        finally:
            self._words[FIRST] = self._log.first_offset
        _log.info("deleted %s: %s", file_name(start), reason)
        return None

    def _trim_derived(self) -> None:
        """Queues and index follow the log, once it has moved; after opening, what a crash kept from it."""
        first = self._log.first_offset
        if first == self._trimmed_to or self.failure is not None:
            return
        for _, _, queue in self._queues.each():
            if queue.delete_before(first) and self._stopping.wait(self._config.queue_pause_ms / 1000):
                return
        if self._index is not None:
            self._index.delete_before(first)
        self._trimmed_to = first

    def close(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
            self._words[NEXT_CLEANING] = 0


def by_hand(
    log: CommitLog, *, older_than_ms: int | None, keep_bytes: int | None, before_offset: int | None, now_ms: int
) -> Rule:
    """A rule of the conditions that are given: a file goes where all of them let it."""

    def rule(start: int) -> str | None:
        end = start + log.file_size
        if before_offset is not None and end > before_offset:
            return None
        if keep_bytes is not None and log.committed - end < keep_bytes:
            return None
        if older_than_ms is not None and now_ms - log.file_time_ms(start) < older_than_ms:
            return None
        return "by hand"

    return rule


def would_go(log: CommitLog, gates: dict[str, int], rule: Rule) -> Retained:
    """What `retain` would delete; for readers too."""
    first = log.first_offset
    held: tuple[str, ...] = ()
    for start in log.files.starts[:-1]:
        if rule(start) is None or (held := held_by(gates, start + log.file_size)):
            break
        first = start + log.file_size
    return _retained(log, log.first_offset, first, held)


def held_by(gates: dict[str, int], end: int) -> tuple[str, ...]:
    """The gates that need something before `end`."""
    return tuple(name for name, offset in gates.items() if offset < end)


def _retained(log: CommitLog, began: int, first: int, held: tuple[str, ...]) -> Retained:
    return Retained(first, (first - began) // log.file_size, first - began, held)


def disk_used_percent(path: Path) -> int:
    """How full the file system of a path is for us, rounded up."""
    state = os.statvfs(path)
    used = state.f_blocks - state.f_bfree
    return -(-used * 100 // max(1, used + state.f_bavail))


def retention_stats(
    layout: Layout, log: CommitLog, next_run_ms: int, disk_percent: int | None = None
) -> RetentionStats:
    """What any process can see: the files, the gates, the disk."""
    starts, first = log.files.starts, log.first_offset
    last = starts[-1] if starts else 0
    gates = {
        name: GateState(
            offset,
            held_bytes=max(0, last - max(first, offset - offset % log.file_size)),
            lost_bytes=max(0, first - offset),
        )
        for name, offset in Gates(layout.gates).offsets().items()
    }
    return RetentionStats(
        deleted_bytes=first,
        deleted_file_count=first // log.file_size,
        disk_used_percent=disk_used_percent(layout.commit_log) if disk_percent is None else disk_percent,
        next_run_ms=next_run_ms,
        gates=gates,
    )
