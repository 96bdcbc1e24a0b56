"""One writer a store: RocketMQ's own lock, a POSIX record lock on the first byte of `lock`.

The operating system releases it with the process, however that ends. A POSIX lock is the process' and is lost when any
descriptor of the file is closed, so a second open in this process is refused from a table, without touching the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path

from mqlake.errors import StoreLocked

FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, pid: Linux, 64 bit
_held: set[Path] = set()
_held_lock = threading.Lock()


class StoreLock:
    """Held from construction to `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        with _held_lock:
            if self._path in _held:
                raise StoreLocked(path.parent, os.getpid())
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError:
                pid = _holder(self._descriptor)
                os.close(self._descriptor)
                raise StoreLocked(path.parent, pid) from None
            os.pwrite(self._descriptor, b"lock", 0)
            _held.add(self._path)

    def release(self) -> None:
        with _held_lock:
            os.close(self._descriptor)
            _held.discard(self._path)


def writer_of(path: Path) -> int:
    """The process that holds the lock; 0 where none does."""
    resolved = path.resolve()
    with _held_lock:
        if resolved in _held:
            return os.getpid()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            return _holder(descriptor)
        finally:
            os.close(descriptor)


def _holder(descriptor: int) -> int:
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else pid
