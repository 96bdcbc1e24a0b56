"""How far one consumer is in one queue.

Invariant: committed <= given <= next. Messages before `committed` were dealt with, those before `given` were handed
out, those before `next` were read from the store.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from mqlake.delivery.filters import Filter
from mqlake.errors import MessagesLost
from mqlake.message import StoredMessage
from mqlake.store.read import Reader

FETCH_BYTES = 1 << 20
"""One fetch takes no more out of the log than this, but at least one message."""
LIGHT_QUEUES = "INNER_MULTI_DISPATCH"
LIGHT_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
_log = logging.getLogger(__name__)


class Lost(NamedTuple):
    """Progress was outside of the queue: at `offset`, where the queue had [first_offset, end_offset)."""

    topic: str
    queue_id: int
    offset: int
    first_offset: int
    end_offset: int

    @property
    def message_count(self) -> int:
        """Messages that were deleted before they were consumed."""
        return max(0, self.first_offset - self.offset)


class Cursor:
    """One queue, as one consumer goes through it."""

    __slots__ = ("_reader", "committed", "current", "given", "next", "queue_id", "topic", "wanted")

    def __init__(self, reader: Reader, topic: str, queue_id: int, wanted: Filter, offset: int) -> None:
        self._reader = reader
        self.topic = topic
        self.queue_id = queue_id
        self.wanted = wanted
        self.committed = self.given = self.next = offset
        self.current: StoredMessage | None = None
        """Of a batch that is handed out one by one, the message that the caller has: `given` follows from it."""

    @property
    def is_in_flight(self) -> bool:
        """Something was handed out and is not committed."""
        return self.current is not None or self.given > self.committed

    def has_more(self) -> bool:
        return self._reader.end_of(self.topic, self.queue_id) > self.next

    def fetch(self, limit: int) -> list[StoredMessage]:
        """The next messages that are wanted."""
        wanted = self.wanted
        found, self.next = self._reader.fetch(self.topic, self.queue_id, self.next, limit, FETCH_BYTES, wanted.codes)
        return wanted.select(found)

    def hand_out(self) -> None:
        """All that was read is with the caller."""
        self.given = self.next
        self.current = None

    def go_to(self, offset: int) -> None:
        """Forget what was read behind an offset: it is read again, here or elsewhere."""
        self.given = self.next = offset
        self.current = None

    def stop(self) -> None:
        """The rest of a batch is not handed out."""
        if self.current is not None:
            self.go_to(self.reached(vouched=True))

    def reached(self, *, vouched: bool) -> int:
        """Up to where it may be committed; `vouched`: the message that the caller has is dealt with."""
        current = self.current
        if current is not None:
            return self.number_of(current) + vouched
        return self.given if vouched else self.committed

    def number_of(self, message: StoredMessage) -> int:
        """A message's number in this queue: its own, or that in the light queue of this name."""
        if message.topic == self.topic:
            return message.queue_offset
        names = message.properties.get(LIGHT_QUEUES, "").split(",")
        offsets = message.properties.get(LIGHT_OFFSETS, "").split(",")
        return int(dict(zip(names, offsets, strict=False)).get(self.topic, message.queue_offset))

    def holds(self, message: StoredMessage) -> bool:
        """The message came from this queue."""
        if message.topic == self.topic:
            return message.queue_id == self.queue_id
        return self.topic in message.properties.get(LIGHT_QUEUES, "").split(",")

    def lost(self) -> Lost | None:
        """Whether the position is outside of the queue."""
        topic, queue_id, first, end = self._reader.range_or_empty(self.topic, self.queue_id)
        return None if first <= self.next <= end else Lost(topic, queue_id, self.next, first, end)

    def leave(self, lost: Lost, *, fail: bool) -> None:
        """A position below the queue goes on at its first message, one above it at its end."""
        what = f"{lost.topic}, queue {lost.queue_id}"
        if fail:
            raise MessagesLost(what, lost.offset, lost.first_offset, lost.end_offset)
        self.go_to(lost.first_offset if lost.offset < lost.first_offset else lost.end_offset)
        self.committed = self.next
        _log.warning("%s: progress was at %d, the queue has [%d, %d): on at %d", what, *lost[2:], self.next)
