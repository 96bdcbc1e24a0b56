"""Group commit: one sync serves everyone who was waiting when it began."""

from __future__ import annotations

import os
import threading
import time

from mqlake.kernel.reference.append import Appender
from mqlake.kernel.types import COVERED, FAILED, LEAD, STOPPED, TIMED_OUT, Writable


class GroupCommit:
    """Who syncs, who waits for it, and how far the log is durable.

    The first to wait does the sync itself, in its own thread; those who come meanwhile wait for the next one. A sync
    that needs more than one call (a new file, the transient pool) is the caller's: `wait` and `serve` answer LEAD, and
    the caller ends it by `finish`.

    `durable` moves only behind a sync that succeeded, and never again once one has failed.
    """

    def __init__(self, appender: Appender, word: Writable) -> None:
        """`word`: the 8-byte word that tells other processes how far the log is durable."""
        self.durable = 0
        self.failure = 0
        self.sync_count = 0
        self._appender = appender
        self._word: memoryview | None = memoryview(word).cast("B").cast("q")
        self._changed = threading.Condition()
        self._number = 0
        self._waiting = [0, 0]  # for the sync with an even, an odd number
        self._syncing = False
        self._stopping = False
        self._requested = 0
        self._descriptor = -1
        self._file_start = 0
        self._watchers: list[int] = []

    def begin(self, durable: int) -> None:
        """The log is durable up to here already."""
        self.durable = self._requested = durable

    def write_to(self, descriptor: int, file_start: int) -> None:
        """From here on the log is written to this file; said before the first record goes there."""
        with self._changed:
            self._descriptor, self._file_start = descriptor, file_start

    def wait(self, end: int, timeout_ns: int) -> int:
        """Until the log is durable up to `end`: COVERED, FAILED, TIMED_OUT, or LEAD: the caller is to sync."""
        deadline = time.monotonic() + timeout_ns / 1e9
        late = False
        with self._changed:
            while self.durable < end:
                if self.failure:
                    return FAILED
                if late:
                    return TIMED_OUT
                if not self._syncing:
                    if not self._take_lead():
                        return LEAD
                    self._sync()
                    continue
                turn = (self._number + 1) % 2  # the sync that runs began too early for this one
                self._waiting[turn] += 1
                late = not self._changed.wait(max(0.0, deadline - time.monotonic()))
                self._waiting[turn] -= 1
        return COVERED

    def _take_lead(self) -> bool:
        """Whether the sync is one call: all that is not durable lies in the file that is written.

        Strictly behind its start, because the first sync of a new file has its name to bring along.
        """
        self._syncing = True
        return self._descriptor >= 0 and self.durable > self._file_start

    def _sync(self) -> None:
        target, descriptor, failure = self._appender.end, self._descriptor, 0
        self._number += 1
        self._changed.release()
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            failure = error.errno or -1
        finally:
            self._changed.acquire()
        self._end_sync(target, failure)

    def _end_sync(self, target: int, failure: int) -> None:
        self._syncing = False
        self.failure = self.failure or failure
        if not self.failure:
            self.sync_count += 1
            self.durable = target
            if self._word is not None:
                self._word[0] = target
        self._tell()

    def _tell(self) -> None:
        for descriptor in self._watchers:
            os.eventfd_write(descriptor, 1)
        self._changed.notify_all()

    def _is_wanted(self) -> bool:
        return self._waiting[(self._number + 1) % 2] > 0 or self._requested > self.durable

    def finish(self, durable: int, failure: int) -> None:
        """The caller who was to lead has synced up to `durable`, or failed with an errno."""
        with self._changed:
            self._end_sync(durable, failure)

    def fail(self, failure: int) -> None:
        """Something else than a sync failed, and nothing may be acknowledged any more."""
        with self._changed:
            self.failure = self.failure or failure
            self._tell()

    def lead(self) -> None:
        """Called by one who was told to LEAD, before it looks how far the log goes: who comes later waits longer."""
        with self._changed:
            self._number += 1

    # ---- for those who do not wait in a thread

    def request(self, end: int) -> None:
        """Let the thread in `serve` sync up to `end`."""
        with self._changed:
            self._requested = max(self._requested, end)
            self._changed.notify_all()

    def watch(self, descriptor: int) -> None:
        """Ring this eventfd after each sync."""
        with self._changed:
            self._watchers.append(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Ring it no more."""
        with self._changed:
            if descriptor in self._watchers:
                self._watchers.remove(descriptor)

    def serve(self, timeout_ns: int) -> int:
        """Sync for others, as long as they ask: TIMED_OUT when nobody did for so long, LEAD, FAILED or STOPPED."""
        deadline = time.monotonic() + timeout_ns / 1e9
        late = False
        with self._changed:
            while True:
                if self._stopping:
                    return STOPPED
                if self.failure:
                    return FAILED
                if self._is_wanted() and not self._syncing:
                    if not self._take_lead():
                        return LEAD
                    self._sync()
                    continue
                if late:
                    return TIMED_OUT
                late = not self._changed.wait(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Send the thread in `serve` home."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def release(self) -> None:
        """Let go of the durable end's word; nobody waits any more."""
        if self._word is not None:
            self._word.release()
            self._word = None
