"""Makes log files before they are needed, on a thread of its own.

A spare file is made under `mqlake/spare/`, with real blocks, and moved into `commitlog/` when the log takes it: the
log's folder never holds a file that is not yet whole, and a crash leaves nothing behind that the log would have to
explain. One file is kept ready ahead of the log's last; with warm-up its pages are made writable, and on request
locked in memory, before anyone waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from mqlake.errors import DiskFull
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name
from mqlake.kernel import lock_memory, populate

WAIT_S = 5.0
SLOW_S = 0.010
WARM_CHUNK = 16 << 20
_log = logging.getLogger(__name__)


class Preallocator:
    """One thread that makes spare files; `take` hands the one out that is needed now and orders the next."""

    def __init__(self, spare: Path, file_size: int, *, warm: bool, lock: bool) -> None:
        self._spare = spare
        self._file_size = file_size
        self._warm = warm
        self._lock = lock
        self._changed = threading.Condition()
        self._wanted: list[int] = []
        self._ready: dict[int, MappedFile] = {}
        self._failed: dict[int, DiskFull] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="mqlake-preallocate", daemon=True)
        self._clear_spare()
        self._thread.start()

    def _clear_spare(self) -> None:
        self._spare.mkdir(parents=True, exist_ok=True)
        for left_over in self._spare.iterdir():
            left_over.unlink()

    def take(self, start: int) -> MappedFile:
        """The file that starts here, waiting for it if need be; and order the one after it."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            self._order(start)
            while start not in self._ready:
                failure = self._failed.pop(start, None)
                if failure is not None:
                    raise failure
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping:
                    raise DiskFull(self._spare / file_name(start), self._file_size, f"not made within {WAIT_S:.0f} s")
                self._changed.wait(left)
            file = self._ready.pop(start)
            self._order(start + self._file_size)
        return file

    def _order(self, start: int) -> None:
        if start not in self._ready and start not in self._wanted:
            self._failed.pop(start, None)
            self._wanted.append(start)
            self._wanted.sort()  # the file that is needed now comes before the one after it
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._wanted and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                start = self._wanted[0]
            made = self._make(start)
            with self._changed:
                self._wanted.remove(start)
                if isinstance(made, DiskFull):
                    self._failed[start] = made
                else:
                    self._ready[start] = made
                self._changed.notify_all()

    def _make(self, start: int) -> MappedFile | DiskFull:
        began = time.monotonic()
        path = self._spare / file_name(start)
        try:
            file = MappedFile.create(path, start, self._file_size, reserve=True)
            file.sync()  # its size: no power cut may leave a short file among those of the log
        except DiskFull as error:
            return error
        except OSError as error:
            path.unlink(missing_ok=True)
            return DiskFull(path, self._file_size, error.strerror or str(error))
        took = time.monotonic() - began
        if took > SLOW_S:
            _log.warning("making %s took %.0f ms", file.path.name, took * 1000)
        if self._warm:
            warm_file(file)
        if self._lock:
            lock_memory(file.pages)
        return file

    def close(self) -> None:
        """Stop, and remove spare files that nobody took."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        for file in self._ready.values():
            file.delete()
        self._ready.clear()


def warm_file(file: MappedFile) -> None:
    """Make all pages of a file writable without a fault, in chunks, without changing a byte."""
    for position in range(0, file.size, WARM_CHUNK):
        if not populate(file.pages, position, min(WARM_CHUNK, file.size - position)):
            return
