"""When appended bytes reach the disk.

One sync serves everyone who was waiting when it began. There is no sync thread between a lone put and its sync: the
first to wait does the sync itself; for those who came meanwhile the flusher's own thread does the next one. Who syncs
and who waits is settled in the kernel (`GroupCommit`), without the interpreter lock. Waiters may be threads
(`wait_until_durable`) or asyncio futures (`when_durable`, store/awaiting.py).

`durable` moves only behind a sync that succeeded. A failed sync is never tried again: the kernel may have dropped the
pages it could not write, so a second sync that succeeds proves nothing. The store latches instead; whoever waits
learns it at once, and so does every put from then on.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mqlake.config import FlushConfig, PoolConfig
from mqlake.errors import FlushTimeout, StoreFailed
from mqlake.kernel.types import FAILED, LEAD, STOPPED, TIMED_OUT
from mqlake.logs.commit_log import LogWriter

if TYPE_CHECKING:
    import asyncio

    from mqlake.store.awaiting import LoopWaiters

_log = logging.getLogger(__name__)


class Flusher:
    """Brings the log to the disk: on demand (group commit) and, with sync off, every now and then."""

    def __init__(self, root: Path, log: LogWriter, config: FlushConfig, durable: int) -> None:
        self._root = root
        self._log = log
        self._config = config
        self._group = log.group
        self._group.begin(durable)
        self._timeout_ns = config.timeout_ms * 1_000_000
        self.failure: StoreFailed | None = None
        self.on_durable: Callable[[], None] = lambda: None
        """Called when the background has synced, for those who did not wait."""
        self._mutex = threading.Lock()
        self._loops: dict[asyncio.AbstractEventLoop, LoopWaiters] = {}
        self._thread = threading.Thread(target=self._run, name="mqlake-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def durable(self) -> int:
        """All of the log before this offset is on the disk."""
        return self._group.durable

    @property
    def sync_count(self) -> int:
        return self._group.sync_count

    # ---- waiting for a sync

    def wait_until_durable(self, end: int) -> None:
        """Return when the log is on the disk up to `end`; StoreFailed or FlushTimeout where it is not."""
        answer = self._group.wait(end, self._timeout_ns)
        while answer == LEAD:
            self._sync()
            answer = self._group.wait(end, self._timeout_ns)
        if answer == FAILED:
            raise self._failed()
        if answer == TIMED_OUT:
            raise self._late()

    def when_durable(self, end: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future of this loop that is done when the log is on the disk up to `end`."""
        waiters = self._loops.get(loop)
        if waiters is None:
            waiters = self._add_loop(loop)
        return waiters.wait(end)

    def _add_loop(self, loop: asyncio.AbstractEventLoop) -> LoopWaiters:
        from mqlake.store.awaiting import LoopWaiters  # imports asyncio, a fifth of the time of `import mqlake`

        with self._mutex:
            for gone in [known for known in self._loops if known.is_closed()]:
                self._loops.pop(gone).close()
            timeout_s = self._config.timeout_ms / 1000
            waiters = self._loops[loop] = LoopWaiters(loop, self._group, timeout_s, self._failed, self._late)
        return waiters

    # ---- the sync itself

    def _sync(self) -> None:
        """Sync all that is appended now, where that is more than one call: the caller was told to lead."""
        self._group.lead()
        target, failure = 0, errno.EINTR  # what an interrupt leaves: nobody knows what reached the disk
        try:
            end = self._log.commit()
            self._log.sync(self.durable, end)
            target, failure = end, 0
        except OSError as error:
            failure = error.errno or errno.EIO
        finally:
            self._group.finish(target, failure)
        if failure:
            self._failed()

    def fail(self, error: OSError) -> None:
        """Latch: from here on nothing is acknowledged and no put is taken."""
        self._group.fail(error.errno or errno.EIO)
        self._failed()

    def _failed(self) -> StoreFailed:
        """The error for one who waited for a sync that failed; the first to ask for it closes the log for puts."""
        with self._mutex:
            first = self.failure is None
            if self.failure is None:
                self.failure = StoreFailed(self._root, os.strerror(self._group.failure))
        if first:
            _log.error("sync of the commit log failed: %s", self.failure)
            self._log.refuse(self._failed)
        return StoreFailed(*self.failure.args)

    def _late(self) -> FlushTimeout:
        return FlushTimeout(self._root, self._config.timeout_ms)

    # ---- the background

    def _run(self) -> None:
        """Sync for futures and for threads that wait; and, every interval, what nobody waits for."""
        pause_ns = self._config.interval_ms * 1_000_000
        thorough = self._config.thorough_interval_ms / 1000
        flushed_at = time.monotonic()
        while (answer := self._group.serve(pause_ns)) not in (STOPPED, FAILED):
            if answer == LEAD:
                self._sync()
                continue
            due = time.monotonic() - flushed_at >= thorough
            if (due or self._log.dirty_pages(self.durable) >= max(1, self._config.least_pages)) and self.flush():
                flushed_at = time.monotonic()
                self.on_durable()
        if answer == FAILED:
            self._failed()

    def flush(self) -> bool:
        """Sync what is appended; False where that failed, now or before."""
        try:
            self.wait_until_durable(self._log.end)
        except (StoreFailed, FlushTimeout):
            return False
        return True

    def close(self) -> bool:
        """Stop the background and sync what is left; whether all of the log is durable."""
        self._group.stop()
        if self._thread.is_alive():
            self._thread.join()
        durable = self.flush()
        with self._mutex:
            for waiters in self._loops.values():
                waiters.close()
            self._loops.clear()
        return durable


class Committer:
    """With the transient pool: brings buffers to the files, so that what was put can be read."""

    def __init__(
        self, log: LogWriter, config: PoolConfig, on_commit: Callable[[], None], on_error: Callable[[OSError], None]
    ) -> None:
        self._log = log
        self._config = config
        self._on_commit = on_commit
        self._on_error = on_error
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqlake-commit", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = self._config.commit_interval_ms / 1000
        thorough = self._config.commit_thorough_interval_ms / 1000
        committed_at = 0.0
        while not self._stopping.wait(pause):
            pages = self._log.end // 4096 - self._log.committed // 4096
            due = time.monotonic() - committed_at >= thorough
            if self._log.end == self._log.committed or (not due and pages < self._config.commit_least_pages):
                continue
            try:
                self._log.commit()
            except OSError as error:
                self._on_error(error)
                return
            committed_at = time.monotonic()
            self._on_commit()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
