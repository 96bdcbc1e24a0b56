"""Makes a broken store whole again, for mqlake and for RocketMQ.

The log first: every file gets its name and its size, every range without a record becomes one or more filler records
(or an end-of-file marker where it reaches the end of its file), what is behind the end becomes zeroes. Then everything
derived is built again by opening the store as after an unclean stop.

RocketMQ steps over a filler in recovery, and enters it into no queue and no index (`fillers`). A message that was lost
leaves its number behind, as an entry of no message.

`abort` is there from the first change to the last, and everything overwritten or taken away is kept before (`backup`).
Cut short at any moment, a repair is simply run again: it looks at what it finds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mqlake.config import StoreConfig
from mqlake.errors import NotAStore, StoreLocked
from mqlake.files.layout import Layout
from mqlake.files.lock import StoreLock, writer_of
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.names import file_name
from mqlake.files.small_files import replace_file
from mqlake.logs.commit_log import MARKER, MARKER_MAGIC
from mqlake.store.backup import Backup, copy_store
from mqlake.store.check import CheckReport, Examination, Progress
from mqlake.store.check_files import parsed
from mqlake.store.fillers import closing, fillers
from mqlake.store.findings import Severity
from mqlake.store.log_map import Gap
from mqlake.store.message_store import MessageStore
from mqlake.store.opening import find_store
from mqlake.store.survey import MOVED, FoundFile


class Action(NamedTuple):
    """One thing that repair does."""

    what: str
    file: str
    offset: int | None
    length: int | None
    why: str


class RepairReport(NamedTuple):
    """What was wrong, what was done, what is left."""

    path: Path
    before: CheckReport
    actions: tuple[Action, ...]
    done: bool
    backup: Path | None
    after: CheckReport


Confirm = Callable[[CheckReport, list[Action]], bool]


def repair(
    path: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    config: StoreConfig | None = None,
    confirm: Confirm | None = None,
    progress: Progress | None = None,
) -> RepairReport:
    """Repair a store in place, or a copy of it; StoreLocked where it is live.

    `confirm` sees what was found and what is planned before anything is changed; without it all is done.
    """
    layout = find_store(path, read_only=True, create=False)
    writer = writer_of(layout.lock)
    if writer:
        raise StoreLocked(layout.root, writer)
    if to is not None:
        layout = _copy(layout, Path(to))
    lock = StoreLock(layout.lock)
    try:
        work = _Repair(layout, config or StoreConfig(), progress)
        before, actions = work.examined.report(), work.plan()
        if not actions or (confirm is not None and not confirm(before, actions)):
            return RepairReport(layout.root, before, tuple(actions), not actions, None, before)
        work.mend_log()
        work.mend_derived()
        work.mend_config()
    finally:
        lock.release()
    work.rebuild()
    after = work.mend_entries()
    return RepairReport(layout.root, before, tuple(actions), True, work.backup.folder, after)


def _copy(layout: Layout, target: Path) -> Layout:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise NotAStore(target, "it is there already", "name an empty or a new folder for the copy")
    copy_store(layout.root, target)
    return Layout(target)


class _Repair:
    """One repair: looked at once, done in an order that can be cut short anywhere."""

    def __init__(self, layout: Layout, config: StoreConfig, progress: Progress | None) -> None:
        self.layout = layout
        self.backup = Backup(layout)
        self.examined = Examination(layout, config, progress, locked_here=True).walk()
        # No file may be left to learn the sizes from when the store is opened.
        self.config = replace(
            config,
            commit_log=replace(config.commit_log, file_size_bytes=self.examined.file_size),
            consume_queue=replace(config.consume_queue, file_size_bytes=self.examined.queue_size),
        )
        self._log = self.examined.log
        self._size = self._log.file_size
        sick = [row for row in self.examined.findings.rows() if row.severity > Severity.NOTE]
        self._touches_store = layout.abort.exists() or any(not row.what.startswith("config-") for row in sick)

    # ---- the plan

    def plan(self) -> list[Action]:
        """What will be done, in order."""
        actions = [*self._plan_for_files(), *self._plan_for_bytes()]
        if self._touches_store:
            actions.append(Action("rebuild", "", None, None, "queues, index and checkpoints, from the log"))
        for path in self.examined.broken_json:
            usable = parsed(_bak(path)) is not None
            why = "from its .bak" if usable else "it cannot be read, and no .bak can"
            actions.append(self._action("restore" if usable else "move-away", path, None, None, why))
        for patch in self.examined.queues.patches:
            told = patch.file, patch.position, len(patch.data)
            actions.append(self._action("mend-entry", *told, "of a lost record"))
        return actions

    def _plan_for_files(self) -> Iterator[Action]:
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
            yield self._action("zero-tail", self._path(end), end % self._size, None, "behind the log's end")

    def _action(self, what: str, path: Path, offset: int | None, length: int | None, why: str) -> Action:
        return Action(what, path.relative_to(self.layout.root).as_posix(), offset, length, why)

    def _path(self, offset: int) -> Path:
        return self.layout.commit_log / file_name(offset - offset % self._size)

    def _reaches_end(self, gap: Gap) -> bool:
        return gap.end % self._size == 0 and gap.end != self._log.end

    def _kept(self) -> list[tuple[int, MappedFile]]:
        """The files of the log that stay."""
        return [(start, file) for start, file in sorted(self._log.files.items()) if not self._is_behind(start, file)]

    def _is_behind(self, start: int, file: MappedFile) -> bool:
        """A whole file behind the log's end that holds something."""
        return start >= self._log.end and start > self._log.first and any(file.data_ranges(0))

    def _aside(self) -> list[tuple[FoundFile, str]]:
        behind = [
            (FoundFile(file.path, start, file.size), "behind the log's end")
            for start, file in sorted(self._log.files.items())
            if self._is_behind(start, file)
        ]
        return self.examined.placement.aside + behind

    # ---- the log

    def mend_log(self) -> None:
        if not self._touches_store:
            return
        self.layout.abort.touch()
        sync_directory(self.layout.root)
        writes = self._writes()
        for offset, data in writes:
            self._keep(offset, len(data))
        self._keep_tail()
        self.backup.seal()
        for each, _ in self._aside():
            self.backup.move(each.path)
        self._rename()
        for start in {*dict(self._kept()), *(gap.start - gap.start % self._size for gap in self._log.gaps)}:
            self._mend_file(start, [(offset, data) for offset, data in writes if 0 <= offset - start < self._size])

    def _writes(self) -> list[tuple[int, bytes]]:
        """All that the log must hold in the place of what it does."""
        writes: list[tuple[int, bytes]] = []
        for gap in self._log.gaps:
            timestamp = gap.timestamp or self._log.last_timestamp
            if self._reaches_end(gap):
                writes += closing(gap.start, gap.end, timestamp)
            else:
                writes += fillers(gap.start, gap.end, timestamp)
        writes += [(offset, MARKER.pack(-offset % self._size, MARKER_MAGIC)) for offset, _ in self._log.markers]
        writes += [(port.at, bytes(2)) for port in self._log.bad_ports]  # the half of a port that is always zero
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
        """Through a name of its own, for two files may have traded theirs."""
        misnamed = self.examined.placement.misnamed
        for start, path in misnamed.items():
            path.rename(self._path(start).with_name(file_name(start) + MOVED))
        for start in misnamed:
            self._path(start).with_name(file_name(start) + MOVED).rename(self._path(start))
        sync_directory(self.layout.commit_log)

    def _mend_file(self, start: int, writes: list[tuple[int, bytes]]) -> None:
        path = self._path(start)
        if not path.exists():
            MappedFile.create(path, start, self._size, reserve=True, scratch=self.layout.scratch)
        elif path.stat().st_size != self._size:
            os.truncate(path, self._size)
        file = MappedFile.open(path, start, self._size, writable=True)
        for offset, data in writes:
            file.write_at(offset - start, data)
        if start + self._size > self._log.end:
            file.zero_from(max(0, self._log.end - start))
        file.sync()
        sync_directory(path.parent)

    # ---- what is derived, and the rest

    def mend_derived(self) -> None:
        """Take away what must be built again; a queue that the log says nothing of keeps its numbers."""
        if not self._touches_store:
            return
        queues = self.examined.queues
        for (topic, queue_id), queue in queues.queues.items():
            wrong = (topic, queue_id) in queues.wrong or bool(self._log.gaps)
            if queue.known and wrong and (queue.seen or not self._log.runs or (topic, queue_id) in queues.refused):
                self.backup.move(queue.directory)
        for path in sorted(self.layout.index.glob("*")):
            self.backup.move(path)
        for path in (self.layout.own_checkpoint, self.layout.positions, self.layout.scars):
            if path.exists():
                self.backup.move(path)
        if self.layout.checkpoint.exists():
            self.backup.move(self.layout.checkpoint)

    def mend_config(self) -> None:
        for path in self.examined.broken_json:
            data = _bak(path).read_bytes() if parsed(_bak(path)) is not None else None
            if data is None:
                self.backup.move(path)
            else:
                self.backup.keep_range(path, 0, path.read_bytes())
                self.backup.seal()
                replace_file(path, data, self.layout.scratch)

    def rebuild(self) -> None:
        if self._touches_store:
            MessageStore.open(self.layout.root, config=self.config).close()

    def mend_entries(self) -> CheckReport:
        """Entries that the log does not give; then the last look."""
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
