"""Deliveries: the log itself records which waiting messages were delivered.

A delayed message that is due, or a half message that is committed, is appended as a new record. The field
`prepared_offset` of the new record holds the physical offset of the waiting one. RocketMQ does the same for
transactions, and leaves the field 0 otherwise.

Progress files are written every few seconds, each with the physical offset up to which it includes all deliveries.
After a crash, opening walks the log once from that offset on: a delivery found there counts, whatever the files say. So
no delivery that reached the log is repeated. Progress must never be written before the log is durable up to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from mqlake.delivery.properties import REAL_QUEUE_ID, REAL_TOPIC
from mqlake.errors import CorruptRecord, InvalidMessage, NoSuchMessage, NotPermitted, OffsetOutOfRange, UnknownTopic
from mqlake.kernel import find_deliveries
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.message import Durability, Message, StoredMessage
from mqlake.store.ports import Writing

GONE = (CorruptRecord, NoSuchMessage, OffsetOutOfRange)
"""Errors of a record that cannot be read any more."""
REFUSED = (InvalidMessage, UnknownTopic, NotPermitted)
"""Errors of one message that its topic refuses for good. Other errors concern all messages, and may pass."""
_log = logging.getLogger(__name__)


class Deliveries:
    """Delivers the waiting messages of one store to their real queues, and finds past deliveries in the log."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self.failed: dict[int, str] = {}
        """Messages that could not be delivered since the store was opened: physical offset -> reason."""
        self.count = 0
        """Number of messages delivered since the store was opened."""

    def deliver(self, waiting: StoredMessage, properties: dict[str, str]) -> bool:
        """Append a waiting message to its real queue. If its topic refuses it, report that and return False."""
        try:
            message = copy_of(waiting, *real_address(waiting), properties, prepared_offset=mark_of(waiting))
            self._writing.log.append_as_is(message, Durability.PAGE_CACHE)
        except REFUSED as error:
            self.report(waiting.physical_offset, str(error))
            return False
        self.count += 1
        return True

    def report(self, physical_offset: int, reason: str) -> None:
        """Record and log that a waiting message cannot be delivered. Other messages are not held up."""
        self.failed[physical_offset] = reason
        _log.error("the waiting message at physical offset %d cannot be delivered: %s", physical_offset, reason)

    def since(self, start: int) -> Iterator[tuple[StoredMessage, StoredMessage]]:
        """Yield the deliveries in the log from `start` on, as (waiting message, delivered message)."""
        writing, position = self._writing, max(start, self._writing.log.first_offset)
        end = writing.log.commit()
        while position < end:
            stretch = writing.log.stretch(position, end)
            if stretch is None:
                return
            at, why, pairs = find_deliveries(stretch.data, stretch.position, stretch.end, stretch.log_start)
            offsets = memoryview(pairs).cast("q")
            for index in range(0, len(offsets), 2):
                found = self._pair(offsets[index + 1], offsets[index])
                if found is not None:
                    yield found
            position = stretch.log_start + (writing.log.file_size if why == BLANK else at)
            if why not in (BLANK, REACHED_END):
                position = writing.after_damage(position, REASONS[why])

    def _pair(self, waiting_at: int, delivered_at: int) -> tuple[StoredMessage, StoredMessage] | None:
        """Return both messages; None if `waiting_at` holds no record, or a message for another queue."""
        log = self._writing.log
        try:
            waiting = StoredMessage(log.record_at(waiting_at, log.ends.committed))
            delivered = StoredMessage(log.record_at(delivered_at, log.ends.committed))
            address = real_address(waiting)
        except (*GONE, InvalidMessage):
            return None
        own = delivered.topic, delivered.queue_id
        moved = delivered.properties.get(REAL_TOPIC), delivered.properties.get(REAL_QUEUE_ID)
        return (waiting, delivered) if own == address or moved == (address[0], str(address[1])) else None


def mark_of(waiting: StoredMessage) -> int:
    """Return the `prepared_offset` of a record that delivers this one: -1 for physical offset 0, as 0 means none."""
    return waiting.physical_offset or -1


def real_address(waiting: StoredMessage) -> tuple[str, int]:
    """Return the topic and queue id that a waiting message is to be delivered to."""
    topic, queue_id = waiting.properties.get(REAL_TOPIC), waiting.properties.get(REAL_QUEUE_ID, "")
    if not topic or not (queue_id.isascii() and queue_id.isdigit()) or int(queue_id) >= 1 << 31:
        found = f"{REAL_TOPIC} = {topic!r}, {REAL_QUEUE_ID} = {queue_id!r}"
        raise InvalidMessage(f"waiting message at {waiting.physical_offset}", found, "a topic and a queue id")
    return topic, int(queue_id)


def copy_of(
    message: StoredMessage,
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    *,
    sys_flag: int | None = None,
    reconsume_times: int | None = None,
    prepared_offset: int = 0,
) -> Message:
    """Return a copy of a message for another queue. Born time and host, flags and body stay the same."""
    return Message(
        topic,
        message.raw_body,
        queue_id=queue_id,
        properties=properties,
        flag=message.flag,
        sys_flag=message.sys_flag if sys_flag is None else sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times if reconsume_times is None else reconsume_times,
        prepared_offset=prepared_offset,
    )
