"""Retention: which files of the log may be deleted, and when.

Every ten seconds the cleaner looks at the age of the oldest file and at the disk:

    disk use          deleted                                                        puts
    up to 75 %        files older than 72 h, at the hours of `deleteWhen`            accepted
    above 75 %        files older than 72 h, at any hour                             accepted
    above 85 %        the oldest files of any age, until use is 85 % or less         accepted
    above 90 %        the same, and gates are overruled (`hard_limit_percent`)       refused, until it is 85 % or less

Disk use is RocketMQ's: used / (used + available), in whole percent, rounded up. A round deletes at most ten files, with
100 ms between them, and measures the disk again before each. `retain` deletes by hand and obeys gates. Nothing is
deleted by age while the clock is not plausible (store/clock.py).

Invariant: files are deleted oldest first, never the one being written, and only after a checkpoint of this run covers
them: they are durable and dispatched, and their queues are on disk, so a queue whose messages are all deleted still
knows its next queue offset after a power cut. The removal of each name is synced before the next file is touched, and
queues and index are trimmed only after that. So a crash leaves a log without a gap, and queues that begin no later than
the log.

A reader of a deleted file keeps valid bytes until it releases its last view; the blocks are freed after that.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mqlake.config import RetentionConfig, parse_hours
from mqlake.errors import DiskAboveLimit, InvalidConfig, NotPermitted
from mqlake.files.layout import Layout
from mqlake.files.names import file_name
from mqlake.files.positions import FIRST, NEXT_CLEANING
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.log_writer import LogWriter
from mqlake.runtime.flag import Flag
from mqlake.runtime.locks import make_lock
from mqlake.runtime.shield import Shield
from mqlake.runtime.workers import Worker, Workers
from mqlake.store.clock import ClockJudge
from mqlake.store.gates import Gates

HOUR_MS = 3_600_000
FULL_DISK = "a full disk"
"""The reason under which the log refuses puts."""
Rule = Callable[[int], str | None]
"""Returns why the file that starts at this offset is to be deleted; None if it stays."""
_log = logging.getLogger(__name__)


class Retained(NamedTuple):
    """What was deleted, or would be."""

    first_offset: int
    """Where the log begins after the deletion."""
    file_count: int
    size_bytes: int
    held_by: tuple[str, ...] = ()
    """The gates that keep the next file, which would be deleted otherwise."""


class GateState(NamedTuple):
    """One gate."""

    offset: int
    """The gate needs the log from here on."""
    held_bytes: int
    """Bytes of files that the gate keeps from being deleted, without the file being written."""
    lost_bytes: int
    """Bytes from its offset on that the log no longer has: the hard limit overruled it, or it was set too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStats:
    """What was deleted, and what is held."""

    deleted_bytes: int
    """Everything that the log held before its first offset."""
    deleted_file_count: int
    disk_used_percent: int
    next_run_ms: int = 0
    """When the cleaner runs next, in milliseconds since 1970; 0 if none runs."""
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
        workers: Workers,
        shield: Shield,
        *,
        clock: Callable[[], float] = time.time,
        judge: ClockJudge | None = None,
        disk_used: Callable[[Path], int] | None = None,
    ) -> None:
        """`checkpoint` writes a checkpoint if it can, and returns the offset that the newest one of this run covers.
        `shield` keeps signals out of a deletion.
        """
        self._layout = layout
        self._log = log
        self._queues = queues
        self._index = index
        self._words = words
        self._config = config
        self._checkpoint = checkpoint
        self._shield = shield
        self._clock = clock
        self._judge = judge or ClockJudge(layout.clock, layout.scratch, wall=clock)
        self._disk_used = disk_used or disk_used_percent
        self._hours = parse_hours(config.delete_hours)
        self.gates = Gates(layout.gates)
        self.needs: dict[str, Callable[[], int]] = {}
        """Gates of this process, called before each deletion: each returns the offset from which it needs the log."""
        self.used_percent = 0
        """The disk use when it was last measured."""
        self.failure: OSError | None = None
        """A sync of the log's folder failed. Another deletion could leave a gap, so none follows until reopened."""
        self._checkpointed = 0
        self._trimmed_to = 0
        self._lock = make_lock("retention")
        self._trimming = make_lock("retention.trim")
        self._stopping = Flag()
        self._cleaned_at = time.monotonic()
        self._worker: Worker = workers.add("retention", self._work, interrupt=self._stopping.set, keeps_trying=True)
        words[FIRST] = log.first_offset
        words[NEXT_CLEANING] = 0

    def start(self) -> None:
        if self._config.enabled:
            self._worker.start()

    def _work(self) -> float:
        pause_s = self._config.interval_ms / 1000
        left_s = self._cleaned_at + pause_s - time.monotonic()
        if left_s <= 0:
            self.clean()
            self._cleaned_at, left_s = time.monotonic(), pause_s
        self._words[NEXT_CLEANING] = int((self._clock() + left_s) * 1000)
        return left_s

    # ---- by age and by disk use

    def clean(self) -> Retained:
        """Run one round: delete what is due by age or disk use, then trim queues and index."""
        self._look_at_disk()
        retained = self._delete(self._due_now, self._config.batch_files, obeys_gates=False)
        self._trim_derived()
        return retained

    def _look_at_disk(self) -> None:
        """Measure disk use, and refuse or accept puts. Between the two limits nothing changes."""
        self.used_percent = self._disk_used(self._layout.commit_log)
        if self.used_percent > self._config.full_percent:
            if not self._log.is_refused(FULL_DISK):
                _log.error("%s", self._disk_is_full())
                self._log.refuse(FULL_DISK, self._disk_is_full)
        elif self.used_percent <= self._config.force_percent and self._log.is_refused(FULL_DISK):
            self._log.allow(FULL_DISK)

    def _disk_is_full(self) -> DiskAboveLimit:
        limits = self._config.full_percent, self._config.force_percent
        return DiskAboveLimit(self._layout.root, self.used_percent, *limits)

    def _due_now(self, start: int) -> str | None:
        """Apply the rules of the table above to the file that starts at `start`."""
        self._look_at_disk()
        if self._config.force and self.used_percent > self._config.force_percent:
            return f"the disk is {self.used_percent} % full"
        now = self._clock()
        if self._judge.jump_s():
            return None
        if self.used_percent > self._config.used_percent or time.localtime(now).tm_hour in self._hours:
            age_ms = int(now * 1000) - self._log.file_time_ms(start)
            if age_ms >= self._config.reserved_hours * HOUR_MS:
                return f"older than {self._config.reserved_hours} h"
        return None

    # ---- by hand

    def retain(self, rule: Rule, *, by_age: bool = False) -> Retained:
        """Delete what a rule of `by_hand` names, as far as gates allow. A rule `by_age` needs a plausible clock."""
        if by_age:
            self.require_plausible_clock()
        retained = self._delete(rule, len(self._log.files.starts), obeys_gates=True)
        self._trim_derived()
        return retained

    def hold(self, name: str, offset: int) -> int:
        """Keep the log from `offset` on until `release`, even across reopening. Return from where the log still exists.

        Another process uses `Gates` and reads the log's first offset afterwards.
        """
        with self._lock:
            self.gates.hold(name, offset)
            return max(offset, self._log.first_offset)

    def release(self, name: str) -> None:
        self.gates.release(name)

    def offsets(self) -> dict[str, int]:
        """Return each gate, on disk and of this process, and the offset from which it needs the log."""
        return self.gates.offsets() | {name: need() for name, need in list(self.needs.items())}

    # ---- the deletion itself

    def _delete(self, rule: Rule, most: int, *, obeys_gates: bool) -> Retained:
        began = self._log.first_offset
        held: tuple[str, ...] | None = None

        def delete_one() -> None:
            nonlocal held
            with self._lock:
                held = self._delete_oldest(rule, obeys_gates)

        for _ in range(most):
            self._shield.run(delete_one)
            if held is not None or self._stopping.wait(self._config.pause_ms / 1000):
                break
        return _retained(self._log, began, self._log.first_offset, held or ())

    def _delete_oldest(self, rule: Rule, obeys_gates: bool) -> tuple[str, ...] | None:
        """Delete the oldest file and return None; if it stays, return the gates that hold it (empty if none does)."""
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
        self._words[FIRST] = end  # followers must see it before the name is removed
        try:
            self._log.files.delete_before(end)
        except OSError as error:
            if self._log.first_offset == end:  # the name is removed but not synced: a power cut could restore it
                self.failure = error
            raise
        finally:
            self._words[FIRST] = self._log.first_offset
        _log.info("deleted %s: %s", file_name(start), reason)
        return None

    def _trim_derived(self) -> None:
        """Trim queues and index to the log's first offset. After opening, this finishes what a crash interrupted.

        One thread at a time for each queue: the worker and a caller of `retain` together would leave files between
        those they delete, and so would a signal in the middle.
        """
        first = self._log.first_offset
        if first in (0, self._trimmed_to) or self.failure is not None:
            return
        for _, _, queue in self._queues.each():
            if self._trim(queue, first) and self._stopping.wait(self._config.queue_pause_ms / 1000):
                return
        if self._index is not None:
            self._trim(self._index, first)
        self._trimmed_to = first

    def _trim(self, derived: ConsumeQueue | KeyIndex, first: int) -> bool:
        """Delete files before the log's first offset; return whether there were any."""
        deleted: list[int] = []

        def trim() -> None:
            with self._trimming:
                deleted.append(derived.delete_before(first))

        self._shield.run(trim)
        return any(deleted)

    def require_plausible_clock(self) -> None:
        """Raise NotPermitted if the clock jumped: an age that it gives is wrong."""
        jump_s = self._judge.jump_s()
        if jump_s:
            raise NotPermitted(
                "retain by age",
                f"the clock jumped by {jump_s:.0f} s",
                "check it (date); delete by keep_bytes or before_offset, or wait an hour if it is right",
            )

    def close(self) -> None:
        self._worker.stop()
        self._judge.save()
        self._words[NEXT_CLEANING] = 0


def by_hand(log: CommitLog, *, older_than_ms: int | None, keep_bytes: int | None, before_offset: int | None) -> Rule:
    """Return a rule that deletes a file if all given conditions allow it."""
    conditions = {"older_than_ms": older_than_ms, "keep_bytes": keep_bytes, "before_offset": before_offset}
    for name, value in conditions.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise InvalidConfig(name, value, "must be a whole number, 0 or more")
    now_ms = time.time_ns() // 1_000_000

    def rule(start: int) -> str | None:
        end = start + log.file_size
        if before_offset is not None and end > before_offset:
            return None
        if keep_bytes is not None and log.ends.visible - end < keep_bytes:
            return None
        if older_than_ms is not None and now_ms - log.file_time_ms(start) < older_than_ms:
            return None
        return "by hand"

    return rule


def would_go(log: CommitLog, gates: dict[str, int], rule: Rule) -> Retained:
    """Return what `retain` would delete. Changes nothing, so followers can call it too."""
    first = log.first_offset
    held: tuple[str, ...] = ()
    for start in log.files.starts[:-1]:
        if rule(start) is None or (held := held_by(gates, start + log.file_size)):
            break
        first = start + log.file_size
    return _retained(log, log.first_offset, first, held)


def held_by(gates: dict[str, int], end: int) -> tuple[str, ...]:
    """Return the gates that need something before `end`."""
    return tuple(name for name, offset in gates.items() if offset < end)


def _retained(log: CommitLog, began: int, first: int, held: tuple[str, ...]) -> Retained:
    return Retained(first, (first - began) // log.file_size, first - began, held)


def disk_used_percent(path: Path) -> int:
    """Return how full the file system of a path is for this user, in percent, rounded up.

    Of its parent's if it does not exist: a store that has lost its log can still be looked at.
    """
    try:
        state = os.statvfs(path)
    except FileNotFoundError:
        state = os.statvfs(path.parent)
    used = state.f_blocks - state.f_bfree
    return -(-used * 100 // max(1, used + state.f_bavail))


def retention_stats(
    layout: Layout, log: CommitLog, next_run_ms: int, disk_percent: int | None = None
) -> RetentionStats:
    """Return what any process can see: the files, the gates, the disk."""
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
