"""The position of one consumer in one queue.

Invariant: committed <= given <= next. Messages before `committed` are processed, those before `given` were delivered
to the caller, those before `next` were read from the store.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from mqlake.delivery.consume.filters import Filter
from mqlake.errors import MessagesLost
from mqlake.logs.topic_table import LIGHT_OFFSETS, LIGHT_QUEUES
from mqlake.message import StoredMessage
from mqlake.store.read import Reader

FETCH_BYTES = 1 << 20
"""One fetch reads at most this much of the log, but at least one message."""
_log = logging.getLogger(__name__)


class Lost(NamedTuple):
    """Progress was at `offset`, outside its queue, which had [first_offset, end_offset)."""

    topic: str
    queue_id: int
    offset: int
    first_offset: int
    end_offset: int

    @property
    def message_count(self) -> int:
        """Number of messages that were deleted before they were consumed."""
        return max(0, self.first_offset - self.offset)


class Cursor:
    """The position of one consumer in one queue."""

    __slots__ = ("_reader", "committed", "current", "epoch", "given", "kept", "next", "queue_id", "topic", "wanted")

    def __init__(self, reader: Reader, topic: str, queue_id: int, wanted: Filter, offset: int, epoch: int) -> None:
        """`epoch`: how often progress on the topic was reset before `offset` was read from it."""
        self._reader = reader
        self.topic = topic
        self.queue_id = queue_id
        self.wanted = wanted
        self.epoch = epoch
        self.committed = self.given = self.next = offset
        self.kept: int | None = None
        """Where messages begin that were read and not handed out: if the call is interrupted, they are read again."""
        self.current: StoredMessage | None = None
        """The message the caller has now, while a batch is delivered one by one. `given` is updated afterwards."""

    @property
    def is_in_flight(self) -> bool:
        """Whether a message was delivered and not yet committed."""
        return self.current is not None or self.given > self.committed

    def has_more(self) -> bool:
        return self._reader.end_of(self.topic, self.queue_id) > self.next

    def fetch(self, limit: int) -> list[StoredMessage]:
        """Read on and return the messages that match the filter."""
        wanted = self.wanted
        self.kept = self.next
        found, self.next = self._reader.fetch(self.topic, self.queue_id, self.next, limit, FETCH_BYTES, wanted.codes)
        messages = wanted.select(found)
        if not messages:
            self.kept = None
        return messages

    def hand_out(self) -> None:
        """Mark everything read as delivered."""
        self.given = self.next
        self.current = self.kept = None

    def go_to(self, offset: int) -> None:
        """Continue at `offset`. Messages read after it are read again, by this consumer or another."""
        self.given = self.next = offset
        self.current = self.kept = None

    def stop(self) -> None:
        """Stop delivering the current batch; its rest is read again."""
        if self.current is not None:
            self.go_to(self.reached(processed=True))
        elif self.kept is not None:
            self.next, self.kept = self.kept, None

    def reached(self, *, processed: bool) -> int:
        """Return up to where progress may move. `processed`: the caller has processed what was delivered last."""
        current = self.current
        if current is not None:
            return self.queue_offset_of(current) + processed
        return self.given if processed else self.committed

    def queue_offset_of(self, message: StoredMessage) -> int:
        """Return a message's queue offset in this queue, which may be a light queue that the message was sent to."""
        if message.topic == self.topic:
            return message.queue_offset
        names = message.properties.get(LIGHT_QUEUES, "").split(",")
        offsets = message.properties.get(LIGHT_OFFSETS, "").split(",")
        return int(dict(zip(names, offsets, strict=False)).get(self.topic, message.queue_offset))

    def holds(self, message: StoredMessage) -> bool:
        """Tell whether a message came from this queue."""
        if message.topic == self.topic:
            return message.queue_id == self.queue_id
        return self.topic in message.properties.get(LIGHT_QUEUES, "").split(",")

    def lost(self) -> Lost | None:
        """Return what was lost if the position is outside the queue; None if it is inside."""
        topic, queue_id, first, end = self._reader.range_or_empty(self.topic, self.queue_id)
        return None if first <= self.next <= end else Lost(topic, queue_id, self.next, first, end)

    def leave(self, lost: Lost, *, fail: bool) -> None:
        """Move a position before the queue to its first message, one after it to its end; with `fail`, raise."""
        what = f"{lost.topic}, queue {lost.queue_id}"
        if fail:
            raise MessagesLost(what, lost.offset, lost.first_offset, lost.end_offset)
        self.go_to(lost.first_offset if lost.offset < lost.first_offset else lost.end_offset)
        self.committed = self.next
        _log.warning("%s: progress was at %d, the queue has [%d, %d): continuing at %d", what, *lost[2:], self.next)
