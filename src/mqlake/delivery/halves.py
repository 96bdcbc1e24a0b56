"""Half messages that nobody decided upon, and the operations that say of others that they are done with.

Both are queues of RocketMQ's. Progress (group CID_RMQ_SYS_TRANS) is the first half message that is undecided, and the
first operation on one that is not before it. It goes to the disk behind the log, so that it never passes a half message
whose end a power cut takes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from mqlake.delivery.offsets import ConsumerOffsets, name_of
from mqlake.delivery.properties import CHECK_TIMES, IMMUNITY_S, PRODUCER_GROUP, TRANSACTION_ID, UNIQUE_KEY
from mqlake.delivery.system_topics import HALF_TOPIC, OP_TOPIC
from mqlake.message import Durability, Message, StoredMessage
from mqlake.store.engine import Engine
from mqlake.store.read import MAX_READ_BYTES

GROUP = "CID_RMQ_SYS_TRANS"
DONE_TAG = "d"
READ_COUNT = 1_000


@dataclass(slots=True, eq=False)
class Half:
    """One half message that is not decided upon."""

    transaction_id: str
    group: str
    immunity_ms: int | None
    check_count: int
    number: int
    """Its queue offset."""
    physical_offset: int
    born_ms: int
    is_live: bool = False
    """This process began it and still holds it: it is not asked about."""
    is_delivered: bool = False
    """Its message is in its real queue; only the operation is missing."""


class Halves:
    """The undecided of one store. Its owner's lock is held by who calls it."""

    def __init__(self, engine: Engine, offsets: ConsumerOffsets) -> None:
        self._engine = engine
        self._offsets = offsets
        self._by_number: dict[int, Half] = {}
        """By the number of the half message, rising."""
        self._by_place: dict[int, Half] = {}
        self._by_id: dict[str, list[Half]] = {}
        self._operations: deque[tuple[int, int]] = deque()
        """Number of an operation, and of the half message that it is for; those before all undecided are dropped."""
        self._load()

    def _load(self) -> None:
        self._engine.settle()
        start = self._progress(HALF_TOPIC)
        for message in self._read(OP_TOPIC, self._progress(OP_TOPIC)):
            self._operations.extend((message.queue_offset, number) for number in done_by(message) if number >= start)
        done = {number for _, number in self._operations}
        for message in self._read(HALF_TOPIC, start):
            if message.queue_offset not in done:
                self.add(half_of(message))

    def _progress(self, topic: str) -> int:
        """Where to go on in a queue, inside of it."""
        if not self._engine.queues.queue_ids(topic):
            return 0
        found = self._engine.reader.range_of(topic, 0)
        known = self._offsets.get(name_of(topic, GROUP), 0)
        return min(max(known or 0, found.first_offset), found.end_offset)

    def _read(self, topic: str, start: int) -> Iterator[StoredMessage]:
        while self._engine.queues.queue_ids(topic):
            messages = self._engine.reader.read(topic, 0, start, READ_COUNT, MAX_READ_BYTES)
            if not messages:
                return
            yield from messages
            start = messages[-1].queue_offset + 1

    # ---- looking

    def __iter__(self) -> Iterator[Half]:
        return iter(list(self._by_number.values()))

    @property
    def ids(self) -> list[str]:
        """The transactions that are undecided, the oldest first."""
        return list(self._by_id)

    def of(self, transaction_id: str) -> list[Half]:
        return list(self._by_id.get(transaction_id, ()))

    def at(self, physical_offset: int) -> Half | None:
        return self._by_place.get(physical_offset)

    # ---- changing

    def add(self, half: Half) -> None:
        self._by_number[half.number] = self._by_place[half.physical_offset] = half
        self._by_id.setdefault(half.transaction_id, []).append(half)

    def drop(self, half: Half) -> None:
        del self._by_number[half.number], self._by_place[half.physical_offset]
        self._by_id[half.transaction_id].remove(half)
        if not self._by_id[half.transaction_id]:
            del self._by_id[half.transaction_id]

    def end(self, halves: list[Half]) -> None:
        """Append the operations that say that these are done with."""
        for half in halves:
            # One half message an operation: RocketMQ 4 reads no other, 5 reads this too.
            operation = Message(OP_TOPIC, b"%d" % half.number, tags=DONE_TAG, queue_id=0)
            receipt = self._engine.log.append_as_it_is(operation, Durability.PAGE_CACHE)
            self._operations.append((receipt.queue_offset, half.number))
            self.drop(half)

    def progress(self) -> dict[str, int]:
        """By topic, the first number that the next opening must look at."""
        ends = {topic: self._engine.queues.end_of(topic, 0) for topic in (HALF_TOPIC, OP_TOPIC)}
        first = next(iter(self._by_number), ends[HALF_TOPIC])
        while self._operations and self._operations[0][1] < first:
            self._operations.popleft()
        return {HALF_TOPIC: first, OP_TOPIC: self._operations[0][0] if self._operations else ends[OP_TOPIC]}

    def note(self, progress: dict[str, int]) -> None:
        """Have progress written with that of other groups. The log is durable up to where it was taken."""
        for topic, number in progress.items():
            if self._offsets.get(name_of(topic, GROUP), 0) != number:
                self._offsets.set(name_of(topic, GROUP), 0, number)


def half_of(message: StoredMessage) -> Half:
    """A half message of the log."""
    properties = {UNIQUE_KEY: message.message_id, **message.properties}
    return Half(*kept_of(properties), message.queue_offset, message.physical_offset, message.born_timestamp)


def kept_of(properties: dict[str, str]) -> tuple[str, str, int | None, int]:
    """What is kept of a half message's properties: transaction, group, own time limit, how often it was asked about."""
    immunity_s, count = (_number(properties.get(name, "")) for name in (IMMUNITY_S, CHECK_TIMES))
    return (
        properties.get(TRANSACTION_ID) or properties[UNIQUE_KEY],
        properties.get(PRODUCER_GROUP, ""),
        None if immunity_s is None else immunity_s * 1000,
        count or 0,
    )


def done_by(operation: StoredMessage) -> list[int]:
    """The half messages that an operation is for: one in RocketMQ 4, several in 5."""
    if operation.tags != DONE_TAG:
        return []
    return [int(part) for part in operation.body.decode("utf-8", "replace").split(",") if part.isdigit()]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
