"""Find records whose header contradicts their neighbours.

The queue offsets of a queue are consecutive in the order of the log. Records lost there, or the fillers of a repair,
explain a hole. If nothing does, the missing record may be there with a wrong header: one flipped bit in topic, queue
id, queue offset or transaction state. No CRC covers these fields, but the hole proves the right value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqlake.inspect.log_map import LogMap
from mqlake.kernel import StoredRecord, check_record

SCAR_TOPIC = "MQLAKE_SCAR"
TRANSACTION, PREPARED, ROLLED_BACK = 0xC, 0x4, 0xC
QUEUE_ID_AT, NUMBER_AT, SYS_FLAG_AT = 12, 20, 36
BODY_SIZE_AT = 84


class Hole(NamedTuple):
    """Queue offsets [first, stop) without a record, and the physical offsets of the records on both sides."""

    topic: str
    queue_id: int
    first: int
    stop: int
    after: int
    before: int


class Fix(NamedTuple):
    """Header bytes of a record that its neighbours prove."""

    offset: int
    data: bytes
    found: str
    expected: str


def is_lost(log: LogMap, hole: Hole) -> bool:
    """Return whether records between the two neighbours were lost, or replaced with fillers by a repair."""
    if any(hole.after < gap.end and gap.start < hole.before for gap in log.gaps):
        return True
    return any(is_filler(record) for record in records_inside(log, hole))


def records_inside(log: LogMap, hole: Hole) -> Iterator[StoredRecord]:
    """Yield the records between the neighbours of a hole, including the second neighbour."""
    offset = hole.after
    while offset <= hole.before:
        start = offset - offset % log.file_size
        file = log.files.get(start)
        size = check_record(file.pages, offset - start, file.size, offset, True) if file is not None else 0
        if file is not None and size > 0:
            if offset > hole.after:
                yield StoredRecord(bytes(file.pages[offset - start : offset - start + size]))
            offset += size
        else:
            ends = [gap.end for gap in log.gaps if gap.start == offset]
            offset = ends[0] if ends else start + log.file_size


def fix_for(record: StoredRecord, hole: Hole) -> Fix | None:
    """Return the change that makes a record the missing one; None if it takes more than one bit."""
    if hole.first < 0 or hole.queue_id < 0:
        return None  # the other side of a damaged header
    transaction = record.sys_flag & TRANSACTION
    topic_at, topic_size = topic_place(record.record)
    topic = record.record[topic_at : topic_at + topic_size]
    found = Header(topic, record.queue_id, record.queue_offset, transaction)
    wanted = Header(hole.topic.encode(), hole.queue_id, hole.first, transaction & ~PREPARED)
    if bits_apart(found, wanted) != 1:
        return None
    data = bytearray(record.record)
    data[QUEUE_ID_AT : QUEUE_ID_AT + 4] = hole.queue_id.to_bytes(4, "big")
    data[NUMBER_AT : NUMBER_AT + 8] = hole.first.to_bytes(8, "big")
    data[SYS_FLAG_AT + 3] = data[SYS_FLAG_AT + 3] & ~TRANSACTION | wanted.transaction
    data[topic_at : topic_at + topic_size] = wanted.topic
    return Fix(record.physical_offset, bytes(data), str(found), f"{wanted}: its neighbours prove it")


def is_hidden(record: StoredRecord) -> bool:
    """Return whether a prepared or rolled-back record has a queue offset: RocketMQ gives such records 0."""
    return bool(record.sys_flag & PREPARED) and record.queue_offset > 0


class Header(NamedTuple):
    """The header fields that neighbours can prove."""

    topic: bytes
    queue_id: int
    number: int
    transaction: int

    def __str__(self) -> str:
        state = {0x4: ", prepared", 0x8: ", committed", 0xC: ", rolled back"}.get(self.transaction, "")
        return f"{self.topic.decode('utf-8', 'replace')}, queue {self.queue_id}, queue offset {self.number}{state}"


def bits_apart(one: Header, other: Header) -> int:
    """Return in how many bits two headers differ; many if their topics differ in length."""
    if len(one.topic) != len(other.topic):
        return 1 << 30
    topics = int.from_bytes(one.topic, "big") ^ int.from_bytes(other.topic, "big")
    return sum(
        x.bit_count()
        for x in (
            topics,
            one.queue_id ^ other.queue_id,
            one.number ^ other.number,
            one.transaction ^ other.transaction,
        )
    )


def topic_place(record: bytes) -> tuple[int, int]:
    """Return the position of the topic in a whole record, and its size."""
    sys_flag = record[SYS_FLAG_AT + 3]
    at = BODY_SIZE_AT + 12 * bool(sys_flag & 0x10) + 12 * bool(sys_flag & 0x20)
    at += 4 + int.from_bytes(record[at : at + 4], "big")
    width = 2 if record[7] == 0xAB else 1
    return at + width, int.from_bytes(record[at : at + width], "big")


def is_filler(record: StoredRecord) -> bool:
    """Return whether a record is a filler, written by a repair for lost records."""
    return record.sys_flag & TRANSACTION == ROLLED_BACK and SCAR_TOPIC.startswith(record.topic)
