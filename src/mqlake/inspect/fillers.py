"""Filler records, which replace lost ones so that every reader can read the log again.

A filler is a V1 record on the topic MQLAKE_SCAR, with its own offset, a valid CRC and the store time of the record
before it. Its state is "rolled back": RocketMQ puts such a record in no queue and no index.
"""

from __future__ import annotations

from mqlake.inspect.neighbours import ROLLED_BACK, SCAR_TOPIC
from mqlake.kernel import Message, encode_record
from mqlake.kernel.hosts import pack_host
from mqlake.logs.commit_log import MARKER, MARKER_MAGIC, MARKER_SIZE

MIN_FILLER = 92
"""Size of the smallest record: a topic of one character, no body."""
SMALL_FILLER = 102
"""Size of the smallest filler with its full topic."""
MAX_FILLER = 1 << 20
"""Size of the largest filler: RocketMQ reads a whole record into memory."""
HOST = pack_host("127.0.0.1:0")


def closing(start: int, end: int, timestamp: int) -> list[tuple[int, bytes]]:
    """Return what closes a file at `start`: a marker, after a small filler if a record may have been there."""
    made = []
    if end - start >= MIN_FILLER + MARKER_SIZE:
        size = min(SMALL_FILLER, end - start - MARKER_SIZE)
        made = fillers(start, start + size, timestamp)
        start += size
    return [*made, (start, MARKER.pack(end - start, MARKER_MAGIC))]


def fillers(start: int, end: int, timestamp: int) -> list[tuple[int, bytes]]:
    """Return whole records that fill [start, end) of the log, or slightly more if no record is small enough."""
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
