"""A record that delivers another one says so itself: the log is what remembers a delivery.

A delayed message at its time, a half message that is committed: each becomes a new record, and that one's field
`prepared_offset` holds where the other lies. RocketMQ does so for transactions and leaves the field 0 otherwise.

Progress files are written every few seconds, each with the offset of the log up to which it knows all deliveries. After
a crash the log behind that offset is walked once, and what it holds is delivered, whatever the files say. So nothing
that reached the log is delivered twice, and progress may never be written before the log is durable up to there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from mqlake.delivery.properties import REAL_QUEUE_ID, REAL_TOPIC
from mqlake.errors import CorruptRecord, InvalidMessage, NoSuchMessage, NotPermitted, OffsetOutOfRange, UnknownTopic
from mqlake.kernel import find_deliveries
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.message import Durability, Message, StoredMessage
from mqlake.store.engine import Engine

GONE = (CorruptRecord, NoSuchMessage, OffsetOutOfRange)
"""A record that cannot be read any more."""
REFUSED = (InvalidMessage, UnknownTopic, NotPermitted)
"""A message that its topic does not take, now or ever. Anything else concerns all messages, and passes."""
_log = logging.getLogger(__name__)


class Deliveries:
    """How waiting messages of one store come to their real queues."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.failed: dict[int, str] = {}
        """Waiting messages, by physical offset, that could not be delivered since the store was opened, and why."""
        self.count = 0
        """Messages that were delivered since."""

    def deliver(self, waiting: StoredMessage, properties: dict[str, str]) -> bool:
        """Append a waiting message where it is really for; False where that cannot be, and then it is reported."""
        try:
            message = copy_of(waiting, *real_address(waiting), properties, prepared_offset=mark_of(waiting))
            self._engine.log.append_as_it_is(message, Durability.PAGE_CACHE)
        except REFUSED as error:
            self.report(waiting.physical_offset, str(error))
            return False
        self.count += 1
        return True

    def report(self, physical_offset: int, reason: str) -> None:
        """Say that a waiting message cannot be delivered. The others go on."""
        self.failed[physical_offset] = reason
        _log.error("the waiting message at offset %d cannot be delivered: %s", physical_offset, reason)

    def since(self, start: int) -> Iterator[tuple[StoredMessage, StoredMessage]]:
        """What was delivered from this offset of the log on: the waiting record, and the one that delivers it."""
        engine, position = self._engine, max(start, self._engine.log.first_offset)
        end = engine.log.committed
        while position < end:
            stretch = engine.log.stretch(position, end)
            if stretch is None:
                return
            at, why, pairs = find_deliveries(stretch.data, stretch.position, stretch.end, stretch.log_start)
            offsets = memoryview(pairs).cast("q")
            for number in range(0, len(offsets), 2):
                found = self._pair(offsets[number + 1], offsets[number])
                if found is not None:
                    yield found
            position = stretch.log_start + (engine.log.file_size if why == BLANK else at)
            if why not in (BLANK, REACHED_END):
                position = engine.behind_damage(position, REASONS[why])

    def _pair(self, waiting_at: int, delivered_at: int) -> tuple[StoredMessage, StoredMessage] | None:
        """Both records; None where the field names what it cannot: no record, or one that is for another queue."""
        log = self._engine.log
        try:
            waiting = StoredMessage(log.record_at(waiting_at, log.committed))
            delivered = StoredMessage(log.record_at(delivered_at, log.committed))
            address = real_address(waiting)
        except (*GONE, InvalidMessage):
            return None
        own = delivered.topic, delivered.queue_id
        moved = delivered.properties.get(REAL_TOPIC), delivered.properties.get(REAL_QUEUE_ID)
        return (waiting, delivered) if own == address or moved == (address[0], str(address[1])) else None


def mark_of(waiting: StoredMessage) -> int:
    """What a record's `prepared_offset` is if it delivers this one: 0 would be nothing, so the log's first is -1."""
    return waiting.physical_offset or -1


def real_address(waiting: StoredMessage) -> tuple[str, int]:
    """Topic and queue that a waiting message is really for."""
    topic, queue_id = waiting.properties.get(REAL_TOPIC), waiting.properties.get(REAL_QUEUE_ID, "")
    if not topic or not (queue_id.isascii() and queue_id.isdigit()) or int(queue_id) >= 1 << 31:
        found = f"{REAL_TOPIC} = {topic!r}, {REAL_QUEUE_ID} = {queue_id!r}"
        raise InvalidMessage(f"waiting message at {waiting.physical_offset}", found, "a topic and a queue's number")
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
    """The same message for another queue: when and where it was born, flags and body stay."""
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
