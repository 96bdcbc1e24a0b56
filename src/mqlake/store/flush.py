"""When appended bytes reach the disk.

One sync serves everyone who was waiting when it began. There is no sync thread between a put and its sync: the first
to wait does the sync itself, the others wait for it; when it ends, those it covered go on and the first of the rest
does the next one. Waiters may be threads (`wait_until_durable`) or asyncio futures (`when_durable`), for which the
flusher's own thread syncs.

`durable` moves only behind a sync that succeeded. A failed sync is never tried again: the kernel may have dropped the
pages it could not write, so a second sync that succeeds proves nothing. The store latches instead; whoever waits
learns it at once, and so does every put from then on.
"""

from __future__ import annotations

import logging
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mqlake.config import FlushConfig, PoolConfig
from mqlake.errors import FlushTimeout, StoreFailed
from mqlake.files.positions import DURABLE
from mqlake.logs.commit_log import LogWriter

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)


class _Waiter:
    """A thread that waits for a sync: woken when it is covered, or to do the next sync itself."""

    __slots__ = ("bell", "end", "leads")

    def __init__(self, end: int) -> None:
        self.end = end
        self.leads = False
        self.bell = allocate_lock()
        self.bell.acquire()


class Flusher:
    """Brings the log to the disk: on demand (group commit) and, with sync off, every now and then."""

    def __init__(self, root: Path, log: LogWriter, config: FlushConfig, words: memoryview, durable: int) -> None:
        self._root = root
        self._log = log
        self._config = config
        self._words = words
        self._timeout_s = config.timeout_ms / 1000
        self.durable = durable
        """All of the log before this offset is on the disk."""
        self.failure: StoreFailed | None = None
        self.sync_count = 0
        self.on_durable: Callable[[], None] = lambda: None
        """Called after each sync, on the thread that did it."""
        self._mutex = allocate_lock()
        self._syncing = False
        self._waiters: list[_Waiter] = []
        self._futures: dict[asyncio.AbstractEventLoop, list[tuple[int, float, asyncio.Future[None]]]] = {}
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="mqlake-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ---- waiting for a sync

    def wait_until_durable(self, end: int) -> None:
        """Return when the log is on the disk up to `end`; StoreFailed or FlushTimeout where it is not."""
        if self.durable >= end:
            return
        waiter = None
        with self._mutex:
            if self.failure is not None:
                raise self._failed()
            if self.durable >= end:
                return
            if self._syncing:
                waiter = _Waiter(end)
                self._waiters.append(waiter)
            else:
                self._syncing = True
        if waiter is not None:
            self._wait(waiter)
        if waiter is None or waiter.leads:
            self._sync()
        if self.durable < end:
            raise self._failed()

    def _wait(self, waiter: _Waiter) -> None:
        if waiter.bell.acquire(timeout=self._timeout_s):
            return
        with self._mutex:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                raise FlushTimeout(self._root, self._config.timeout_ms)
        waiter.bell.acquire()  # it rang just now: it may have to lead

    def when_durable(self, end: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future of this loop that is done when the log is on the disk up to `end`."""
        future: asyncio.Future[None] = loop.create_future()
        with self._mutex:
            if self.failure is not None:
                future.set_exception(self._failed())
            elif self.durable >= end:
                future.set_result(None)
            else:
                waiting = self._futures.get(loop)
                if waiting is None:
                    waiting = self._futures[loop] = []
                    loop.call_later(self._timeout_s, self._expire, loop)
                waiting.append((end, time.monotonic() + self._timeout_s, future))
                self._wanted.set()
        return future

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in the loop as long as it has waiters: fail those that have waited for too long."""
        now = time.monotonic()
        with self._mutex:
            waiting = self._futures.pop(loop, [])
            late = [future for _, deadline, future in waiting if deadline <= now]
            waiting = [entry for entry in waiting if entry[1] > now]
            if waiting:
                self._futures[loop] = waiting
                loop.call_later(max(waiting[0][1] - now, 0.001), self._expire, loop)
        for future in late:
            if not future.done():
                future.set_exception(FlushTimeout(self._root, self._config.timeout_ms))

    # ---- the sync itself

    def _sync(self) -> None:
        """Sync all that is appended now. The caller holds the sync (`_syncing`) and hands it over, or back."""
        try:
            target = self._log.commit()
            self._log.sync(self.durable, target)
        except OSError as error:
            self.fail(error)
        else:
            self.sync_count += 1
            self._hand_over(target, None)
            self.on_durable()

    def fail(self, error: OSError) -> None:
        """Latch: from here on nothing is acknowledged and no put is taken."""
        _log.error("sync of the commit log failed: %s", error)
        self._hand_over(self.durable, StoreFailed(self._root, error.strerror or str(error)))
        self._log.refuse(self._failed)

    def _hand_over(self, durable: int, failure: StoreFailed | None) -> None:
        with self._mutex:
            if failure is not None and self.failure is None:
                self.failure = failure
            self.durable = durable
            self._words[DURABLE] = durable
            over = self._waiters if self.failure else [w for w in self._waiters if w.end <= durable]
            rest = [] if self.failure else [w for w in self._waiters if w.end > durable]
            leader = rest.pop(0) if rest else None
            self._waiters = rest
            self._syncing = leader is not None
            finished = self._take_futures(durable)
            if leader is None and any(self._futures.values()):
                self._wanted.set()
        if leader is not None:
            leader.leads = True
            leader.bell.release()
        for waiter in over:
            waiter.bell.release()
        for loop, futures in finished:
            try:
                loop.call_soon_threadsafe(self._finish, futures)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                pass

    def _take_futures(self, durable: int) -> list[tuple[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]]:
        finished = []
        for loop, waiting in self._futures.items():
            done = [future for end, _, future in waiting if self.failure or end <= durable]
            if done:
                self._futures[loop] = [entry for entry in waiting if not self.failure and entry[0] > durable]
                finished.append((loop, done))
        return finished

    def _finish(self, futures: list[asyncio.Future[None]]) -> None:
        """Runs in the futures' own loop."""
        for future in futures:
            if future.done():
                continue
            if self.failure is not None:
                future.set_exception(self._failed())
            else:
                future.set_result(None)

    def _failed(self) -> StoreFailed:
        assert self.failure is not None
        return StoreFailed(*self.failure.args)

    # ---- the background

    def _run(self) -> None:
        pause = self._config.interval_ms / 1000
        thorough = self._config.thorough_interval_ms / 1000
        flushed_at = time.monotonic()
        while not self._stopping:
            asked = self._wanted.wait(pause)
            self._wanted.clear()
            due = time.monotonic() - flushed_at >= thorough
            if not asked and not due and self._log.dirty_pages(self.durable) < max(1, self._config.least_pages):
                continue
            if self.flush():
                flushed_at = time.monotonic()

    def flush(self) -> bool:
        """Sync what is appended; False where that failed, now or before."""
        try:
            self.wait_until_durable(self._log.end)
        except (StoreFailed, FlushTimeout):
            return False
        return True

    def close(self) -> bool:
        """Stop the background and sync what is left; whether all of the log is durable."""
        self._stopping = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.flush()


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
