"""Commit log -> consume queues and index, on one thread.

The dispatcher follows the visible end of the log: the durable end with sync flush, so that no consumer ever sees what
a power cut could take back; else the committed end. It works a stretch of records at a time, in the kernel and without
the interpreter lock, and writes what it found queue by queue. `dispatched` moves behind those writes.

While messages come it looks again every few milliseconds, or at once where somebody waits for one; after a quiet moment
it sleeps until a put wakes it.

A full disk does not stop it: it says so, tries the same step again, and goes on by itself once there is space. That
is safe, because a step that is done twice is done once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from mqlake.codec.queue_entry import ENTRY
from mqlake.errors import is_disk_full
from mqlake.files.positions import DISPATCHED
from mqlake.kernel import dispatch_records
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.damage import next_record
from mqlake.logs.graves import Graves, living
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scars
from mqlake.logs.topic_table import can_be_folder

STRETCH_BYTES = 2 << 20
MAX_STRETCH_BYTES = 64 << 20
"""Log bytes of one step. Each step waits for the interpreter lock a few times, behind a busy writer for milliseconds
each: the farther dispatch is behind, the longer its steps."""
REST_S = 0.010
"""For so long it leaves the interpreter lock to those who put, unless somebody waits for a message."""
QUIET_ROUNDS = 3
RETRY_S = 0.5
"""Between two tries while the disk is full."""
MAX_QUEUE_OFFSET = 1 << 58
"""Its entry's place must fit into 64 bits."""
Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


class Dispatcher:
    """Writes the derived files. `step` does the work; the thread only calls it."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        scars: Scars,
        graves: Graves,
        words: memoryview,
        *,
        start: int,
        delays_ms: tuple[int, ...],
        index_tags: bool,
        foreign_topics: frozenset[str],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._scars = scars
        self._graves = graves
        self._words = words
        self._delays_ms = delays_ms
        self._index_tags = index_tags
        self._foreign_topics = foreign_topics
        self.dispatched = start
        """All records before this offset are in their queues and in the index."""
        self.last_record = -1
        self.last_timestamp = 0
        self.record_count = 0
        self.homeless: list[tuple[int, int]] = []
        """Where records lie that are whole, but whose topic or number no queue can take."""
        self.failure: Exception | None = None
        """Why it does not go on: for good, or until there is space again."""
        self._stepping = threading.Lock()
        self.visible_end: Callable[[], int] = lambda: log.committed
        self.idle = False
        """The thread sleeps: a put that finds this set must call `wake`."""
        self._bell = threading.Event()
        self._retry = threading.Event()
        self._arrived = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._waiting = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="mqlake-dispatch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def step(self, limit: int) -> bool:
        """Dispatch the next stretch of records before `limit`; False where there is none."""
        with self._stepping:
            try:
                worked = self._step(limit)
            except Exception as error:
                self._note(error)
                raise
            if self.failure is not None:
                _log.info("dispatch goes on at offset %d", self.dispatched)
                self.failure = None
            return worked

    def pause(self) -> AbstractContextManager[object]:
        """While it is entered, no step is under way."""
        return self._stepping

    def between_steps(self, look: Callable[[], Answer]) -> Answer | None:
        """What `look` sees while no step is under way; None where one is half done."""
        with self._stepping:
            return look() if self.failure is None else None

    def _step(self, limit: int) -> bool:
        position = self.dispatched
        if position >= limit:
            return False
        stretch = self._log.stretch(position, limit)
        if stretch is None:  # deleted before it was dispatched
            self._advance(max(self._log.first_offset, position))
            return self.dispatched > position
        at, why, runs, keys, count, last_offset, last_timestamp = dispatch_records(
            stretch.data,
            stretch.position,
            stretch.end,
            stretch.log_start,
            min(max(STRETCH_BYTES, limit - position), MAX_STRETCH_BYTES),
            self._delays_ms,
            self._index is not None,
            self._index_tags,
        )
        for topic, queue_id, first, entries in living(runs, self._graves.ends):
            if topic not in self._foreign_topics:
                self._write_run(topic, queue_id, first, entries)
        if self._index is not None and keys:
            self._index.put(keys)
        self.record_count += count
        if count:
            self.last_record, self.last_timestamp = last_offset, last_timestamp
        position = stretch.log_start + (self._log.file_size if why == BLANK else at)
        if why not in (BLANK, REACHED_END):
            position = self._pass_over_damage(position, limit, REASONS[why])
        self._advance(position)
        return True

    def _write_run(self, topic: str, queue_id: int, first: int, entries: bytes) -> None:
        """Entries into their queue. What a damaged header names must neither lead elsewhere nor fill the disk."""
        placed = can_be_folder(topic) and queue_id >= 0 and 0 <= first < MAX_QUEUE_OFFSET
        if not placed or not self._queues.get_or_create(topic, queue_id).write(first, entries):
            _log.error("no queue takes entry %d of queue %d of topic %r: its record is damaged", first, queue_id, topic)
            self.homeless += [(offset, offset + size) for offset, size, _ in ENTRY.iter_unpack(entries)]

    def _pass_over_damage(self, position: int, limit: int, reason: str) -> int:
        """Where whole records go on. Their queues get entries of no message for those that are lost."""
        known = self._scars.end_of(position)
        if known > position:
            return min(known, limit)
        behind = next_record(self._log.files, position, limit, 0) or limit
        self._scars.add(position, behind, reason)
        return behind

    def _advance(self, dispatched: int) -> None:
        self.dispatched = dispatched
        self._words[DISPATCHED] = dispatched
        if self._waiting:
            self.announce()

    def announce(self) -> None:
        """Have those who wait look at what they wait for."""
        with self._arrived:
            self._arrived.notify_all()
            for look in self._listeners:
                look()

    def listen(self, look: Callable[[], None]) -> None:
        """Have `look` called, from another thread, whenever messages arrive: it must be quick. `ignore` ends it."""
        with self._arrived:
            self._listeners.append(look)
            self._waiting += 1
        if self.dispatched < self.visible_end():
            self.wake()

    def ignore(self, look: Callable[[], None]) -> None:
        with self._arrived:
            self._listeners.remove(look)
            self._waiting -= 1

    def wait_for(self, arrived: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until dispatch makes a condition true; whether it did in time."""
        with self._arrived:
            self._waiting += 1
            try:
                return self._arrived.wait_for(lambda: arrived() or self._stopping, timeout_s) and arrived()
            finally:
                self._waiting -= 1

    def wake(self) -> None:
        """There is something to dispatch."""
        self._bell.set()

    def _run(self) -> None:
        quiet = 0
        while not self._stopping:
            try:
                worked = self.step(self.visible_end())
            except Exception as error:
                if not is_disk_full(error):
                    return
                self._retry.wait(RETRY_S)
                continue
            if worked:
                quiet = 0
            elif quiet < QUIET_ROUNDS:
                quiet += 1
                self._rest()
            else:
                self._sleep()
                quiet = 0

    def _note(self, error: Exception) -> None:
        """Let those who wait know that nothing comes for now."""
        if self.failure is None:
            _log.error("dispatch stopped at offset %d", self.dispatched, exc_info=error)
        self.failure = error
        self.announce()

    def _rest(self) -> None:
        self._bell.clear()
        self.idle = self._waiting > 0  # who waits for a message gets it at once: the next put rings
        self._bell.wait(REST_S)
        self.idle = False

    def _sleep(self) -> None:
        self._bell.clear()
        self.idle = True
        if self.dispatched >= self.visible_end() and not self._stopping:  # else a put came before it could see `idle`
            self._bell.wait()
        self.idle = False

    def catch_up(self, limit: int, timeout_s: float, *, patient: bool = False) -> bool:
        """Wait until everything before `limit` is dispatched; whether it was in time.

        Where dispatch is in trouble there is nothing to wait for, except that space comes back, for the `patient`.
        """

        def over() -> bool:
            hopeless = self.failure is not None and not (patient and is_disk_full(self.failure))
            return self.dispatched >= limit or hopeless

        self.wake()
        return self.wait_for(over, timeout_s) and self.dispatched >= limit

    def close(self) -> None:
        self._stopping = True
        self._retry.set()
        self.wake()
        self.announce()
        if self._thread.is_alive():
            self._thread.join()
