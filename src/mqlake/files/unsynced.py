"""The names of files and folders that changed and are not yet durable. Nothing is kept open for them.

A file is reopened to be synced. That is enough, because dirty pages belong to the file, not to a descriptor; and since
Linux 4.17, a write-back error that was not reported yet is reported to the next process that opens and syncs the file.
Only one error can be missed: that of a file whose inode the system evicted meanwhile. This takes a failed write-back,
no open descriptor and memory pressure, all between two checkpoints. The files here are queues, which can be rebuilt
from the log.

If many files changed, one sync of the whole file system replaces the single syncs: it costs one wait for the disk, not
one per file, and reports every failure since the folder was opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from mqlake.errors import StoreError, file_error
from mqlake.files.mapped_file import open_descriptor
from mqlake.kernel import sync_file_system
from mqlake.runtime.locks import make_lock

MANY = 256
WORKERS = 8
"""Threads that sync single files: a disk serves several requests in the time of one."""
SYNC_REPORTS_FAILURES = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 8)


class Unsynced:
    """Names to sync. Any thread may add some; those added while `sync` runs are left for the next."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` contains all names. Without it, each file is synced by itself."""
        self._folder = folder
        self._descriptor = -1
        self._paths: set[str] = set()
        self._lock = make_lock("unsynced")

    def add(self, paths: Iterable[str]) -> None:
        """Add names, after the files or folders were changed."""
        with self._lock:
            if self._descriptor < 0 and self._folder is not None:
                with contextlib.suppress(OSError):
                    self._descriptor = open_descriptor(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            self._paths.update(paths)

    def forget_under(self, folder: str) -> None:
        """Drop all names in a folder that was deleted."""
        below = folder + "/"
        with self._lock:
            self._paths = {path for path in self._paths if path != folder and not path.startswith(below)}

    def sync(self) -> None:
        """Make all of them durable. Raises OSError if that fails; then it is unknown which of them are.

        Raises FileFailed if a file cannot be opened now. Nothing is lost then, and the next `sync` tries again.
        """
        with self._lock:
            paths, self._paths = self._paths, set()  # first: a change from here on adds its name again
        try:
            if len(paths) <= MANY or not self._sync_all():
                self._sync_each(paths)
        except StoreError:
            with self._lock:
                self._paths |= paths
            raise

    @staticmethod
    def _sync_each(paths: set[str]) -> None:
        if len(paths) >= WORKERS:
            # RuntimeError: the program is exiting, so no thread can be started. Syncing a file twice is harmless.
            with contextlib.suppress(RuntimeError):
                from concurrent.futures import ThreadPoolExecutor  # not needed to open a store and put

                with ThreadPoolExecutor(WORKERS, "mqlake-sync") as threads:
                    list(threads.map(_sync, paths))
                return
        for path in paths:
            _sync(path)

    def _sync_all(self) -> bool:
        return SYNC_REPORTS_FAILURES and self._descriptor >= 0 and sync_file_system(self._descriptor)

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


def _sync(path: str) -> None:
    try:
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:  # deleted since
        return
    except OSError as error:
        raise file_error(Path(path), "opened for a sync", 0, error) from error
    try:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        (os.fsync if is_folder else os.fdatasync)(descriptor)
    finally:
        os.close(descriptor)
