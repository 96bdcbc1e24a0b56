"""The queues that one consumer reads: its part of its group's queues, or all queues if it keeps its own progress.

When the parts change, the consumer gives up a queue as soon as it has no uncommitted messages of it. It takes a new
queue after the previous owner has given it up, and starts at the progress of that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mqlake.delivery.consume.cursor import Cursor, Lost
from mqlake.delivery.consume.filters import ALL, Filter
from mqlake.delivery.consume.progress import Progress, Start, check_start, offsets_at
from mqlake.delivery.consume.share import Member, Queue, Share
from mqlake.runtime.locks import make_lock
from mqlake.store.ports import Reading
from mqlake.store.read import Reader


class Subscription(NamedTuple):
    """What all consumers of one group read: topics with a filter, and the group's retry topic."""

    topics: tuple[str, ...]
    wanted: Filter
    retry_topic: str | None

    def filters(self) -> dict[str, Filter]:
        """Return the filter of each topic. Retries have none: the messages in them passed the filter before."""
        retries = {} if self.retry_topic is None else {self.retry_topic: ALL}
        return dict.fromkeys(self.topics, self.wanted) | retries

    def __str__(self) -> str:
        return f"{', '.join(self.topics)} ({self.wanted.expression})"


class Source(NamedTuple):
    """How consumers reach the store."""

    reading: Reading
    require_open: Callable[[], None]
    raise_if_failed: Callable[[], None]
    """Raises the error of a background service that stopped for good."""
    queues_of: Callable[[str], list[int]]
    """Returns the ids of a topic's queues, empty ones included; UnknownTopic after the topic was deleted."""

    def version(self) -> float:
        """Return a value that changes when the set of queues may have changed."""
        return self.reading.queues_version()


class QueueLag(NamedTuple):
    """How far a group has read one queue, whose messages are [first_offset, end_offset)."""

    topic: str
    queue_id: int
    offset: int
    """The group's progress: the queue offset of the next message to process."""
    first_offset: int
    end_offset: int

    @property
    def message_count(self) -> int:
        """Number of stored messages that the group has not committed."""
        return self.end_offset - min(max(self.offset, self.first_offset), self.end_offset)


def lag_of(reader: Reader, progress: Progress, topic: str, queue_id: int) -> QueueLag:
    _, _, first, end = reader.range_or_empty(topic, queue_id)
    offset = progress.get(topic, queue_id)
    return QueueLag(topic, queue_id, first if offset is None else offset, first, end)


def place(source: Source, progress: Progress, topics: list[str], start: Start) -> None:
    """Set the progress on topics: on all of them, or on none if an offset is outside its queue."""
    check_start(start)
    source.reading.settle()
    found = {topic: offsets_at(source.reading.reader, topic, source.queues_of(topic), start) for topic in topics}
    for topic, offsets in found.items():
        for queue_id, offset in offsets.items():
            progress.set(topic, queue_id, offset)


class _NoChanges:
    """Stands in for `Share` if a consumer keeps its own progress: its queues never change hands."""

    version = 0

    def epoch_of(self, topic: str) -> int:
        return 0


class Assignment:
    """The queues of one consumer and a cursor for each. The consumer calls it while holding its lock."""

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
        self._reading = source.reading
        self._topics = subscription.topics
        self._wanted = subscription.filters()
        self._progress = progress
        self._share = share
        self._fail_when_lost = fail_when_lost
        self.changes: Share | _NoChanges = share if share is not None else _NoChanges()
        self.settling = share.settling if share is not None else make_lock("share.settling")
        self.member = Member(subscription, self)
        self.cursors: dict[Queue, Cursor] = {}
        self.ring: list[Cursor] = []
        """The cursors to read, in turn. A queue that is about to be given up is not among them."""
        self.lost: list[Lost] = []
        self._seen = (-1, 0.0)
        self._markers: dict[str, int] = {}
        """Up to where each topic was deleted when its queues were taken."""

    def join(self) -> None:
        """Join the group. `depart` leaves it, or the end of this object."""
        if self._share is not None:
            self._share.join(self.member)

    def is_outdated(self) -> bool:
        return self._seen != (self.changes.version, self._source.version())

    def holds(self, cursor: Cursor) -> bool:
        """Tell whether this consumer may still move the progress of a queue."""
        return (
            self.changes.epoch_of(cursor.topic) == cursor.epoch
            and self.cursors.get((cursor.topic, cursor.queue_id)) is cursor
            and (self._share is None or self._share.has(self.member))
        )

    def update(self) -> None:
        """Give up and take queues until the assignment fits the current members and topics."""
        if not self.is_outdated() and not self._has_leaving():
            return
        share = self._share
        if share is not None and not share.has(self.member):  # evicted: its thread had ended; others took its queues
            self._forget(lambda _: True)
            share.join(self.member)
        self._forget(lambda cursor: self.changes.epoch_of(cursor.topic) != cursor.epoch)
        self._forget_deleted()
        seen = self.changes.version, self._source.version()
        queues = [(topic, queue_id) for topic in self._wanted for queue_id in self._source.queues_of(topic)]
        mine = set(queues) if share is None else share.target(self.member, queues)
        self._give_up(mine)
        for queue in sorted(mine - self.cursors.keys()):
            if share is None or share.acquire(self.member, queue):
                self.cursors[queue] = self._cursor_of(*queue)
        self.ring = [cursor for queue, cursor in self.cursors.items() if queue in mine]
        self._seen = seen  # last: the next call makes up for an interrupted one

    def _forget_deleted(self) -> None:
        """Start at the beginning of topics that were deleted and created again, for a reader: nobody tells it."""
        for topic in {cursor.topic for cursor in self.cursors.values()}:
            marker = self._reading.deleted_topics.ends.get(topic, 0)
            if marker != self._markers.setdefault(topic, marker):
                self._markers[topic] = marker
                self.forget(topic)

    def _has_leaving(self) -> bool:
        return len(self.ring) != len(self.cursors)

    def _give_up(self, mine: set[Queue]) -> None:
        for queue in self.cursors.keys() - mine:
            if not self.cursors[queue].is_in_flight:
                del self.cursors[queue]
        self._release()

    def _release(self) -> None:
        """Release the queues without a cursor, also those that an interrupted call left so."""
        if self._share is not None:
            self._share.keep(self.member, self.cursors)

    def _cursor_of(self, topic: str, queue_id: int) -> Cursor:
        epoch = self.changes.epoch_of(topic)  # before the progress: a reset in between makes this cursor an old one
        offset = self._progress.get(topic, queue_id)
        if offset is None:  # the queue was created after the group started
            offset = self._reading.reader.range_or_empty(topic, queue_id).first_offset
        self._markers.setdefault(topic, self._reading.deleted_topics.ends.get(topic, 0))
        cursor = Cursor(self._reading.reader, topic, queue_id, self._wanted[topic], offset, epoch)
        self.move_inside(cursor)
        return cursor

    def move_inside(self, cursor: Cursor) -> bool:
        """Move a cursor that is outside its queue back into it; False if it was inside."""
        lost = cursor.lost()
        if lost is not None:
            self._reading.settle()
            lost = cursor.lost()
        if lost is None:
            return False
        cursor.leave(lost, fail=self._fail_when_lost)
        self.lost.append(lost)
        with self.settling:
            if lost.message_count and self.changes.epoch_of(cursor.topic) == cursor.epoch:
                self._progress.set(cursor.topic, cursor.queue_id, cursor.next)  # told once, not at each start
        return True

    def _forget(self, is_old: Callable[[Cursor], bool]) -> None:
        """Drop cursors, so that their queues are read from the group's progress: others may have moved or reset it."""
        for queue in [queue for queue, cursor in self.cursors.items() if is_old(cursor)]:
            del self.cursors[queue]
        self._release()

    def forget(self, topic: str) -> None:
        """Drop progress and cursors of a deleted topic. A new topic of this name has other queues."""
        self._progress.forget(topic)
        self._markers.pop(topic, None)
        self._forget(lambda cursor: cursor.topic == topic)
        self.ring = [cursor for cursor in self.ring if cursor.topic != topic]
        self._seen = -1, 0.0

    def begin(self, start: Start) -> None:
        """Set progress on topics that have none. Durable on return: after a crash the group starts there again."""
        new = [topic for topic in self._topics if not self._progress.knows(topic)]
        with self.settling:
            place(self._source, self._progress, new, start)
        self._progress.table.sync()

    def reset(self, to: Start) -> None:
        """Reset the progress of all queues, for the whole group."""
        with self.settling:
            place(self._source, self._progress, list(self._topics), to)
            if self._share is not None:
                self._share.reset_positions(self._topics)
        self._forget(lambda _: True)
        self.ring = []
        self._seen = -1, 0.0

    def lag(self) -> int:
        found = 0
        for topic in self._wanted:
            for queue_id in self._source.queues_of(topic):
                found += lag_of(self._reading.reader, self._progress, topic, queue_id).message_count
        return found

    def depart(self) -> None:
        """Leave the group; `settle` tells the others."""
        self.member.is_closed = True

    def settle(self) -> None:
        """Release the queues of departed members now, and wake waiting consumers."""
        if self._share is not None:
            self._share.evict_dead()
        self._reading.look_again()
