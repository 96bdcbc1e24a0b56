"""The ends of the log, and the threads that wait for one of them to move."""

from __future__ import annotations

import os
import threading
import time

from mqlake.kernel.types import (
    APPENDED,
    COMMITTED,
    DISPATCHED,
    DURABLE,
    LATE,
    NUDGED,
    REACHED,
    REPLICATED,
    VISIBLE,
    Writable,
)

NO_HOLD = 0x7FFFFFFFFFFFFFFF


class Ends:
    """appended >= committed >= durable >= replicated; dispatched <= visible.

    Each end is moved by one thread at a time, and only forward. Any thread reads an end without a lock and waits for it
    with `wait`, or with an eventfd given to `watch`. Moving an end wakes the threads that wait for it.

    `visible` decides in one place how far readers may read: to the committed, durable or replicated end, as chosen at
    creation, but not past a hold. A hold keeps records invisible until all that belong together are appended.
    """

    def __init__(
        self, appended: int, durable: int, visible_by: int, pooled: bool = False, words: Writable | None = None
    ) -> None:
        """`visible_by`: COMMITTED, DURABLE or REPLICATED. `words`: three 8-byte words that publish the committed,
        durable and dispatched end to other processes.
        """
        if visible_by not in (COMMITTED, DURABLE, REPLICATED):
            raise ValueError(f"{visible_by} is not an end that can make records visible")
        self._words = None if words is None else memoryview(words).cast("B").cast("q")
        if self._words is not None and len(self._words) < 3:
            raise ValueError("the ends are published in three words of 8 bytes")
        self._at = [appended, appended, durable, durable, 0]
        self._hold_at = NO_HOLD
        self._pooled = pooled
        self._visible_by = visible_by
        self._moved = threading.Condition()
        self._waiting = [0] * 6
        self._watchers: list[tuple[int, int]] = []
        self.nudges = 0

    appended = property(lambda self: self._value(APPENDED))
    committed = property(lambda self: self._value(COMMITTED))
    durable = property(lambda self: self._value(DURABLE))
    replicated = property(lambda self: self._value(REPLICATED))
    dispatched = property(lambda self: self._value(DISPATCHED))
    visible = property(lambda self: self._value(VISIBLE))
    promised = property(lambda self: self._value(self._visible_by))

    def _value(self, which: int) -> int:
        if which == VISIBLE:
            return min(self._value(self._visible_by), self._hold_at)
        return self._at[APPENDED if which == COMMITTED and not self._pooled else which]

    def advance(self, which: int, end: int) -> None:
        """Move an end forward and wake the threads that wait for it. Do nothing if it is already there."""
        if not APPENDED <= which <= DISPATCHED:
            raise ValueError(f"{which} is not an end that can be moved")
        with self._moved:
            if end <= self._at[which]:
                return
            self._at[which] = end
            if self._words is not None:
                shown = COMMITTED if which == APPENDED and not self._pooled else which
                place = {COMMITTED: 0, DURABLE: 1, DISPATCHED: 2}.get(shown)
                if place is not None:
                    self._words[place] = end
            self._tell(which)

    def _tell(self, which: int | None) -> None:
        for watched, descriptor in self._watchers:
            if which is None or watched == which:
                os.eventfd_write(descriptor, 1)
        self._moved.notify_all()

    def unpublish(self) -> None:
        """Stop publishing; the words may be unmapped from here on."""
        with self._moved:
            if self._words is not None:
                self._words.release()
                self._words = None

    def hold(self) -> None:
        """Hold the visible end here. `Appender.hold_visible` keeps appends out meanwhile: else it could move back."""
        if self._hold_at != NO_HOLD:
            raise ValueError("the visible end is held already")
        self._hold_at = self._at[APPENDED]

    def release(self) -> None:
        """Make visible what was appended since `hold`."""
        with self._moved:
            self._hold_at = NO_HOLD
            self._tell(VISIBLE)

    def wait(self, which: int, end: int, timeout_ns: int, nudges: int | None = None) -> int:
        """Wait until an end reaches `end`. Return REACHED, LATE, or NUDGED if `nudge` was called after the count
        `nudges` was read. A negative timeout means none.
        """
        if not APPENDED <= which <= VISIBLE:
            raise ValueError(f"{which} is not an end")
        seen = self.nudges if nudges is None else nudges
        deadline = None if timeout_ns < 0 else time.monotonic() + timeout_ns / 1e9
        with self._moved:
            self._waiting[which] += 1
            if which == DISPATCHED:
                self._moved.notify_all()
            while self._value(which) < end and self.nudges == seen:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._moved.wait(left)
            self._waiting[which] -= 1
            if self._value(which) >= end:
                return REACHED
            return NUDGED if self.nudges != seen else LATE

    def rest(self, timeout_ns: int, nudges: int | None = None) -> None:
        """Leave the interpreter lock to others for a while, even if records come. For the dispatcher.

        Ends early when a thread begins to wait for the dispatched end, or on a nudge. While such a thread waits, it
        returns at once.
        """
        deadline = time.monotonic() + timeout_ns / 1e9
        seen = self.nudges if nudges is None else nudges
        with self._moved:
            while not self._waiting[DISPATCHED] and self.nudges == seen and (left := deadline - time.monotonic()) > 0:
                self._moved.wait(left)

    @property
    def awaited(self) -> bool:
        """Return whether a thread or an event loop waits for the dispatched end."""
        return self._waiting[DISPATCHED] > 0

    def nudge(self) -> None:
        """Make every `wait` return, so that its caller checks its condition again."""
        with self._moved:
            self.nudges += 1
            self._tell(None)

    def watch(self, which: int, descriptor: int) -> None:
        """Write to an eventfd whenever an end moves, and on every nudge.

        Each put pays for a watched appended end with a system call: watch it only while there is nothing else to do.
        """
        if not APPENDED <= which <= DISPATCHED:
            raise ValueError(f"{which} is not an end that can be watched")
        if which == COMMITTED and not self._pooled:
            which = APPENDED
        with self._moved:
            self._watchers.append((which, descriptor))
            self._waiting[which] += 1
            self._moved.notify_all()

    def unwatch(self, descriptor: int) -> None:
        """Stop writing to an eventfd. When this returns, no thread is about to write, and it may be closed."""
        with self._moved:
            for watcher in self._watchers:
                if watcher[1] == descriptor:
                    self._watchers.remove(watcher)
                    self._waiting[watcher[0]] -= 1
                    break
