"""The lock of a lake in a folder, `_mqlake/lock`: one job at a time changes a lake. The file names the holder.

The operating system releases the lock when the process ends, in whatever way. The lock belongs to an open file, so a
second job in the same process is refused too.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from mqlake.errors import LakeInUse


@contextmanager
def locked(lake: str, path: Path) -> Iterator[None]:
    """Hold the lock. Raises LakeInUse if another job holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
            raise LakeInUse(lake, holder or "another process") from None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}, since {since}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
