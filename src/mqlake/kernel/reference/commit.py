"""Group commit: one sync serves every thread that was waiting when it began."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from mqlake.kernel.reference.ends import Ends
from mqlake.kernel.types import COVERED, DURABLE, FAILED, LEAD, STOPPED, TIMED_OUT


class GroupCommit:
    """Decides which thread leads the sync; the others wait. Moves the durable end of `ends`.

    The first thread to wait leads the sync. Threads that come while it runs wait for the next one, because the running
    one may have started before their record was written. A sync that needs more than one call (a new file, the
    transient pool) is left to the caller: `wait` and `serve` return LEAD, and the caller calls `lead`, then
    `sync_files` or `abandon`.

    The durable end moves only after a sync that succeeded, and never again after one that failed.
    """

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.failure = 0
        self.sync_count = 0
        self._changed = threading.Condition()
        self._number = 0
        self._waiting = [0, 0]  # for the sync with an even and with an odd number
        self._syncing = False
        self._leader = 0
        self._stopping = False
        self._requested = ends.durable
        self._descriptor = -1
        self._file_start = 0

    def write_to(self, descriptor: int, file_start: int, reserved_end: int = 0) -> None:
        """Name the file that the log is written to from now on, before the first record goes there.

        Its blocks are reserved up to the physical offset `reserved_end`; the compiled twin writes them ahead. Without a
        descriptor (-1), every sync is left to the caller.
        """
        with self._changed:
            self._descriptor, self._file_start = descriptor, file_start

    def reserved(self, end: int) -> None:
        """Do nothing: only the compiled twin writes reserved blocks ahead."""

    def wait(self, end: int, timeout_ns: int) -> int:
        """Wait until the log is durable up to `end`: COVERED, FAILED, TIMED_OUT, or LEAD: the caller must sync."""
        deadline = time.monotonic() + timeout_ns / 1e9
        late = False
        with self._changed:
            while self.ends.durable < end:
                if self.failure:
                    return FAILED
                if late:
                    return TIMED_OUT
                if not self._syncing:
                    if not self._take_lead():
                        return LEAD
                    self._sync()
                    continue
                turn = (self._number + 1) % 2
                self._waiting[turn] += 1
                late = not self._changed.wait(max(0.0, deadline - time.monotonic()))
                self._waiting[turn] -= 1
        return COVERED

    def _take_lead(self) -> bool:
        """Become the leader. Return whether the sync is one call: all that is not durable is in the file being written,
        after its first byte. The first sync of a new file must sync the folder too.
        """
        self._syncing = True
        self._leader = threading.get_ident()
        return self._descriptor >= 0 and self.ends.durable > self._file_start

    def _sync(self) -> None:
        target, descriptor, failure = self.ends.appended, self._descriptor, 0
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
        self._leader = 0
        self.failure = self.failure or failure
        if self.failure:
            self.ends.nudge()
        else:
            self.sync_count += 1
            self.ends.advance(DURABLE, target)
        self._changed.notify_all()

    def _is_wanted(self) -> bool:
        return self._waiting[(self._number + 1) % 2] > 0 or self._requested > self.ends.durable

    def lead(self) -> None:
        """Begin the sync that LEAD asked for, before reading the log's end: later threads wait for the next sync."""
        with self._changed:
            self._number += 1

    def sync_files(self, target: int, descriptors: Sequence[int], folders: Sequence[int]) -> bool:
        """Sync these files and the names in these folders: then the log is durable up to `target`. Return whether it
        is. Ends what `lead` began.
        """
        failure = 0
        try:
            for descriptor in descriptors:
                os.fdatasync(descriptor)
            for folder in folders:
                os.fsync(folder)
        except OSError as error:
            failure = error.errno or -1
        with self._changed:
            self._end_sync(target, failure)
        return failure == 0

    def sync_folder(self, descriptor: int) -> bool:
        """Sync the names in a folder, outside of a group commit. A failure latches."""
        try:
            os.fsync(descriptor)
        except OSError as error:
            self.fail(error.errno or -1)
            return False
        return True

    def abandon(self) -> None:
        """Give up the lead if this thread still has it, because it was interrupted before its sync. Another takes it.

        The next sync covers what the interrupted thread waited for. Nothing is lost: no sync was reported.
        """
        with self._changed:
            if self._syncing and self._leader == threading.get_ident():
                self._syncing = False
                self._leader = 0
                self._changed.notify_all()

    def fail(self, failure: int) -> None:
        """Latch for a reason other than a sync: nothing may be acknowledged from now on."""
        with self._changed:
            self.failure = self.failure or failure
            self._changed.notify_all()
        self.ends.nudge()

    # ---- for callers that do not wait in a thread

    def request(self, end: int) -> None:
        """Let the thread in `serve` sync up to `end`."""
        with self._changed:
            self._requested = max(self._requested, end)
            self._changed.notify_all()

    def serve(self, timeout_ns: int) -> int:
        """Sync for others while they ask. Return TIMED_OUT if nobody asked for that long, LEAD, FAILED or STOPPED."""
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
        """Make `serve` return STOPPED."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
