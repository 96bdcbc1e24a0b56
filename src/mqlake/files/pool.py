"""The transient pool: locked buffers that take writes instead of mapped pages.

With the pool, a put only writes to memory of the process. A commit copies whole records to the file through its
descriptor; only then can they be read. What was not committed is lost with the process, and the receipt of such a put
states this (`Durability.MEMORY`).
"""

from __future__ import annotations

import logging
import mmap

from mqlake.files.mapped_file import map_pages
from mqlake.kernel import lock_memory, unlock_memory
from mqlake.runtime.locks import make_condition

_log = logging.getLogger(__name__)


class TransientPool:
    """A fixed number of buffers, each as large as a log file. A file borrows one until it is committed."""

    def __init__(self, buffer_count: int, buffer_size: int) -> None:
        self._returned = make_condition("pool")
        self._free: list[mmap.mmap] = []
        self.buffer_count = buffer_count
        for _ in range(buffer_count):
            buffer = map_pages(-1, buffer_size, writable=True)
            try:
                lock_memory(buffer)
            except OSError as error:
                _log.warning("pool buffer is not locked in memory: %s", error.strerror)
            self._free.append(buffer)

    @property
    def available(self) -> int:
        return len(self._free)

    def borrow(self, timeout_s: float) -> mmap.mmap | None:
        """Return a free buffer, waiting for one if necessary; None if the wait times out."""
        with self._returned.lock:
            if not self._returned.wait_for(lambda: self._free, timeout_s):
                return None
            if len(self._free) < 0.4 * self.buffer_count:
                _log.warning("transient pool: %d of %d buffers left", len(self._free) - 1, self.buffer_count)
            return self._free.pop()

    def give_back(self, buffer: mmap.mmap) -> None:
        with self._returned.lock:
            self._free.append(buffer)
            self._returned.notify()

    def close(self) -> None:
        for buffer in self._free:
            unlock_memory(buffer)
        self._free.clear()
