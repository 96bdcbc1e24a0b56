"""Records that stand for what was lost, so that the log is whole again for every reader.

A filler is a V1 record on the topic MQLAKE_SCAR, at its own offset, with a right CRC and the store time of the record
before it, in the state "rolled back": RocketMQ gives such a record no place in a queue and none in the index.
"""

from __future__ import annotations

from mqlake.kernel import Message, encode_record
from mqlake.kernel.hosts import pack_host
from mqlake.logs.commit_log import MARKER, MARKER_MAGIC, MARKER_SIZE
from mqlake.store.neighbours import ROLLED_BACK, SCAR_TOPIC

MIN_FILLER = 92
"""The smallest record: a topic of one character, no body."""
SMALL_FILLER = 102
"""The smallest with its topic in full."""
MAX_FILLER = 1 << 20
"""RocketMQ takes a record into memory as a whole."""
HOST = pack_host("127.0.0.1:0")


def closing(start: int, end: int, timestamp: int) -> list[tuple[int, bytes]]:
    """What closes a file from `start` on: a marker, and before it one small filler where a record may have been."""
    made = []
    if end - start >= MIN_FILLER + MARKER_SIZE:
        size = min(SMALL_FILLER, end - start - MARKER_SIZE)
        made = fillers(start, start + size, timestamp)
        start += size
    return [*made, (start, MARKER.pack(end - start, MARKER_MAGIC))]


def fillers(start: int, end: int, timestamp: int) -> list[tuple[int, bytes]]:
    """Whole records that fill [start, end) of the log, or a little more where no record is so small."""
    made = []
    while start < end:
        size = min(max(end - start, MIN_FILLER), MAX_FILLER)
        if 0 < end - start - size < MIN_FILLER:
            size -= MIN_FILLER
        topic = SCAR_TOPIC[: size - MIN_FILLER + 1]
        body = bytes(size - MIN_FILLER + 1 - len(topic))
        message = Message(topic, body, sys_flag=ROLLED_BACK, born_timestamp=timestamp)
        made.append((start, encode_record(message, 0, 0, start, timestamp, HOST, False)))
        start += size
    return made
