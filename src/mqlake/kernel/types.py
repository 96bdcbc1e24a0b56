"""What the kernel takes and gives, for both of its twins."""

from __future__ import annotations

from mmap import mmap
from typing import NamedTuple, Protocol

Readable = bytes | bytearray | memoryview | mmap
Writable = bytearray | memoryview | mmap

# Answers of check_record where there is no record; a record answers with its size.
BLANK = 0
NOTHING = -1
BAD_MAGIC = -2
BAD_SIZE = -3
BAD_LENGTHS = -4
BAD_OFFSET = -5
BAD_CRC = -6
BAD_ENTRY = -7
TORN = -8
NO_TIME = -9
REACHED_END = 1
"""dispatch_records came to the end of its stretch."""
OTHER_RECORD = 2
"""match_packed came to a whole record that is none of the packed ones."""
KEEP_NUMBERS, KEEP_TIMES = 1, 2
"""What packed records keep of their own when they are appended: queue offsets, store times."""
IN_TURN = -1
"""The queue id of a packed record whose topic's queues take turns."""

REASONS = {
    NOTHING: "no record: zeroes, or fewer bytes than a header",
    BAD_MAGIC: "the magic number is not a record's",
    BAD_SIZE: "its size is smaller than any record or larger than what is left",
    BAD_LENGTHS: "body, topic and properties do not add up to its size",
    BAD_OFFSET: "it names another physical offset than its own",
    BAD_CRC: "the body's CRC differs from the one in its header",
    TORN: "a part of it was never written",
    NO_TIME: "a timed message does not say when it is due",
    BAD_ENTRY: "the queue's entry names another record than that of its number",
}


class RecordFields(NamedTuple):
    """The fields of one record; hosts packed, body and properties as places in the record."""

    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_crc: int
    body_at: int
    body_size: int
    topic: str
    properties_at: int
    properties_size: int


class LogFile(Protocol):
    """A file of the log, as `seek_timestamp` needs it."""

    @property
    def start(self) -> int: ...
    @property
    def pages(self) -> Readable: ...


Run = tuple[str, int, int, bytes]
"""Entries of one queue with consecutive queue offsets: topic, queue id, first queue offset, entries."""

Dispatched = tuple[int, int, list[Run], bytes, int, int, int]
"""Position reached, why it stopped, runs, index keys, number of records, offset and store time of the last."""

Surveyed = tuple[int, int, int, int, int, bool, list[tuple[int, int]]]
"""Position reached, why it stopped, number of records, store time of the first and the newest, whether times rise, and
hosts without a port, as position of the record and 0 (born) or 1 (stored)."""

COLUMN_NAMES = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "flag",
    "sys_flag",
    "body_crc",
    "born_timestamp",
    "store_timestamp",
    "born_host",
    "store_host",
    "reconsume_times",
    "prepared_offset",
    "tags",
    "keys",
    "properties",
    "body",
)
"""The columns of scan_columns: the one at place i is asked for by the bit 1 << i."""

Scanned = tuple[int, int, int, dict[str, bytes | bytearray]]
"""Position reached, why scan_columns stopped, number of rows, and Arrow buffers by name.

A column of numbers is one buffer under its own name. A text is `NAME.offsets` (one more than there are texts, int32)
and `NAME.values`: so are `body` and `tags`, the latter with a bitmap `tags.validity`. Of `topic`, `born_host` and
`store_host` these two are the dictionary, in the order of appearance, and the buffer `NAME` holds an int32 index for
each row. A list is `NAME.offsets` and the texts of its items: `keys.item`, `properties.name`, `properties.value`.
"""

COVERED, FAILED, TIMED_OUT, LEAD, STOPPED = range(5)
"""What GroupCommit answers to those who wait: durable so far; the sync failed; not in time; you are to sync; ended."""
