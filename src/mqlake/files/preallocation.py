"""Create log files, and reserve their blocks, before they are needed.

A spare file is created under `mqlake/spare/` and moved into `commitlog/` when the log takes it, so the log's folder
never holds an incomplete file. It has its full size from the start, but blocks for its first chunk only. While a file
is written, its blocks are reserved one chunk ahead of the writer. So a full disk raises an error, never SIGBUS in a
mapped page, and a new store takes little space.

One worker does both, and the file that is needed now comes first. With warm-up, a spare file's pages are made writable,
and on request locked in memory, before anyone waits for it.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from mqlake.errors import DiskFull, FileFailed, StoreError, file_error
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name
from mqlake.kernel import lock_memory, populate
from mqlake.runtime.locks import make_condition
from mqlake.runtime.workers import UNTIL_WOKEN, Worker, Workers

CHUNK_BYTES: Final = 8 << 20
"""Blocks are reserved this many bytes at a time."""
WAIT_S: Final = 5.0
SLOW_S: Final = 0.010
WARM_CHUNK: Final = 16 << 20
_log = logging.getLogger(__name__)


class Preallocator:
    """`take` returns the file that is needed now and orders the next; a worker creates them."""

    def __init__(self, spare: Path, file_size: int, workers: Workers, *, warm: bool, lock: bool) -> None:
        self._spare = spare
        self._file_size = file_size
        self._warm = warm
        self._lock = lock
        self._first_bytes = file_size if warm or lock else CHUNK_BYTES
        """How much of a spare file is reserved: pages that are warmed or locked must have blocks."""
        self._changed = make_condition("preallocation")
        self._wanted: list[int] = []
        self._ready: dict[int, MappedFile] = {}
        self._growing: MappedFile | None = None
        self._clear_spare()
        self._worker: Worker = workers.add("preallocation", self._work, on_trouble=self._tell, keeps_trying=True)

    def start(self) -> None:
        self._worker.start()

    def _clear_spare(self) -> None:
        self._spare.mkdir(parents=True, exist_ok=True)
        for left_over in self._spare.iterdir():
            left_over.unlink()

    def take(self, start: int) -> MappedFile:
        """Return the file that starts here, waiting for it if necessary, and order the one after it.

        What keeps it from being made is raised: a full disk, used-up descriptors, a bad disk. The worker keeps trying,
        so a later call succeeds once the cause is gone.
        """
        if self._worker.is_current:  # a finalizer that puts runs on the worker's thread: nobody else would make it
            return self._make(start)
        deadline = time.monotonic() + WAIT_S
        with self._changed.lock:
            before = self._worker.error_count
            self._order(start)
            self._worker.wake()  # also out of the pause after an error: its cause may have passed
            while start not in self._ready:
                left = deadline - time.monotonic()
                error = self._worker.error
                if error is not None and self._worker.error_count > before:
                    raise self._refusal(start, error)
                if left <= 0 or self._worker.stopping:
                    raise DiskFull(self._spare / file_name(start), self._file_size, f"not made within {WAIT_S:.0f} s")
                self._changed.wait(left)
            file = self._ready.pop(start)
            self._order(start + self._file_size)
        self._worker.wake()
        return file

    def _refusal(self, start: int, error: Exception) -> Exception:
        """Return a new error for each caller; a StoreError keeps its type."""
        if isinstance(error, StoreError):
            return type(error)(*error.args)
        path = self._spare / file_name(start)
        if isinstance(error, OSError):
            return file_error(path, "made", self._file_size, error)
        return FileFailed(path, "made", 0, f"{type(error).__name__}: {error}")

    def reserve_ahead(self, file: MappedFile) -> None:
        """Let the worker reserve the next chunk of the file being written."""
        if file.reserved < file.size:
            self._growing = file
            self._worker.wake()

    def _order(self, start: int) -> None:
        if start not in self._ready and start not in self._wanted:
            self._wanted.append(start)
            self._wanted.sort()  # the file that is needed now comes before the one after it

    def _tell(self) -> None:
        with self._changed.lock:
            self._changed.notify_all()

    def _work(self) -> float:
        file, self._growing = self._growing, None
        if file is not None:
            file.reserve(min(file.size, file.reserved + CHUNK_BYTES))
        with self._changed.lock:
            start = self._wanted[0] if self._wanted else -1
        if start < 0:
            return UNTIL_WOKEN
        made = self._make(start)
        with self._changed.lock:
            self._wanted.remove(start)
            self._ready[start] = made
            self._changed.notify_all()
        return 0

    def _make(self, start: int) -> MappedFile:
        began = time.monotonic()
        path = self._spare / file_name(start)
        try:
            file = MappedFile.create(path, start, self._file_size, reserve=self._first_bytes)
            file.sync()  # its size: a power cut must not leave a short file in the log
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        took = time.monotonic() - began
        if took > SLOW_S:
            _log.warning("making %s took %.0f ms", file.path.name, took * 1000)
        if self._warm:
            warm_file(file)
        if self._lock:
            self._lock_in_memory(file)
        return file

    def _lock_in_memory(self, file: MappedFile) -> None:
        """Lock a file in memory. This is for speed only: a limit on locked memory must not stop puts."""
        try:
            lock_memory(file.pages)
        except OSError as error:
            _log.warning("%s is not locked in memory: %s", file.path.name, error.strerror)

    def close(self) -> None:
        """Stop the worker and delete spare files that the log did not take."""
        self._worker.stop()
        for file in self._ready.values():
            file.delete()
        self._ready.clear()


def warm_file(file: MappedFile) -> None:
    """Make all pages of a file writable without a fault, in chunks, without changing a byte."""
    for position in range(0, file.size, WARM_CHUNK):
        if not populate(file.pages, position, min(WARM_CHUNK, file.size - position)):
            return
