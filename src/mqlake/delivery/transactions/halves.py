"""The undecided half messages of a store, and the operations that ended others.

Both are in RocketMQ's own queues. Progress (group CID_RMQ_SYS_TRANS) is the queue offset of the first undecided half
message, and of the first operation that is for it or for a later one. Progress is written after the log is durable, so
that it never passes a half message whose operation a power cut takes back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from mqlake.delivery.properties import CHECK_TIMES, IMMUNITY_S, PRODUCER_GROUP, TRANSACTION_ID, UNIQUE_KEY
from mqlake.delivery.registry.offsets import ConsumerOffsets, name_of
from mqlake.delivery.registry.system_topics import HALF_TOPIC, OP_TOPIC
from mqlake.errors import OffsetOutOfRange
from mqlake.message import Durability, Message, StoredMessage
from mqlake.store.ports import Writing
from mqlake.store.read import MAX_READ_BYTES, QueueRange

GROUP = "CID_RMQ_SYS_TRANS"
DONE_TAG = "d"
READ_COUNT = 1_000
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Half:
    """One undecided half message."""

    transaction_id: str
    group: str
    immunity_ms: int | None
    check_count: int
    queue_offset: int
    physical_offset: int
    born_ms: int
    is_live: bool = False
    """This process began its transaction and will decide it, so the check ignores it."""
    is_delivered: bool = False
    """Its message is in its real queue; only the operation is missing."""


class Halves:
    """The undecided half messages of one store. The caller holds the lock of `Transactions`."""

    def __init__(self, writing: Writing, offsets: ConsumerOffsets) -> None:
        self._writing = writing
        self._offsets = offsets
        self._by_queue_offset: dict[int, Half] = {}
        """In ascending order."""
        self._by_physical_offset: dict[int, Half] = {}
        self._by_id: dict[str, list[Half]] = {}
        self._operations: deque[tuple[int, int]] = deque()
        """Queue offsets of an operation and of its half message. Those before all undecided ones are dropped."""
        self.next_offset = 0
        """The queue offset that the next half message gets."""
        self._load()

    def _load(self) -> None:
        self._writing.settle()
        self.next_offset = self._writing.queues.end_of(HALF_TOPIC, 0)
        start, operations_start = self._starts()
        for message in self._read(OP_TOPIC, operations_start):
            self._operations.extend((message.queue_offset, offset) for offset in ended_by(message) if offset >= start)
        ended = {offset for _, offset in self._operations}
        for message in self._read(HALF_TOPIC, start):
            if message.queue_offset not in ended:
                self.add(half_of(message))

    def _starts(self) -> tuple[int, int]:
        """Return the queue offsets of the half message and of the operation to resume at.

        No half message before its progress is undecided, unless the progress is damaged: one beyond the queue is. Then
        all that is left is read, with all operations: those before their progress ended half messages that are left.
        """
        half, operations = (self._writing.reader.range_or_empty(topic, 0) for topic in (HALF_TOPIC, OP_TOPIC))
        start, operations_start = _progress_in(half, self._offsets), _progress_in(operations, self._offsets)
        if start is None:
            return half.first_offset, operations.first_offset
        return start, operations.first_offset if operations_start is None else operations_start

    def _read(self, topic: str, start: int) -> Iterator[StoredMessage]:
        """Yield the messages of a queue. A light queue of this name may have put others into it: they are left out."""
        while self._writing.queues.queue_ids(topic):
            fetched = self._writing.reader.fetch(topic, 0, start, READ_COUNT, MAX_READ_BYTES)
            yield from (message for message in fetched.messages if message.topic == topic)
            if fetched.next_offset <= start:
                return
            start = fetched.next_offset

    # ---- looking

    def find(self, queue_offset: int) -> Half | None:
        """Return the half message at a queue offset; None if there is none yet, or it is known."""
        if queue_offset in self._by_queue_offset or queue_offset >= self._writing.queues.end_of(HALF_TOPIC, 0):
            return None
        found = self._writing.reader.read(HALF_TOPIC, 0, queue_offset, 1, MAX_READ_BYTES)
        is_half = found and found[0].topic == HALF_TOPIC and found[0].queue_offset == queue_offset
        return half_of(found[0]) if is_half else None

    def __iter__(self) -> Iterator[Half]:
        return iter(list(self._by_queue_offset.values()))

    @property
    def ids(self) -> list[str]:
        """The ids of undecided transactions, oldest first."""
        return list(self._by_id)

    def of(self, transaction_id: str) -> list[Half]:
        return list(self._by_id.get(transaction_id, ()))

    def at(self, physical_offset: int) -> Half | None:
        return self._by_physical_offset.get(physical_offset)

    # ---- changing

    def add(self, half: Half) -> None:
        self._by_queue_offset[half.queue_offset] = self._by_physical_offset[half.physical_offset] = half
        self._by_id.setdefault(half.transaction_id, []).append(half)
        self.next_offset = max(self.next_offset, half.queue_offset + 1)

    def drop(self, half: Half) -> None:
        del self._by_queue_offset[half.queue_offset], self._by_physical_offset[half.physical_offset]
        self._by_id[half.transaction_id].remove(half)
        if not self._by_id[half.transaction_id]:
            del self._by_id[half.transaction_id]

    def end(self, halves: list[Half]) -> None:
        """Append the operations that end these half messages."""
        for half in halves:
            # One half message for each operation: RocketMQ 4 reads only this form, RocketMQ 5 reads it too.
            operation = Message(OP_TOPIC, b"%d" % half.queue_offset, tags=DONE_TAG, queue_id=0)
            receipt = self._writing.log.append_as_is(operation, Durability.PAGE_CACHE)
            self._operations.append((receipt.queue_offset, half.queue_offset))
            self.drop(half)

    def progress(self) -> dict[str, int]:
        """Return for each topic the first queue offset that the next opening must read."""
        ends = {topic: self._writing.queues.end_of(topic, 0) for topic in (HALF_TOPIC, OP_TOPIC)}
        first = next(iter(self._by_queue_offset), ends[HALF_TOPIC])
        while self._operations and self._operations[0][1] < first:
            self._operations.popleft()
        return {HALF_TOPIC: first, OP_TOPIC: self._operations[0][0] if self._operations else ends[OP_TOPIC]}

    def note(self, progress: dict[str, int]) -> None:
        """Set progress, to be written with that of other groups. The log must be durable up to where it was taken."""
        for topic, queue_offset in progress.items():
            if self._offsets.get(name_of(topic, GROUP), 0) != queue_offset:
                self._offsets.set(name_of(topic, GROUP), 0, queue_offset)


def _progress_in(queue: QueueRange, offsets: ConsumerOffsets) -> int | None:
    """Return the progress on a queue, after what retention deleted; None if it is beyond the queue."""
    known = offsets.get(name_of(queue.topic, GROUP), queue.queue_id) or 0
    if known > queue.end_offset:
        _log.error("%s", OffsetOutOfRange(f"progress on {queue.topic}", known, queue.first_offset, queue.end_offset))
        return None
    return max(known, queue.first_offset)


def half_of(message: StoredMessage) -> Half:
    """Return the `Half` for a stored half message."""
    properties = {UNIQUE_KEY: message.message_id, **message.properties}
    return Half(*kept_of(properties), message.queue_offset, message.physical_offset, message.born_timestamp)


def kept_of(properties: dict[str, str]) -> tuple[str, str, int | None, int]:
    """Return what `Half` keeps of the properties: transaction id, group, own time limit, number of checks so far."""
    immunity_s, count = (_number(properties.get(name, "")) for name in (IMMUNITY_S, CHECK_TIMES))
    return (
        properties.get(TRANSACTION_ID) or properties[UNIQUE_KEY],
        properties.get(PRODUCER_GROUP, ""),
        None if immunity_s is None else immunity_s * 1000,
        count or 0,
    )


def ended_by(operation: StoredMessage) -> list[int]:
    """Return the queue offsets of the half messages that an operation ends: one in RocketMQ 4, several in 5."""
    if operation.tags != DONE_TAG:
        return []
    return [int(part) for part in operation.body.decode("utf-8", "replace").split(",") if part.isdigit()]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
