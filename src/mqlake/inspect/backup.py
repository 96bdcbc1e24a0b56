"""Copy a store, even while it is written: complete up to a stated offset, checked, and visible all at once.

The order of the copy ensures that nothing is ahead of the log: first `config/` and the state of other parts, then the
checkpoint, then queues and index, and last the log, up to the offset dispatched at that moment. A crash at this offset
leaves the same. The copy is opened once, which cuts queues and index back to the checkpoint and dispatches the rest,
and then closed: for mqlake and for RocketMQ it is a cleanly closed store.

Files are reflinked if the file system supports it, else copied, and never hard-linked: a full log file is not final.
After damage RocketMQ truncates the log in the middle and appends there, and a repair writes fillers in place. Through a
hard link either would write into the backup, and a repair of the backup would write into the store. A hard link also
shares the blocks, so it protects against deletion only.

A gate keeps retention from deleting log files meanwhile. The copy is made in a folder next to the target, and renamed
to the target when everything in it is on disk and checked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mqlake.config import RetentionConfig, StoreConfig
from mqlake.errors import BackupFailed, FileFailed, NotAStore, NotWritten, StoreLocked
from mqlake.files.layout import Layout
from mqlake.files.lock import writer_of
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.names import file_name, list_files
from mqlake.files.positions import APPENDED, DISPATCHED, WRITER, Positions
from mqlake.inspect.check import CheckReport, Progress, check
from mqlake.runtime.locks import make_lock
from mqlake.runtime.whole import make_whole
from mqlake.store.checkpoint import read_checkpoint, write_checkpoint
from mqlake.store.follower import Follower
from mqlake.store.gates import Gates
from mqlake.store.opening import find_store, resolve
from mqlake.store.recovery import is_latest
from mqlake.store.writer import open_writer

FICLONE = 0x40049409
"""The ioctl that makes two files share blocks until one of them is written."""
CHUNK = 8 << 20
SETTLE_S = 30.0
"""How long to wait until dispatch reaches what was put before the backup began."""
TRIES = 10
GATE = re.compile(r"backup-(\d+)-\d+")
"""The name of a backup's gate, with the process that makes it."""
NOT_COPIED = frozenset(
    {"backup", "scratch", "spare", "positions", "checkpoint", "recovery.json", "health.json", "clock.json"}
)
"""Files of `mqlake/` that belong to the running writer, or that are copied at a moment of their own."""
_numbers = itertools.count()


class Backup(NamedTuple):
    """What a backup contains and how it was made."""

    path: Path
    first_offset: int
    end_offset: int
    """The backup holds all records before this offset, and none after."""
    live: bool
    """Whether a process wrote the store meanwhile."""
    reflinked_count: int
    copied_count: int
    size_bytes: int
    """Bytes of all files, without holes."""
    took_ms: int
    report: CheckReport
    """The result of checking the backup."""


def backup(source: Path, dest: Path, *, config: StoreConfig | None = None, progress: Progress | None = None) -> Backup:
    """Copy a store, live or closed, to a new or empty folder; raise BackupFailed if no complete copy could be made.

    The copy holds every message acknowledged before the call, except those still in the transient pool of another
    process. Raises StoreLocked if a program other than mqlake writes the store: nothing states how far its files are
    complete.
    """
    try:
        return _backup(source, dest, config, progress)
    except NotWritten as error:  # its gate: the store's own disk is full
        raise BackupFailed(dest, str(error), "free space on the store's disk, then try again") from error
    except OSError as error:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        reason = f"{where}{error.strerror or error}"
        remedy = "make room, or name another folder for the backup"
        if isinstance(error, PermissionError):
            remedy = FileFailed.REMEDIES[errno.EACCES]
        raise BackupFailed(dest, reason, remedy) from error


def _backup(source: Path, dest: Path, config: StoreConfig | None, progress: Progress | None) -> Backup:
    began = time.monotonic()
    layout = find_store(source, read_only=True, create=False)
    if "\0" in str(dest):
        raise NotAStore(dest, "its name has a zero byte", "name another folder for the backup")
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise NotAStore(dest, "it exists already", "name an empty or a new folder for the backup")
    if layout.root.resolve() in (dest.resolve(), *dest.resolve().parents):
        raise NotAStore(dest, "it is inside the store", "name a folder outside the store for the backup")
    dest.absolute().parent.mkdir(parents=True, exist_ok=True)
    made = _Made(dest.absolute().with_name(f".{dest.name}.{os.getpid()}.{next(_numbers)}.backup"))
    made.remove()
    try:
        with _held(layout):
            copier = _Copier(layout, made, config or StoreConfig(), progress)
            copier.copy()
        report = _finish(copier)
        _sync_tree(made.root)
        made.root.replace(dest)
        sync_directory(dest.absolute().parent)
    except BaseException:
        make_whole(made.remove)
        raise
    files = copier.files
    return Backup(
        dest,
        report.first_offset,
        copier.end,
        copier.live,
        files.reflinked_count,
        files.copied_count,
        files.size_bytes,
        round((time.monotonic() - began) * 1000),
        report._replace(path=dest),
    )


@contextmanager
def _held(layout: Layout) -> Iterator[None]:
    """Hold the whole log. Files deleted before this returns stay deleted.

    A store without a `mqlake/` folder, or one that cannot be written, has no writer that reads gates.
    """
    if not layout.own.is_dir() or not os.access(layout.own, os.W_OK):
        yield
        return
    gates = Gates(layout.gates)
    for name in {path.name.removesuffix(".new") for path in layout.gates.glob("backup-*")}:
        if (owner := GATE.fullmatch(name)) is not None and not Path("/proc", owner[1]).exists():
            gates.release(name)  # its process died
    name = f"backup-{os.getpid()}-{next(_numbers)}"
    try:
        gates.hold(name, 0)
        yield
    finally:
        try:
            gates.release(name)
        except BaseException:
            gates.release(name)  # a signal handler may have interrupted it
            raise


class _Made(Layout):
    """The copy. Opening it goes on after an interrupt of the caller, so removing it waits for that."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._busy = make_lock("backup")

    def settle(self, config: StoreConfig) -> int:
        """Open and close the copy, so that it is a cleanly closed store. Return where its log ends."""
        with self._busy:
            config = replace(config, retention=RetentionConfig(enabled=False))
            with contextlib.closing(open_writer(self.root, config, create=False)) as store:
                end = store.ends.visible
            for spare in (self.spare, self.scratch):
                shutil.rmtree(spare, ignore_errors=True)
            return end

    def remove(self) -> None:
        with self._busy:
            shutil.rmtree(self.root, ignore_errors=True)


class _Files:
    """Copies files, and shares their blocks if possible."""

    def __init__(self) -> None:
        self.reflinked_count = self.copied_count = self.size_bytes = 0
        self._can_share = True

    def copy(self, source: Path, target: Path, *, stop: int | None = None) -> None:
        """Copy a regular file up to position `stop`, followed by zeros. Holes stay holes."""
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as read, target.open("xb") as write:
            size = os.fstat(read.fileno()).st_size
            if stop is None and self._share(read.fileno(), write.fileno()):
                self.reflinked_count += 1
            else:
                self._copy(read.fileno(), write.fileno(), size if stop is None else min(stop, size))
                self.copied_count += 1
            os.ftruncate(write.fileno(), size)
            self.size_bytes += os.fstat(write.fileno()).st_blocks * 512
            shutil.copystat(source, target)

    def _share(self, read: int, write: int) -> bool:
        if self._can_share:
            try:
                fcntl.ioctl(write, FICLONE, read)
            except OSError:  # another file system, or one without reflinks
                self._can_share = False
        return self._can_share

    def _copy(self, read: int, write: int, stop: int) -> None:
        position = 0
        while position < stop:
            try:
                position = os.lseek(read, position, os.SEEK_DATA)
                end = min(stop, os.lseek(read, position, os.SEEK_HOLE))
            except OSError:  # only a hole is left
                return
            while position < end:
                data = os.pread(read, min(CHUNK, end - position), position)
                if not data:
                    return
                position += os.pwrite(write, data, position)


class _Copier:
    """One backup, from the first file to the last."""

    def __init__(self, layout: Layout, made: _Made, config: StoreConfig, progress: Progress | None) -> None:
        self.layout, self.made = layout, made
        self.given = config
        self.config = resolve(layout, config)
        self._progress = progress
        self.files = _Files()
        self.end = 0
        self._positions = Positions.open(layout.positions)
        writer = writer_of(layout.lock)
        self.live = writer != 0
        if self.live and (self._positions is None or self._positions.words[WRITER] != writer):
            raise StoreLocked(layout.root, writer)

    def copy(self) -> None:
        """Copy everything, in the order given in the module's docstring."""
        self.made.root.mkdir()
        self._copy_state()
        if self.live:
            self._settle()
        self._copy_checkpoints()
        end = self._dispatched() if self.live else self._end_of_closed()
        for folder in (self.layout.consume_queues, self.layout.index):
            self._copy_tree(folder, self.made.root / folder.name)
        self._copy_log(end)
        self._state_watermark(end)
        self.end = end

    def _copy_state(self) -> None:
        """Copy the state of groups, timers, sinks and the lake: none is ahead of what is dispatched now."""
        layout = self.layout
        apart = {layout.commit_log, layout.consume_queues, layout.index, layout.checkpoint, layout.lock, layout.own}
        for path in sorted(layout.root.iterdir()):
            if path not in apart and not (self.live and path == layout.abort):
                self._copy_tree(path, self.made.root / path.name)
        self.made.own.mkdir()
        for path in sorted(layout.own.iterdir()) if layout.own.is_dir() else []:
            # The timer's own state is useless unless it matches RocketMQ's: it is rebuilt.
            if path.name not in NOT_COPIED and not (self.live and path == layout.timer):
                self._copy_tree(path, self.made.own / path.name)
        for gate in self.made.gates.glob("backup-*"):
            gate.unlink()

    def _settle(self) -> None:
        """Wait until dispatch reaches what was put before the backup began."""
        assert self._positions is not None, "a live store has positions"
        words = self._positions.words
        appended, deadline = words[APPENDED], time.monotonic() + SETTLE_S
        while words[DISPATCHED] < appended:
            if time.monotonic() > deadline:
                what = f"dispatch is at {words[DISPATCHED]} and does not reach {appended}"
                raise BackupFailed(
                    self.layout.root, what, "read the log of the process that writes the store for the reason"
                )
            time.sleep(0.005)

    def _copy_checkpoints(self) -> None:
        """Copy our checkpoint and RocketMQ's, of the same moment. Without ours, the copy counts as crashed."""
        layout, made = self.layout, self.made
        for _ in range(TRIES):
            for source, target in ((layout.own_checkpoint, made.own_checkpoint), (layout.checkpoint, made.checkpoint)):
                target.unlink(missing_ok=True)
                self._copy_tree(source, target)
            checkpoint = read_checkpoint(made.own_checkpoint)
            if checkpoint is None or is_latest(made, checkpoint):
                break
        if self.live and checkpoint is None:
            made.abort.touch()

    def _state_watermark(self, end: int) -> None:
        """Let the durable end be the end of the copy: damage before it is damage, and does not end the log."""
        checkpoint = read_checkpoint(self.made.own_checkpoint)
        if checkpoint is not None and checkpoint.durable != end:
            write_checkpoint(self.made, replace(checkpoint, durable=end))

    def _dispatched(self) -> int:
        assert self._positions is not None, "a live store has positions"
        return self._positions.words[DISPATCHED]

    def _end_of_closed(self) -> int:
        follower = Follower(self.layout, self.config, derive=False)
        try:
            return follower.ends.visible
        finally:
            follower.close()

    def _copy_log(self, end: int) -> None:
        size = self.config.commit_log.file_size_bytes
        assert size is not None, "sizes are resolved"
        self.made.commit_log.mkdir()
        starts = [start for start, _ in list_files(self.layout.commit_log) if start < end]
        if starts and end % size == 0:  # the next file shows that the log continues after the marker of the last one
            MappedFile.create(self.made.commit_log / file_name(end), end, size, reserve=0)
        for number, start in enumerate(starts):
            name = file_name(start)
            stop = None if start + size <= end else end - start
            try:
                self.files.copy(self.layout.commit_log / name, self.made.commit_log / name, stop=stop)
            except FileNotFoundError:
                if number == 0:  # its deletion began before the gate was set
                    continue
                what = f"{name} was deleted meanwhile"
                raise BackupFailed(self.layout.root, what, "the disk was too full to keep it: free space") from None
            if self._progress is not None:
                self._progress(min(start + size, end) - starts[0], end - starts[0])

    def _copy_tree(self, source: Path, target: Path) -> None:
        """Copy a file, or a folder with its contents; skip what is deleted meanwhile, and what is no regular file."""
        if source.is_dir():
            target.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                for path in sorted(source.iterdir()):
                    self._copy_tree(path, target / path.name)
        elif source.is_file():
            with contextlib.suppress(FileNotFoundError):
                self.files.copy(source, target)


def _finish(copier: _Copier) -> CheckReport:
    """Make the copy a cleanly closed store, and check all of it."""
    end = make_whole(lambda: copier.made.settle(copier.config))
    if end != copier.end:
        what = f"the copy ends at {end}, not at {copier.end}"
        raise BackupFailed(copier.made.root, what, "run mqlake check on the store")
    report = check(copier.made.root, config=copier.given)
    if not report.holds and check(copier.layout.root, config=copier.given).holds:
        worst = report.findings[0]
        what = f"the copy is damaged: {worst.what} in {worst.file}: found {worst.found}"
        raise BackupFailed(copier.made.root, what, "the store itself is whole: try again")
    return report


def _sync_tree(folder: Path) -> None:
    """Sync a folder and everything in it."""
    for path in sorted(folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_directory(folder)
