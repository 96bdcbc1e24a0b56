"""A consumer: messages of a topic in turn, and how far it came, kept for the next time.

At least once: progress moves over a message when it was dealt with, never before. With `auto_commit` a message counts
as dealt with when the next one is asked for, or when the `with` block is left without an error; else when `commit`
says so. A crash takes progress back by what was not yet in the file (see delivery/offsets.py): messages come again.

Messages of one queue come in their order. A consumer is used by one thread or task at a time; `commit` and `close` may
be called by others.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

from mqlake.delivery.assignment import Assignment, Source
from mqlake.delivery.cursor import Cursor, Lost
from mqlake.delivery.progress import Progress, Start
from mqlake.delivery.share import Queue
from mqlake.errors import InvalidConfig, NotPermitted, OffsetOutOfRange
from mqlake.message import PutReceipt, StoredMessage

BATCH = 512
"""Messages that an iteration takes out of a queue at once."""
Retry = Callable[[StoredMessage, int], PutReceipt | None]
"""A message that failed, and a delay level -> where it waits now."""
ROUNDS = 64
"""So many batches without a message that is wanted, and others get their turn."""


class Taken(NamedTuple):
    """Messages that were read, and of which queue."""

    cursor: Cursor
    messages: list[StoredMessage]


class Consumer:
    """Made by `MessageStore.consumer`.

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
        self._side = source.side
        self._assignment = assignment
        self._progress = progress
        self._retry = retry
        self._auto = auto_commit
        self._ordered = ordered
        self._idle_s = threading.TIMEOUT_MAX if idle_s is None else idle_s
        self._lock = threading.RLock()
        self._in_flight: set[Cursor] = set()
        self._turn = 0
        self._closed = False
        weakref.finalize(self, assignment.depart).atexit = False

    # ---- messages

    def __iter__(self) -> Iterator[StoredMessage]:
        """Messages one by one, waiting for more; ends when the consumer is closed, or after `idle_s` without any."""
        while (taken := self._wait_and_take(self._step, self._idle_s)) is not None:
            yield from self._walk(taken)

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """As iteration: the event loop goes on while this waits."""
        while (taken := await self._wait_and_take_async(self._step, self._idle_s)) is not None:
            for message in self._walk(taken):
                yield message

    @property
    def _step(self) -> int:
        """Where a queue is blocked until its message is committed, none behind it can be taken ahead."""
        return 1 if self._ordered and not self._auto else BATCH

    def _walk(self, taken: Taken) -> Iterator[StoredMessage]:
        """Hand a batch out one by one. When the share of the group changes the rest is left to who has it then."""
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
        """At most `limit` messages of one queue; none when none came in time.

        With `auto_commit`, what the last poll gave counts as dealt with.
        """
        return self._give(self._wait_and_take(limit, timeout_s))

    async def poll_async(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]:
        """`poll` for asyncio programs."""
        return self._give(await self._wait_and_take_async(limit, timeout_s))

    def batches(self, limit: int = 32) -> Iterator[list[StoredMessage]]:
        """Lists of at most `limit` messages of one queue, waiting for more as iteration does."""
        while (taken := self._wait_and_take(limit, self._idle_s)) is not None:
            yield self._give(taken)

    def _give(self, taken: Taken | None) -> list[StoredMessage]:
        if taken is None:
            return []
        taken.cursor.hand_out()
        return taken.messages

    # ---- taking

    def _wait_and_take(self, limit: int, timeout_s: float) -> Taken | None:
        """Messages as soon as there are any; None when the time is over, or the consumer is closed."""
        self._assignment.member.user = threading.current_thread()
        deadline = 0.0
        while True:
            taken = self._take(limit)
            if taken is None and self._side.settle():  # what this process put before is among them
                taken = self._take(limit)
            if taken is not None or self._closed:
                return taken
            now = time.monotonic()
            deadline = deadline or now + timeout_s
            if now >= deadline:
                return None
            self._side.wait_until(self._may_go_on, min(deadline - now, self._source.look_s))

    async def _wait_and_take_async(self, limit: int, timeout_s: float) -> Taken | None:
        from mqlake.delivery.arrival import current_task, until_arrival

        self._assignment.member.user = current_task()
        deadline = time.monotonic() + timeout_s
        while True:
            taken = self._take(limit)
            if taken is None and timeout_s <= 0 and self._side.settle():
                taken = self._take(limit)
            left_s = deadline - time.monotonic()
            if taken is not None or self._closed or left_s <= 0:
                return taken
            await until_arrival(self._side, self._may_go_on, min(left_s, self._source.look_s))

    def _take(self, limit: int) -> Taken | None:
        """Messages of the next queue in turn that has any."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidConfig("limit", limit, "must be a whole number, 1 or more")
        with self._lock:
            if self._closed:
                return None
            self._source.require_open()
            self._side.follow()
            for cursor in self._in_flight:
                cursor.stop()
            if self._auto:
                self._commit(vouched=True)
            self._assignment.update()
            ring = self._assignment.ring
            for _ in range(len(ring)):
                self._turn += 1
                cursor = ring[self._turn % len(ring)]
                if self._may_be_taken(cursor) and (messages := self._fetch(cursor, limit)):
                    self._in_flight.add(cursor)
                    return Taken(cursor, messages)
            return None

    def _may_be_taken(self, cursor: Cursor) -> bool:
        return cursor.has_more() and not (self._ordered and cursor.is_in_flight)

    def _fetch(self, cursor: Cursor, limit: int) -> list[StoredMessage]:
        """The next messages of a queue that are wanted; what is passed over before them counts as dealt with."""
        for _ in range(ROUNDS):
            try:
                messages = cursor.fetch(limit)
            except OffsetOutOfRange:
                if not self._assignment.find_again(cursor):
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

    def _may_go_on(self) -> bool:
        """Whether it is worth looking: asked by who waits, whenever something changed."""
        if self._closed or self._assignment.is_outdated():
            return True
        return any(map(self._may_be_taken, self._assignment.ring))

    # ---- progress

    def commit(self, message: StoredMessage | None = None, *, durable: bool = False) -> None:
        """All that was handed out is dealt with; with `message`, its queue up to and including it.

        It is in the file a few seconds later; with `durable`, on return.
        """
        with self._lock:
            if self._closed:
                raise NotPermitted("commit", "the consumer is closed", "commit before closing it")
            if message is None:
                self._commit(vouched=True)
            else:
                self._commit_message(message)
        if self._ordered:
            self._side.look_again()  # a queue is free again, perhaps for another thread that waits
        if durable:
            self._progress.table.sync()

    def _commit(self, *, vouched: bool) -> None:
        for cursor in list(self._in_flight):
            self._move(cursor, cursor.reached(vouched=vouched))

    def _commit_message(self, message: StoredMessage) -> None:
        for cursor in list(self._in_flight):
            if cursor.holds(message):
                self._move(cursor, min(cursor.number_of(message) + 1, cursor.reached(vouched=True)))

    def _move(self, cursor: Cursor, offset: int) -> None:
        """Move progress forward, if it is still this consumer's to move."""
        with self._assignment.settling:
            if not self._assignment.holds(cursor):
                self._in_flight.discard(cursor)
            elif offset > cursor.committed:
                cursor.committed = offset
                self._progress.set(cursor.topic, cursor.queue_id, offset)
        if not cursor.is_in_flight:
            self._in_flight.discard(cursor)

    def fail(self, message: StoredMessage, level: int = 0) -> PutReceipt | None:
        """Have the group get a message again, that could not be processed: later each time, see `delivery/retry.py`.

        For this consumer it is dealt with. None where the group wants none again.
        """
        if self._retry is None:
            raise NotPermitted("fail", "its progress is this consumer's own", "only a group gets a message again")
        self._source.require_open()
        return self._retry(message, level)

    def reset(self, to: Start = "first") -> None:
        """Begin elsewhere, for the whole group where progress is the group's: durable on return."""
        with self._lock:
            self._source.require_open()
            self._assignment.reset(to)
            self._in_flight.clear()
        self._progress.table.sync()

    def forget(self, topic: str) -> None:
        """A topic was deleted: should it come again, it begins at 0."""
        with self._lock:
            self._assignment.forget(topic)
            self._in_flight = {cursor for cursor in self._in_flight if cursor.topic != topic}

    def lag(self) -> int:
        """Messages that are there and not committed, over all queues of the subscription, wanted or not."""
        self._source.require_open()
        self._side.settle()
        return self._assignment.lag()

    @property
    def queues(self) -> list[Queue]:
        """The queues that are this consumer's now: topic and queue id."""
        return sorted(self._assignment.cursors)

    @property
    def lost(self) -> list[Lost]:
        """Where progress was outside of a queue, and consumption went on elsewhere."""
        return self._assignment.lost

    # ---- closing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(vouched=kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(vouched=kind is None)

    def close(self) -> None:
        """Give the queues up. What the caller has is not committed, because it may have failed: `commit` does that,
        or leaving the `with` block without an error."""
        self._close(vouched=False)

    def _close(self, *, vouched: bool) -> None:
        with self._lock:
            if self._closed:
                return
            if self._auto:
                self._commit(vouched=vouched)
            self._closed = True
        self._assignment.depart()
        self._assignment.settle()
        self._progress.close()
