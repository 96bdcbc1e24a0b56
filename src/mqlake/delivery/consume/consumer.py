"""A consumer: delivers the messages of its queues and records its progress.

Delivery is at least once: progress moves past a message after it was processed, never before. With `auto_commit`, a
message counts as processed when the caller takes the next one, or leaves the `with` block without an error; otherwise
when the caller calls `commit`. A crash loses progress that is not yet in the file (delivery/registry/offsets.py):
those messages are delivered again.

Messages of one queue are delivered in queue order. One thread or task at a time uses a consumer; other threads may call
`commit` and `close`.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

from mqlake.config import require_seconds
from mqlake.delivery.consume.assignment import Assignment, Source
from mqlake.delivery.consume.cursor import Cursor, Lost
from mqlake.delivery.consume.progress import Progress, Start
from mqlake.delivery.consume.share import Queue
from mqlake.errors import InvalidConfig, NotPermitted, OffsetOutOfRange, StoreClosed, StoreForked
from mqlake.message import PutReceipt, StoredMessage
from mqlake.runtime import forks
from mqlake.runtime.locks import make_rlock

BATCH = 512
"""An iteration reads this many messages of a queue at a time."""
Retry = Callable[[StoredMessage, int], PutReceipt | None]
"""Puts a failed message again with a delay level; returns the receipt of the copy."""
ROUNDS = 64
"""After this many batches without a match the next queue has its turn."""


class Taken(NamedTuple):
    """Messages of one queue, and the cursor that read them."""

    cursor: Cursor
    messages: list[StoredMessage]


class Consumer:
    """Reads topics for a group. Created by `MessageStore.consumer`.

    The end of the block closes it:

        with store.consumer("billing", "orders", filter="created || paid") as consumer:
            for message in consumer:
                handle(message)
    """

    def __init__(
        self,
        source: Source,
        assignment: Assignment,
        progress: Progress,
        *,
        auto_commit: bool,
        ordered: bool,
        idle_s: float | None,
        retry: Retry | None,
    ) -> None:
        """Use `MessageStore.consumer`."""
        self._source = source
        self._reading = source.reading
        self._assignment = assignment
        self._progress = progress
        self._retry = retry
        self._auto = auto_commit
        self._ordered = ordered
        self._idle_s = threading.TIMEOUT_MAX if idle_s is None else idle_s
        self._lock = make_rlock("consumer")
        self._in_flight: set[Cursor] = set()
        self._turn = random.randrange(1 << 16)  # consumers that live for a few messages must not all read one queue
        self._closed = False
        self._has_left = False
        forks.guard(self)

    # ---- messages

    def __iter__(self) -> Iterator[StoredMessage]:
        """Yield messages one by one and wait for more; end when the consumer is closed, or idle for `idle_s`."""
        while (taken := self._wait_and_take(self._step, self._idle_s)) is not None:
            yield from self._walk(taken)

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """Iterate without blocking the event loop."""
        while (taken := await self._wait_and_take_async(self._step, self._idle_s)) is not None:
            for message in self._walk(taken):
                yield message

    @property
    def _step(self) -> int:
        """How many messages to read at a time: one if the next may only be delivered after a commit."""
        return 1 if self._ordered and not self._auto else BATCH

    def _walk(self, taken: Taken) -> Iterator[StoredMessage]:
        """Yield a batch one by one. If the assignment changes, leave the rest to the queue's owner from then on."""
        cursor, messages = taken
        changes = self._assignment.changes
        version = changes.version
        for message in messages:
            cursor.current = message
            yield message
            if changes.version != version or self._closed:
                cursor.stop()
                return
        cursor.hand_out()

    def poll(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]:
        """Return at most `limit` messages of one queue; an empty list if none arrives within `timeout_s`.

        With `auto_commit`, the call also commits the messages that the last poll returned.
        """
        require_seconds("timeout_s", timeout_s)
        return self._give(self._wait_and_take(limit, timeout_s))

    async def poll_async(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]:
        """Poll without blocking the event loop."""
        require_seconds("timeout_s", timeout_s)
        return self._give(await self._wait_and_take_async(limit, timeout_s))

    def batches(self, limit: int = 32) -> Iterator[list[StoredMessage]]:
        """Yield lists of at most `limit` messages of one queue, and wait for more as iteration does."""
        while (taken := self._wait_and_take(limit, self._idle_s)) is not None:
            yield self._give(taken)

    def _give(self, taken: Taken | None) -> list[StoredMessage]:
        if taken is None:
            return []
        taken.cursor.hand_out()
        return taken.messages

    # ---- taking

    def _wait_and_take(self, limit: int, timeout_s: float) -> Taken | None:
        """Return messages as soon as there are any; None after `timeout_s`, or if the consumer is closed."""
        self._require_opener()
        self._assignment.member.user = threading.current_thread()
        deadline = 0.0
        while True:
            taken = self._take(limit)
            if taken is None:
                self._reading.settle()  # a put of this process before the call must be found
                taken = self._take(limit)
            if taken is not None or self._closed:
                return taken
            now = time.monotonic()
            deadline = deadline or now + timeout_s
            if now >= deadline:
                return None
            self._source.raise_if_failed()
            self._reading.wait_until(self._may_take, min(deadline - now, self._reading.look_s))

    async def _wait_and_take_async(self, limit: int, timeout_s: float) -> Taken | None:
        import asyncio

        loop = asyncio.get_running_loop()
        self._require_opener()
        self._assignment.member.user = loop
        deadline = time.monotonic() + timeout_s
        while True:
            taken = self._take(limit)
            if taken is None and timeout_s <= 0:
                self._reading.settle()
                taken = self._take(limit)
            left_s = deadline - time.monotonic()
            if taken is not None or self._closed or left_s <= 0:
                return taken
            self._source.raise_if_failed()
            await self._reading.until_async(self._may_take, min(left_s, self._reading.look_s), loop)

    def _take(self, limit: int) -> Taken | None:
        """Return messages of the next queue in turn that has any; None if no queue has."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidConfig("limit", limit, "must be a whole number, 1 or more")
        with self._lock:
            if self._closed:
                return None
            self._source.require_open()
            self._reading.follow()
            for cursor in self._in_flight:
                cursor.stop()
            if self._auto:
                self._commit(processed=True)
            self._assignment.update()
            ring = self._assignment.ring
            for _ in range(len(ring)):
                self._turn += 1
                cursor = ring[self._turn % len(ring)]
                if self._may_be_taken(cursor):
                    self._in_flight.add(cursor)  # first: what an interrupted call has read is read again
                    if messages := self._fetch(cursor, limit):
                        return Taken(cursor, messages)
            return None

    def _may_be_taken(self, cursor: Cursor) -> bool:
        return cursor.has_more() and not (self._ordered and cursor.is_in_flight)

    def _fetch(self, cursor: Cursor, limit: int) -> list[StoredMessage]:
        """Return the next messages of a queue that match the filter; those skipped before them count as processed."""
        for _ in range(ROUNDS):
            try:
                messages = cursor.fetch(limit)
            except OffsetOutOfRange:
                if not self._assignment.move_inside(cursor):
                    raise
                continue
            if messages:
                return messages
            if not cursor.is_in_flight:
                cursor.given = cursor.next
                self._move(cursor, cursor.next)
            if not cursor.has_more():
                break
        return []

    def _may_take(self) -> bool:
        """Tell whether `_take` may find something. A waiting thread evaluates this whenever it is notified."""
        if self._closed or self._assignment.is_outdated():
            return True
        return any(map(self._may_be_taken, self._assignment.ring))

    # ---- progress

    def commit(self, message: StoredMessage | None = None, *, durable: bool = False) -> None:
        """Mark all delivered messages as processed; with `message`, those of its queue up to and including it.

        The progress is in the file a few seconds later; with `durable`, on return.
        """
        self._require_opener()
        with self._lock:
            if self._closed:
                raise NotPermitted("commit", "the consumer is closed", "commit before closing it")
            if message is None:
                self._commit(processed=True)
            else:
                self._commit_message(message)
        if self._ordered:
            self._reading.look_again()  # the queue may be read again, perhaps by a waiting thread
        if durable:
            self._progress.table.sync()

    def _commit(self, *, processed: bool) -> None:
        for cursor in list(self._in_flight):
            self._move(cursor, cursor.reached(processed=processed))

    def _commit_message(self, message: StoredMessage) -> None:
        for cursor in list(self._in_flight):
            if cursor.holds(message):
                self._move(cursor, min(cursor.queue_offset_of(message) + 1, cursor.reached(processed=True)))

    def _move(self, cursor: Cursor, offset: int) -> None:
        """Move progress forward if this consumer still owns the queue."""
        with self._assignment.settling:
            if not self._assignment.holds(cursor):
                self._in_flight.discard(cursor)
            elif offset > cursor.committed:
                cursor.committed = offset
                self._progress.set(cursor.topic, cursor.queue_id, offset)
        if not cursor.is_in_flight:
            self._in_flight.discard(cursor)

    def fail(self, message: StoredMessage, level: int = 0) -> PutReceipt | None:
        """Redeliver a message that could not be processed, later each time: see `delivery/later/retry.py`.

        The failed message is then committed like any other. Return None if the group has no retry queues.
        """
        if self._retry is None:
            found = "this consumer keeps its own progress, and only groups have a retry topic"
            raise NotPermitted("fail", found, "consume with the group's progress")
        self._source.require_open()
        return self._retry(message, level)

    def reset(self, to: Start = "first") -> None:
        """Set the position of all queues, for the whole group if it shares progress. Durable on return."""
        self._require_opener()
        with self._lock:
            self._source.require_open()
            self._assignment.reset(to)
            self._in_flight.clear()
        self._progress.table.sync()

    def forget(self, topic: str) -> None:
        """Forget a deleted topic: a new topic of this name starts at queue offset 0."""
        with self._lock:
            self._assignment.forget(topic)
            self._in_flight = {cursor for cursor in self._in_flight if cursor.topic != topic}

    def lag(self) -> int:
        """Return how many stored messages are not committed, in all queues of the subscription. Ignores the filter."""
        self._source.require_open()
        self._reading.settle()
        return self._assignment.lag()

    @property
    def is_ordered(self) -> bool:
        """Whether no message of a queue is handed out while an earlier poll's is not committed."""
        return self._ordered

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by `close` or with its store."""
        return self._closed

    @property
    def queues(self) -> list[Queue]:
        """The queues that this consumer owns now, as (topic, queue id)."""
        return sorted(self._assignment.cursors)

    @property
    def lost(self) -> list[Lost]:
        """The places where progress was outside its queue and reading continued elsewhere."""
        return self._assignment.lost

    def _require_opener(self) -> None:
        """Raise StoreForked in a forked child. Before any lock: another thread may have held it when it forked."""
        with contextlib.suppress(StoreClosed):  # a closed store has closed this consumer
            self._source.require_open()

    def _give_up(self) -> None:
        """End the batch of an iteration in a forked child. The next step of it raises StoreForked."""
        self._closed = True

    # ---- closing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(processed=kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(processed=kind is None)

    def close(self) -> None:
        """Give up the queues without committing what the caller has now: its processing may have failed.

        To commit it, call `commit` before, or leave the `with` block without an error.
        """
        self._close(processed=False)

    def _close(self, *, processed: bool) -> None:
        try:
            self._require_opener()
        except StoreForked:  # queues and progress are the parent's
            return
        with self._lock:
            if self._has_left:
                return
            if self._auto and not self._closed:
                self._commit(processed=processed)
            self._closed = True
        self._assignment.depart()
        self._assignment.settle()
        self._progress.close()
        self._has_left = True  # last: a close that is interrupted is finished by the next one
