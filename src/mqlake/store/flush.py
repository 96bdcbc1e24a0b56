"""When appended bytes reach the disk.

One sync serves everyone who was waiting when it started. There is no sync thread between a lone put and its sync: the
first thread to wait leads the sync itself; for those who come meanwhile the flush worker leads the next one. The kernel
decides who leads (`GroupCommit`), without the interpreter lock. Waiters may be threads (`wait_until_durable`) or
asyncio futures (`when_durable`, store/awaiting.py).

The durable end moves only after a sync that succeeded. A failed sync is never tried again: the kernel may have dropped
the pages it could not write, so a second sync that succeeds proves nothing. The store latches instead: every waiter
gets StoreFailed at once, and so does every later put.

An interrupted wait (Ctrl-C, an exception from a signal handler) concerns the thread that waited, nobody else. If that
thread led a sync, it gives the lead back.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mqlake.config import FlushConfig, PoolConfig
from mqlake.errors import FlushTimeout, StoreFailed
from mqlake.kernel.types import FAILED, LEAD, STOPPED, TIMED_OUT
from mqlake.logs.log_writer import LogWriter
from mqlake.runtime.locks import make_lock
from mqlake.runtime.workers import UNTIL_WOKEN, Worker, Workers

if TYPE_CHECKING:
    import asyncio

    from mqlake.store.awaiting import LoopWaiters

FAILED_SYNC = "a failed sync"
"""The name under which the log refuses puts."""
_log = logging.getLogger(__name__)


class Flusher:
    """Brings the log to disk: on demand (group commit) and, with sync off, from time to time."""

    def __init__(self, root: Path, log: LogWriter, config: FlushConfig, workers: Workers) -> None:
        self._root = root
        self._log = log
        self._config = config
        self._group = log.group
        self._ends = log.ends
        self._timeout_ns = config.timeout_ms * 1_000_000
        self.failure: StoreFailed | None = None
        self._failing = make_lock("flush.failure")
        self._adding = make_lock("flush.loops")
        self._loops: dict[asyncio.AbstractEventLoop, LoopWaiters] = {}
        self._flushed_at = time.monotonic()
        self._worker: Worker = workers.add(
            "flush", self._work, interrupt=self._group.stop, behind=lambda: self._ends.appended - self._ends.durable
        )

    def start(self) -> None:
        self._worker.start()

    @property
    def sync_count(self) -> int:
        return self._group.sync_count

    # ---- waiting for a sync

    def wait_until_durable(self, end: int) -> None:
        """Return when the log is on disk up to `end`; StoreFailed or FlushTimeout if it is not."""
        try:
            answer = self._group.wait(end, self._timeout_ns)
            while answer == LEAD:
                self._sync()
                answer = self._group.wait(end, self._timeout_ns)
        except BaseException:
            self._group.abandon()
            raise
        if answer == FAILED:
            raise self.failed()
        if answer == TIMED_OUT:
            raise self._late()

    def when_durable(self, end: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of this loop that is done when the log is on disk up to `end`."""
        waiters = self._loops.get(loop)
        if waiters is None:
            waiters = self._add_loop(loop)
        return waiters.wait(end)

    def _add_loop(self, loop: asyncio.AbstractEventLoop) -> LoopWaiters:
        from mqlake.store.awaiting import LoopWaiters  # imports asyncio, a fifth of the time of `import mqlake`

        with self._adding:
            for gone in [known for known in self._loops if known.is_closed()]:
                self._loops.pop(gone).close()
            timeout_s = self._config.timeout_ms / 1000
            waiters = self._loops[loop] = LoopWaiters(loop, self._group, timeout_s, self.failed, self._late)
        return waiters

    # ---- the sync itself

    def _sync(self) -> None:
        """Sync all that is appended now, if that is more than one call. The caller is the leader."""
        self._group.lead()
        try:
            end = self._log.commit()
        except OSError as error:  # the pool's bytes are not in the file: they may never be acknowledged
            self._group.fail(error.errno or errno.EIO)
            self._group.abandon()
            return
        self._log.sync(self._ends.durable, end)

    def fail(self, error: OSError) -> None:
        """Latch: from now on nothing is acknowledged and no put is taken."""
        self._group.fail(error.errno or errno.EIO)
        self.failed()

    def failed(self) -> StoreFailed:
        """Return the error for a thread that waited for a failed sync. When it returns, the log refuses puts."""
        with self._failing:
            first = self.failure is None
            if self.failure is None:
                self.failure = StoreFailed(self._root, os.strerror(self._group.failure))
        if first:
            _log.error("sync of the commit log failed: %s", self.failure)
        if not self._log.is_refused(FAILED_SYNC):  # whoever comes second must not return before the first has done it
            self._log.refuse(FAILED_SYNC, self.failed)
        return StoreFailed(*self.failure.args)

    def _late(self) -> FlushTimeout:
        return FlushTimeout(self._root, self._config.timeout_ms)

    # ---- the worker

    def _work(self) -> float:
        """Sync for futures and waiting threads; and, every interval, what nobody waits for."""
        answer = self._group.serve(self._config.interval_ms * 1_000_000)
        if answer == LEAD:
            self._sync()
        elif answer == FAILED:
            raise self.failed()
        elif answer != STOPPED:
            due = time.monotonic() - self._flushed_at >= self._config.thorough_interval_ms / 1000
            if due or self._log.dirty_pages() >= max(1, self._config.least_pages):
                self.wait_until_durable(self._ends.appended)
                self._flushed_at = time.monotonic()
        return UNTIL_WOKEN if answer == STOPPED else 0

    def close(self) -> bool:
        """Stop the worker and sync what is left; return whether all of the log is durable."""
        self._worker.stop()
        try:
            self.wait_until_durable(self._ends.appended)
            durable = True
        except (StoreFailed, FlushTimeout):
            durable = False
        with self._adding:
            for waiters in self._loops.values():
                waiters.close()
            self._loops.clear()
        return durable


class Committer:
    """With the transient pool: copies buffers to the files, so that what was put can be read."""

    def __init__(self, log: LogWriter, config: PoolConfig, flusher: Flusher, workers: Workers) -> None:
        self._log = log
        self._config = config
        self._fail = flusher.fail
        self._committed_at = 0.0
        self._worker = workers.add("commit", self._work, behind=lambda: log.ends.appended - log.ends.committed)

    def start(self) -> None:
        self._worker.start()

    def _work(self) -> float:
        ends = self._log.ends
        pages = ends.appended // 4096 - ends.committed // 4096
        due = time.monotonic() - self._committed_at >= self._config.commit_thorough_interval_ms / 1000
        if ends.appended != ends.committed and (due or pages >= self._config.commit_least_pages):
            try:
                self._log.commit()
            except OSError as error:
                self._fail(error)
                raise
            self._committed_at = time.monotonic()
        return self._config.commit_interval_ms / 1000

    def close(self) -> None:
        self._worker.stop()
