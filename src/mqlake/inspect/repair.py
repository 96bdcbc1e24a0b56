"""Repair a damaged store, for mqlake and for RocketMQ.

The log first: every file gets its right name and size, every range without a record becomes one or more filler records
(or an end-of-file marker if it reaches the end of its file), and bytes after the end become zeros. Then the store is
opened as after an unclean stop, which rebuilds everything derived.

A block that differs from its seal and cannot be healed is accepted as it is: its seal, which tells that, is kept in the
backup and dropped, and the block is sealed anew at the end. That is a step of the plan, because from then on nothing
shows that its records may be damaged.

RocketMQ skips a filler in recovery, and enters it into no queue and no index (`fillers`). The queue offset of a lost
message is not reused: its entry becomes a filler.

`abort` exists from the first change to the last, and everything is saved before it is overwritten or removed
(`repair_backup`). If a repair is interrupted at any moment, run it again: it starts from what it finds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.config_json import MAX_CONFIG_BYTES
from mqlake.codec.seal_file import BLOCK_BYTES, MAX_SIZE
from mqlake.config import RetentionConfig, StoreConfig
from mqlake.errors import NotAStore, StoreLocked, typed_errors
from mqlake.files.kinds import WrongKind, wrong_kinds
from mqlake.files.layout import Layout
from mqlake.files.lock import StoreLock, writer_of
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.names import file_name
from mqlake.files.place import home_expanded
from mqlake.files.small_files import read_small_file, replace_file
from mqlake.inspect.check import CheckReport, Examination, Progress
from mqlake.inspect.check_files import parsed
from mqlake.inspect.check_seals import records_text
from mqlake.inspect.fillers import closing, fillers
from mqlake.inspect.findings import Severity
from mqlake.inspect.heal import HealReport, heal
from mqlake.inspect.heal_source import Source
from mqlake.inspect.log_map import Gap
from mqlake.inspect.repair_backup import Backup, copy_store
from mqlake.inspect.survey import MOVED, FoundFile
from mqlake.kernel import checksum_blocks
from mqlake.logs.commit_log import MARKER, MARKER_MAGIC
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.seals import Range, Seals
from mqlake.logs.topic_table import can_be_folder
from mqlake.store.index_numbers import require_known
from mqlake.store.job import open_job
from mqlake.store.opening import find_store

MAX_LOST = 1 << 20
"""If a queue seems to have lost more messages than this at its end, a queue offset is damaged."""


class Action(NamedTuple):
    """One step of a repair."""

    what: str
    file: str
    offset: int | None
    length: int | None
    why: str


class RepairReport(NamedTuple):
    """What was found, what was done, and what remains."""

    path: Path
    before: CheckReport
    actions: tuple[Action, ...]
    done: bool
    backup: Path | None
    after: CheckReport
    healed: HealReport | None = None
    """What was healed from another copy, if one was named."""
    accepted_count: int = 0
    """Records in blocks that differ from their seals and were accepted as they are: nothing proves them."""


Confirm = Callable[[CheckReport, list[Action]], bool]


def repair(
    path: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    config: StoreConfig | None = None,
    confirm: Confirm | None = None,
    progress: Progress | None = None,
    source: Source | None = None,
) -> RepairReport:
    """Repair a store in place, or a copy of it; raise StoreLocked if it is live.

    `confirm` gets the findings and the plan before anything is changed. Without it, everything is done. With a
    `source`, damage of the log is healed from there; what cannot be healed stays as it is, and the report says why.
    """
    layout = find_store(path, read_only=True, create=False)
    writer = writer_of(layout.lock)
    if writer:
        raise StoreLocked(layout.root, writer)
    if to is not None:
        layout = _copy(layout, home_expanded(to))
    if source is not None:
        return _heal(layout, config or StoreConfig(), source, confirm, progress)
    wrong = wrong_kinds(layout)
    can_be_locked = layout.lock not in [each.path for each in wrong]
    with ExitStack() as held:
        if can_be_locked:
            held.callback(StoreLock(layout.lock).release)
        work = _Repair(layout, config or StoreConfig(), progress, wrong)
        before, actions = work.examined.report(), work.plan()
        if not actions or (confirm is not None and not confirm(before, actions)):
            return RepairReport(layout.root, before, tuple(actions), not actions, None, before)
        with typed_errors(layout.root, "repaired"):
            work.move_wrong_kinds()
            if not can_be_locked:  # until now: nothing may be changed before it is confirmed
                held.callback(StoreLock(layout.lock).release)
            work.accept_blocks()
            work.mend_log()
            work.mend_derived()
            work.mend_config()
    work.rebuild()
    after = work.mend_entries()
    backup, accepted = work.backup.folder, work.accepted_count
    return RepairReport(layout.root, before, tuple(actions), True, backup, after, accepted_count=accepted)


def _copy(layout: Layout, target: Path) -> Layout:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise NotAStore(target, "it exists already", "name an empty or a new folder for the copy")
    copy_store(layout.root, target)
    return Layout(target)


def _heal(
    layout: Layout, config: StoreConfig, source: Source, confirm: Confirm | None, progress: Progress | None
) -> RepairReport:
    """Heal a closed store: make the files that it lacks, open it, heal, and let what is derived follow."""
    with ExitStack() as held:
        held.callback(StoreLock(layout.lock).release)
        examined = Examination(layout, config, progress, locked_here=True).walk()
        before, actions = examined.report(), _heal_plan(examined)
        if not actions or (confirm is not None and not confirm(before, actions)):
            return RepairReport(layout.root, before, tuple(actions), not actions, None, before)
        _make_whole_files(examined)
    settings = replace(config, retention=RetentionConfig(enabled=False))
    healed = _heal_opened(layout, settings, source, progress)
    after = Examination(layout, config).walk().report()
    if after.severity == Severity.WARNING:  # the log is whole, what is derived is not
        after = repair(layout.root, config=config).after
    return RepairReport(layout.root, before, tuple(actions), True, healed.backup, after, healed)


def _heal_plan(examined: Examination) -> list[Action]:
    """Return a step for each range that is to be healed."""
    log = examined.log
    gaps = [(gap.start, gap.end, "no whole record") for gap in log.gaps]
    blocks = [(start, end, "not as it was sealed") for start, end in examined.seals.broken]
    return [
        Action("heal", f"commitlog/{file_name(start - start % log.file_size)}", start % log.file_size, end - start, why)
        for start, end, why in sorted([*gaps, *blocks])
    ]


def _make_whole_files(examined: Examination) -> None:
    """Give the log the files that it lacks, and short ones their size, filled with zeros: they are damage to heal."""
    layout, log = examined.layout, examined.log
    for start in {gap.start - gap.start % log.file_size for gap in log.gaps}:
        path = layout.commit_log / file_name(start)
        if not path.exists():
            MappedFile.create(path, start, log.file_size, reserve=log.file_size, scratch=layout.scratch)
        elif path.stat().st_size < log.file_size:
            os.truncate(path, log.file_size)
    sync_directory(layout.commit_log)


def _heal_opened(layout: Layout, config: StoreConfig, source: Source, progress: Progress | None) -> HealReport:
    with open_job(layout.root, config) as store:
        healed = heal(store, source, progress=progress)
    if healed.rebuilds_index:
        with open_job(layout.root, config):
            pass  # opening rebuilds it
    return healed


class _Repair:
    """One repair: one check, then steps in an order that may be interrupted anywhere."""

    def __init__(self, layout: Layout, config: StoreConfig, progress: Progress | None, wrong: list[WrongKind]) -> None:
        """`wrong`: entries of a wrong kind. The check takes them for missing, which they are once they are moved."""
        self._wrong = wrong
        self.layout = layout
        self.backup = Backup(layout)
        self.examined = Examination(layout, config, progress, locked_here=True).walk()
        # When the store is opened, there may be no file left that shows the sizes. A repair deletes no old files.
        self.config = replace(
            config,
            retention=RetentionConfig(enabled=False),
            commit_log=replace(config.commit_log, file_size_bytes=self.examined.file_size),
            consume_queue=replace(config.consume_queue, file_size_bytes=self.examined.queue_size),
            index=replace(
                config.index,
                slot_count=self.examined.index_numbers.slot_count,
                entry_count=self.examined.index_numbers.entry_count,
            ),
        )
        self._log = self.examined.log
        self._size = self._log.file_size
        sick = [row for row in self.examined.findings.rows() if row.severity > Severity.NOTE]
        if sick and config.index.enabled:
            require_known(layout, self.examined.index_numbers)
        # What seals show is accepted; nothing of the store itself changes.
        self._touches_store = layout.abort.exists() or any(
            not row.what.startswith(("config-", "seal-")) for row in sick
        )

    # ---- the plan

    def plan(self) -> list[Action]:
        """Return the steps, in order."""
        actions = [*self._plan_for_files(), *self._plan_for_bytes(), *self._plan_for_blocks()]
        if self._touches_store:
            actions.append(Action("rebuild", "", None, None, "queues, index and checkpoints, from the log"))
        for path in self.examined.seals.unusable:
            actions.append(self._action("move-away", path, None, None, "it is sealed again when the store is opened"))
        for path in self.examined.broken_json:
            usable = parsed(_bak(path)) is not None
            why = "from its .bak" if usable else "it cannot be read, and no .bak can"
            actions.append(self._action("restore" if usable else "move-away", path, None, None, why))
        for patch in self.examined.queues.patches:
            told = patch.file, patch.position, len(patch.data)
            actions.append(self._action("mend-entry", *told, "of a lost record"))
        return actions

    def _plan_for_files(self) -> Iterator[Action]:
        for path, found, expected in self._wrong:
            yield self._action("move-away", path, None, None, f"{found} instead of {expected}")
        for each, why in self._aside():
            yield self._action("move-away", each.path, None, each.size, why)
        for start, path in self.examined.placement.misnamed.items():
            yield self._action("rename", path, None, None, f"to {file_name(start)}: its records say so")
        for start, file in self._kept():
            if file.size != self._size:
                what = "pad" if file.size < self._size else "cut"
                yield self._action(what, self._path(start), min(file.size, self._size), None, "file size")

    def _plan_for_bytes(self) -> Iterator[Action]:
        for gap in self._log.gaps:
            if gap.start - gap.start % self._size not in self._log.files:
                yield self._action("make-file", self._path(gap.start), 0, self._size, "it is missing")
            what = "close-file" if self._reaches_end(gap) else "fill"
            told = self._path(gap.start), gap.start % self._size, gap.end - gap.start
            yield self._action(what, *told, "no whole record")
        for offset, _ in self._log.markers:
            yield self._action("close-file", self._path(offset), offset % self._size, 8, "wrong marker")
        for fix in self.examined.queues.fixes:
            told = self._path(fix.offset), fix.offset % self._size, len(fix.data)
            yield self._action("mend-header", *told, fix.expected)
        for port in self._log.bad_ports:
            yield self._action("mend-host", self._path(port.at), port.at % self._size, 2, f"{port.host} has no port")
        if self._log.tail_is_dirty():
            end = self._log.end
            yield self._action("zero-tail", self._path(end), end % self._size, None, "after the end of the log")

    def _plan_for_blocks(self) -> Iterator[Action]:
        for (start, end), records in self._accepted:
            told = self._path(start), start % self._size, end - start
            yield self._action(
                "accept", *told, f"{records_text(records)}, unproven: heal them first (--from) if there is a copy"
            )

    @cached_property
    def _accepted(self) -> list[tuple[Range, list[int]]]:
        """Blocks that differ from their seals and still will when the log is mended, with their records of now."""
        seals, writes = self.examined.seals, self._writes()
        accepted = []
        for start, end in seals.broken:
            file, sealed = self._log.files[start - start % self._size], seals.seals.sums_at(start)
            data = bytearray(file.pages[start - file.start : end - file.start])
            for offset, mended in writes:
                low, high = max(start, offset), min(end, offset + len(mended))
                if low < high:
                    data[low - start : high - start] = mended[low - offset : high - offset]
            if sealed is None or checksum_blocks(data, 0, len(data), BLOCK_BYTES) != sealed[1]:
                accepted.append(((start, end), seals.records_in((start, end))))
        return accepted

    @property
    def accepted_count(self) -> int:
        """Return how many records lie in blocks that are accepted."""
        return len({record for _, records in self._accepted for record in records})

    def _action(self, what: str, path: Path, offset: int | None, length: int | None, why: str) -> Action:
        return Action(what, path.relative_to(self.layout.root).as_posix(), offset, length, why)

    def _path(self, offset: int) -> Path:
        return self.layout.commit_log / file_name(offset - offset % self._size)

    def _reaches_end(self, gap: Gap) -> bool:
        return gap.end % self._size == 0 and gap.end != self._log.end

    def _kept(self) -> list[tuple[int, MappedFile]]:
        """Return the log files that stay."""
        return [(start, file) for start, file in sorted(self._log.files.items()) if not self._is_after_end(start, file)]

    def _is_after_end(self, start: int, file: MappedFile) -> bool:
        """Return whether a file is entirely after the end of the log and not empty."""
        return start >= self._log.end and start > self._log.first and any(file.data_ranges(0))

    def _aside(self) -> list[tuple[FoundFile, str]]:
        after_end = [
            (FoundFile(file.path, start, file.size), "after the end of the log")
            for start, file in sorted(self._log.files.items())
            if self._is_after_end(start, file)
        ]
        aside = self.examined.placement.aside + after_end
        moved = {each.path for each in self._wrong}
        return [(each, why) for each, why in aside if each.path not in moved]

    def move_wrong_kinds(self) -> None:
        for each in self._wrong:
            self.backup.move_wrong_kind(each.path)

    # ---- the log

    def accept_blocks(self) -> None:
        """Drop the seals that their blocks do not fit, once they are in the backup."""
        broken = self.examined.seals.broken
        seals = Seals(self.layout, self._size, writable=True)
        for start in sorted({start - start % self._size for start, _ in broken}):
            path = seals.folder / file_name(start)
            self.backup.keep_range(path, 0, read_small_file(path, MAX_SIZE))
        self.backup.seal()
        seals.forget(broken)

    def mend_log(self) -> None:
        if not self._touches_store:
            return
        self.layout.abort.touch()
        self.layout.commit_log.mkdir(exist_ok=True)
        sync_directory(self.layout.root)
        writes = self._writes()
        for offset, data in writes:
            self._keep(offset, len(data))
        self._keep_tail()
        self.backup.seal()
        seals = Seals(self.layout, self._size, writable=True)
        seals.cut(min(self._log.end, self.examined.seals.fitting_end))
        seals.forget([(offset, offset + len(data)) for offset, data in writes])
        for each, _ in self._aside():
            self.backup.move(each.path)
        self._rename()
        for start in {*dict(self._kept()), *(gap.start - gap.start % self._size for gap in self._log.gaps)}:
            self._mend_file(start, [(offset, data) for offset, data in writes if 0 <= offset - start < self._size])

    def _writes(self) -> list[tuple[int, bytes]]:
        """Yield what the log must hold instead of its present bytes."""
        writes: list[tuple[int, bytes]] = []
        now_ms = int(time.time() * 1000)
        for gap in self._log.gaps:
            # A record without a time counts as torn. If the log has no record left, no time is known.
            timestamp = gap.timestamp or self._log.last_timestamp or now_ms
            if self._reaches_end(gap):
                writes += closing(gap.start, gap.end, timestamp)
            else:
                writes += fillers(gap.start, gap.end, timestamp)
        writes += [(offset, MARKER.pack(-offset % self._size, MARKER_MAGIC)) for offset, _ in self._log.markers]
        writes += [(port.at, bytes(2)) for port in self._log.bad_ports]  # the half of a port field that is always zero
        return writes + [(fix.offset, fix.data) for fix in self.examined.queues.fixes]

    def _keep(self, offset: int, size: int) -> None:
        file = self._log.files.get(offset - offset % self._size)
        if file is not None:
            at = offset - file.start
            data = file.pages[at : at + size]
            if any(data):
                self.backup.keep_range(file.path, at, data)

    def _keep_tail(self) -> None:
        for start, file in self._kept():
            position = max(0, min(self._log.end - start, self._size))
            for at, stop in file.data_ranges(position):
                if any(file.pages[at:stop]):
                    self.backup.keep_range(file.path, at, file.pages[at:stop])

    def _rename(self) -> None:
        """Rename through a temporary name, because two files may have swapped names."""
        misnamed = self.examined.placement.misnamed
        for start, path in misnamed.items():
            path.rename(self._path(start).with_name(file_name(start) + MOVED))
        for start in misnamed:
            self._path(start).with_name(file_name(start) + MOVED).rename(self._path(start))
        sync_directory(self.layout.commit_log)

    def _mend_file(self, start: int, writes: list[tuple[int, bytes]]) -> None:
        path = self._path(start)
        if not path.exists():
            MappedFile.create(path, start, self._size, reserve=self._size, scratch=self.layout.scratch)
        elif path.stat().st_size != self._size:
            os.truncate(path, self._size)
        file = MappedFile.open(path, start, self._size, writable=True)
        for offset, data in writes:
            file.write_at(offset - start, data)
        if start + self._size > self._log.end:
            file.zero_from(max(0, self._log.end - start))
        file.sync()
        sync_directory(path.parent)

    # ---- derived files, and the rest

    def mend_derived(self) -> None:
        """Remove what must be rebuilt. A queue without records in the log keeps its queue offsets."""
        if not self._touches_store:
            return
        queues = self.examined.queues
        for (topic, queue_id), queue in queues.queues.items():
            wrong = (topic, queue_id) in queues.wrong or bool(self._log.gaps)
            if queue.known and wrong and (queue.seen or not self._log.runs or (topic, queue_id) in queues.refused):
                self.backup.move(queue.directory)
        self.examined.batch_queues.rebuild(self.backup)
        for path in sorted(self.layout.index.glob("*")):
            self.backup.move(path)
        for path in (self.layout.own_checkpoint, self.layout.positions, self.layout.scars):
            if path.exists():
                self.backup.move(path)
        if self.layout.checkpoint.exists():
            self.backup.move(self.layout.checkpoint)

    def mend_config(self) -> None:
        for path in self.examined.seals.unusable:
            self.backup.move(path)
        for path in self.examined.broken_json:
            if path.exists():
                self.backup.move(path)
            if parsed(_bak(path)) is not None:
                replace_file(path, read_small_file(_bak(path), MAX_CONFIG_BYTES), self.layout.scratch)

    def rebuild(self) -> None:
        """Open the store as after an unclean stop, continue its queues at their old ends, and seal what was changed."""
        changed = list(self.examined.seals.broken)
        if not self._touches_store and not changed:
            return
        with open_job(self.layout.root, self.config) as store:
            if self._touches_store:
                store.dispatcher.run(lambda: self._continue_queues(store.queues))
                changed += [(offset, offset + len(data)) for offset, data in self._writes()]
            with store.sealer.lock:
                for block in changed:
                    store.sealer.healed(*block)
                    store.sealer.reseal(*block)

    def _continue_queues(self, queues: ConsumeQueues) -> None:
        for topic, queue_id, end in self._ends():
            queues.fill_to(topic, queue_id, end, self._log.end)

    def _ends(self) -> Iterator[tuple[str, int, int]]:
        """Return the old ends of queues that lost their last messages: those queue offsets must not be reused."""
        checkpoint = self._log.ends.checkpoint
        ends = {(t, i): end for t, of in checkpoint.queue_ends.items() for i, end in of.items()} if checkpoint else {}
        for (topic, queue_id), queue in self.examined.queues.queues.items():
            end = max(queue.lost_end, ends.get((topic, queue_id), 0))
            if queue.seen and queue.next < end <= queue.next + MAX_LOST and can_be_folder(topic) and queue_id >= 0:
                yield topic, queue_id, end

    def mend_entries(self) -> CheckReport:
        """Write the entries that the log does not determine, then check again."""
        examined = Examination(self.layout, self.config).walk()
        patches = examined.queues.patches
        if not patches:
            return examined.report()
        lock = StoreLock(self.layout.lock)
        try:
            for file, position, data in patches:
                with file.open("rb") as queue:
                    queue.seek(position)
                    self.backup.keep_range(file, position, queue.read(len(data)))
            self.backup.seal()
            for file, position, data in patches:
                with file.open("r+b") as queue:
                    queue.seek(position)
                    queue.write(data)
                    queue.flush()
                    os.fsync(queue.fileno())
        finally:
            lock.release()
        return Examination(self.layout, self.config).walk().report()


def _bak(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")
