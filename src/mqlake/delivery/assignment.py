"""The queues that are one consumer's: its part of its group's, or all of them where its progress is its own.

A queue that is no longer its part is given up once nothing of it is under way; one that becomes its part is taken when
its owner has given it up, from where progress is then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from mqlake.delivery.cursor import Cursor, Lost
from mqlake.delivery.filters import ALL, Filter
from mqlake.delivery.progress import Progress, Start, check_start, offsets_at
from mqlake.delivery.share import Member, Queue, Share
from mqlake.store.engine import Engine
from mqlake.store.follower import Follower
from mqlake.store.read import Reader

LOOK_S = 1.0
"""A reader in another process looks so often whether a topic has more queues."""


class Subscription(NamedTuple):
    """What the consumers of one group read: topics, of which some messages are wanted, and what failed before."""

    topics: tuple[str, ...]
    wanted: Filter
    retry_topic: str | None

    def filters(self) -> dict[str, Filter]:
        """All topics that are read. What failed was wanted before, and is wanted again."""
        retries = {} if self.retry_topic is None else {self.retry_topic: ALL}
        return dict.fromkeys(self.topics, self.wanted) | retries

    def __str__(self) -> str:
        return f"{', '.join(self.topics)} ({self.wanted.expression})"


class Source(NamedTuple):
    """Where messages come from."""

    side: Engine | Follower
    require_open: Callable[[], None]
    queues_of: Callable[[str], list[int]]
    """Ids of a topic's queues, those without a message included; UnknownTopic once it was deleted."""

    @property
    def look_s(self) -> float:
        return LOOK_S if isinstance(self.side, Follower) else threading.TIMEOUT_MAX

    def version(self) -> float:
        """Changes when there may be other queues than before."""
        if isinstance(self.side, Follower):
            return time.monotonic() // LOOK_S
        return self.side.queues.version


class QueueLag(NamedTuple):
    """How far a group is in one queue, which has [first_offset, end_offset)."""

    topic: str
    queue_id: int
    offset: int
    """The next message that the group wants."""
    first_offset: int
    end_offset: int

    @property
    def message_count(self) -> int:
        """Messages that are there and not committed."""
        return self.end_offset - min(max(self.offset, self.first_offset), self.end_offset)


def lag_of(reader: Reader, progress: Progress, topic: str, queue_id: int) -> QueueLag:
    _, _, first, end = reader.range_or_empty(topic, queue_id)
    offset = progress.get(topic, queue_id)
    return QueueLag(topic, queue_id, first if offset is None else offset, first, end)


def place(source: Source, progress: Progress, topics: list[str], start: Start) -> None:
    """Set progress on topics: on all of them or, where an offset is outside of a queue, on none."""
    check_start(start)
    source.side.settle()
    found = {topic: offsets_at(source.side.reader, topic, source.queues_of(topic), start) for topic in topics}
    for topic, offsets in found.items():
        for queue_id, offset in offsets.items():
            progress.set(topic, queue_id, offset)


class _NoChanges:
    """In the place of a group, for a consumer whose progress is its own."""

    version = 0
    epoch = 0


class Assignment:
    """Kept by a consumer, under its lock."""

    def __init__(
        self,
        source: Source,
        subscription: Subscription,
        progress: Progress,
        share: Share | None,
        *,
        fail_when_lost: bool,
    ) -> None:
        self._source = source
        self._side = source.side
        self._topics = subscription.topics
        self._wanted = subscription.filters()
        self._progress = progress
        self._share = share
        self._fail_when_lost = fail_when_lost
        self.changes: Share | _NoChanges = share if share is not None else _NoChanges()
        self.settling = share.settling if share is not None else threading.Lock()
        self.member = Member(subscription)
        self.cursors: dict[Queue, Cursor] = {}
        self.ring: list[Cursor] = []
        """Those to be read: a queue that is to be given up is not."""
        self.lost: list[Lost] = []
        self._seen = (-1, 0.0)
        self._epoch = self.changes.epoch
        if share is not None:
            share.join(self.member)

    def is_outdated(self) -> bool:
        return self._seen != (self.changes.version, self._source.version())

    def holds(self, cursor: Cursor) -> bool:
        """Whether progress of this queue is this consumer's to move."""
        return (
            self.changes.epoch == self._epoch
            and self.cursors.get((cursor.topic, cursor.queue_id)) is cursor
            and (self._share is None or self.member.is_in)
        )

    def update(self) -> None:
        """Go by what the group and the topics are now."""
        if not self.is_outdated() and not self._has_leaving():
            return
        share = self._share
        if share is not None and not self.member.is_in:  # its thread was over, and others took its place
            self._forget()
            share.join(self.member)
        if self.changes.epoch != self._epoch:
            self._forget()
        self._seen = self.changes.version, self._source.version()
        queues = [(topic, queue_id) for topic in self._wanted for queue_id in self._source.queues_of(topic)]
        mine = set(queues) if share is None else share.target(self.member, queues)
        self._give_up(mine)
        for queue in sorted(mine - self.cursors.keys()):
            if share is None or share.acquire(self.member, queue):
                self.cursors[queue] = self._cursor_of(*queue)
        self.ring = [cursor for queue, cursor in self.cursors.items() if queue in mine]

    def _has_leaving(self) -> bool:
        return len(self.ring) != len(self.cursors)

    def _give_up(self, mine: set[Queue]) -> None:
        for queue in self.cursors.keys() - mine:
            if not self.cursors[queue].is_in_flight:
                del self.cursors[queue]
                if self._share is not None:
                    self._share.release(self.member, queue)

    def _cursor_of(self, topic: str, queue_id: int) -> Cursor:
        offset = self._progress.get(topic, queue_id)
        if offset is None:  # the queue came into being after the group
            offset = self._side.reader.range_or_empty(topic, queue_id).first_offset
        cursor = Cursor(self._side.reader, topic, queue_id, self._wanted[topic], offset)
        self.find_again(cursor)
        return cursor

    def find_again(self, cursor: Cursor) -> bool:
        """Bring a cursor back into its queue; False where it was not outside of it."""
        lost = cursor.lost()
        if lost is not None and self._side.settle():
            lost = cursor.lost()
        if lost is None:
            return False
        cursor.leave(lost, fail=self._fail_when_lost)
        self.lost.append(lost)
        return True

    def _forget(self) -> None:
        """Begin where progress is: others may be further, or it was set anew."""
        if self._share is not None:
            for queue in self.cursors:
                self._share.release(self.member, queue)
        self.cursors.clear()
        self.ring = []
        self._epoch = self.changes.epoch

    def forget(self, topic: str) -> None:
        """Of a topic that was deleted there is no progress, and its queues are no longer those that were read."""
        self._progress.forget(topic)
        for queue in [queue for queue in self.cursors if queue[0] == topic]:
            del self.cursors[queue]
        self.ring = [cursor for cursor in self.ring if cursor.topic != topic]
        self._seen = -1, 0.0

    def begin(self, start: Start) -> None:
        """Give progress to the queues of topics that have none at all, durably: a crash must not begin elsewhere."""
        new = [topic for topic in self._topics if not self._progress.knows(topic)]
        with self.settling:
            place(self._source, self._progress, new, start)
        self._progress.table.sync()

    def reset(self, to: Start) -> None:
        """Set progress of all queues anew, for the whole group."""
        with self.settling:
            place(self._source, self._progress, list(self._topics), to)
            if self._share is not None:
                self._share.begin_anew()
        self._forget()
        self._seen = -1, 0.0

    def lag(self) -> int:
        found = 0
        for topic in self._wanted:
            for queue_id in self._source.queues_of(topic):
                found += lag_of(self._side.reader, self._progress, topic, queue_id).message_count
        return found

    def depart(self) -> None:
        """The consumer is closed, or was collected: that may be anywhere, so no lock is taken."""
        if self._share is not None:
            self._share.depart(self.member)

    def settle(self) -> None:
        """Let others have the queues now."""
        if self._share is not None:
            self._share.evict_the_dead()
        self._side.look_again()
