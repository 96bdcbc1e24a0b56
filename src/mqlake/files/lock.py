"""One writer per store: a lock on the first byte of `lock`, the byte that RocketMQ locks.

The operating system releases it when the process ends, for whatever reason. It is an open-file-description lock: it
conflicts with RocketMQ's POSIX lock, but is not lost when other code in this process opens and closes the file, as a
program that copies the store does. If the system does not support such locks, a POSIX lock is used.

The folder of the log is locked as well (`guard`), against other mqlake processes: a lock on a file that somebody
deleted keeps nobody out.

The system does not report who holds an open-file-description lock, so the holder writes its process id into the file,
after RocketMQ's own "lock".
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from pathlib import Path

from mqlake.errors import BadFile, StoreLocked
from mqlake.files.mapped_file import open_regular
from mqlake.runtime.locks import make_global_lock
from mqlake.runtime.whole import abandoned

FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, pid: Linux, 64 bit
CONTENT = b"lock"
UNKNOWN = -1
"""The pid of a holder that has not written it yet."""
LEAVING_S = 30.0
"""How long an opening waits for a store of this process that is being closed because nobody can use it."""
LOOK_S = 0.01
_held: dict[Path, StoreLock] = {}
_held_lock = make_global_lock("lock_file")


class StoreLock:
    """The writer's lock, held from construction to `release`."""

    def __init__(self, path: Path) -> None:
        self._path = _key(path)
        self._pid = os.getpid()
        self._taker = threading.current_thread()
        self._is_leaving = False
        end = time.monotonic() + LEAVING_S
        while not self._hold(path, may_wait=time.monotonic() < end):
            time.sleep(LOOK_S)

    def _hold(self, path: Path, *, may_wait: bool) -> bool:
        """Take the lock; or return False while a store is closed that the caller could not close: an opening was
        interrupted, or it was dropped."""
        with _held_lock:
            held = _held.get(self._path)
            if held is not None and may_wait and held.is_leaving():
                return False
            if held is not None:
                raise StoreLocked(path.parent, self._pid)
            self._descriptor, self._folder = _open(path), -1
            try:
                self._is_of_open_file = self._take(path)
                os.pwrite(self._descriptor, CONTENT + b" %d" % self._pid, 0)
            except BaseException:
                self._close()
                raise
            _held[self._path] = self
        return True

    def _take(self, path: Path) -> bool:
        try:
            return _lock(self._descriptor)
        except (BlockingIOError, PermissionError):
            raise StoreLocked(path.parent, _holder(self._descriptor)) from None

    def guard(self, folder: Path) -> None:
        """Lock a folder of the store too. Raises StoreLocked if another process has locked it."""
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(self._path.parent, UNKNOWN) from None
        except OSError as error:  # a file system without such locks: then there is only the other one
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOLCK, errno.EBADF):
                raise

    def is_leaving(self) -> bool:
        """Tell whether nobody can use the store any more, so that it is about to be closed."""
        return self._is_leaving or self._taker in abandoned

    def leave(self) -> None:
        """Say that nobody can use the store any more: who opens it next in this process waits until it is closed."""
        self._is_leaving = True

    def release(self) -> None:
        """Release the lock. In a forked child, which never had it, the parent keeps it."""
        if os.getpid() != self._pid:
            self.abandon()
            return
        if self._descriptor < 0:
            return
        with _held_lock:
            try:
                os.ftruncate(self._descriptor, len(CONTENT))  # as RocketMQ leaves it
                # Closing is not enough: a child between fork and exec has a copy of the descriptors.
                if self._folder >= 0:
                    fcntl.flock(self._folder, fcntl.LOCK_UN)
                if self._is_of_open_file:
                    _set_lock(self._descriptor, fcntl.F_UNLCK)
            finally:
                self._close()

    def abandon(self) -> None:
        """Close a forked child's copies of the descriptors without releasing the parent's lock."""
        self._close()

    def _close(self) -> None:
        descriptors = self._descriptor, self._folder
        self._descriptor = self._folder = -1
        _held.pop(self._path, None)
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


def _abandon_all() -> None:
    """Drop all locks in a forked child: its descriptors would hold the locks after the parent has died."""
    for lock in list(_held.values()):
        lock.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def writer_of(path: Path) -> int:
    """Return the process id of the holder; 0 if there is none, UNKNOWN if it has not written its id yet."""
    with _held_lock:
        if _key(path) in _held:
            return os.getpid()
        try:
            descriptor = open_regular(path, os.O_RDONLY)
        except (FileNotFoundError, BadFile):
            return 0
        try:
            return _holder(descriptor)
        finally:
            os.close(descriptor)


def _key(path: Path) -> Path:
    """Return the one name of a lock in this process. The lock itself is not followed: it may be a link to itself."""
    return path.parent.resolve() / path.name


def _open(path: Path) -> int:
    try:
        return open_regular(path, os.O_RDWR | os.O_CREAT)
    except (BadFile, FileNotFoundError):  # the latter: a link that leads nowhere
        raise BadFile(path, "no regular file", f"a file to lock; run: mqlake repair {path.parent}") from None


def _lock(descriptor: int) -> bool:
    """Take the lock. Return whether it is an open-file-description lock. Raises OSError if another process has it."""
    try:
        _set_lock(descriptor, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        return False
    return True


def _set_lock(descriptor: int, kind: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))


def _holder(descriptor: int) -> int:
    """Return the holder. The query is for a POSIX lock, which conflicts with both kinds, except this process' own."""
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return 0
    if pid > 0:
        return int(pid)
    written = os.pread(descriptor, 64, len(CONTENT)).split()
    return int(written[0]) if written and written[0].isdigit() else UNKNOWN
