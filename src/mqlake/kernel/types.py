"""Argument and result types of the kernel, shared by the compiled modules and the reference."""

from __future__ import annotations

from mmap import mmap
from typing import NamedTuple, Protocol

Readable = bytes | bytearray | memoryview | mmap
Writable = bytearray | memoryview | mmap

# What check_record returns if there is no record. For a record it returns its size.
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
"""dispatch_records reached the end of its range."""
OTHER_RECORD = 2
"""match_packed reached a whole record that is not one of the packed ones."""
KEEP_NUMBERS, KEEP_TIMES = 1, 2
"""What packed records keep when they are appended: their queue offsets, their store times."""
IN_TURN = -1
"""The queue id of a packed record that goes to its topic's queues in turn."""

REASONS = {
    NOTHING: "no record: zeros, or fewer bytes than a header",
    BAD_MAGIC: "the magic number is not a record's",
    BAD_SIZE: "its size is smaller than any record or larger than the bytes that are left",
    BAD_LENGTHS: "body, topic and properties do not add up to its size",
    BAD_OFFSET: "its header holds another physical offset",
    BAD_CRC: "the body's CRC differs from the one in its header",
    TORN: "a part of it was never written",
    NO_TIME: "a timed message has no delivery time",
    BAD_ENTRY: "the queue's entry points to a record with another queue offset",
}


class RecordFields(NamedTuple):
    """The fields of one record. Hosts are packed; body and properties are positions in the record."""

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
    """A log file, as `seek_timestamp` needs it."""

    @property
    def start(self) -> int: ...
    @property
    def pages(self) -> Readable: ...


Run = tuple[str, int, int, bytes]
"""Entries of one queue with consecutive queue offsets: topic, queue id, first queue offset, the entries' bytes."""


class Walked(NamedTuple):
    """How far `walk_records` came."""

    position: int
    why: int
    """REACHED_END, BLANK at an end-of-file marker, or the code of `check_record` for what is no record."""
    record_count: int
    last_offset: int
    """Physical offset of the last record; -1 without one."""
    last_timestamp: int
    """Its store time; 0 without one."""


class Dispatched(NamedTuple):
    """What `dispatch_records` found in a stretch of the log."""

    position: int
    why: int
    """REACHED_END, BLANK at an end-of-file marker, or the code of `check_record` for what is no record."""
    runs: list[Run]
    keys: bytes
    """Index keys, packed as little-endian (hash int32, physical offset int64, store time int64)."""
    record_count: int
    last_offset: int
    """Physical offset of the last record; -1 without one."""
    last_timestamp: int
    """Its store time; 0 without one."""


class Surveyed(NamedTuple):
    """What `survey_records` found in a stretch of the log."""

    position: int
    why: int
    """REACHED_END, BLANK at an end-of-file marker, or the code of `check_record` for what is no record."""
    record_count: int
    first_timestamp: int
    oldest_timestamp: int
    newest_timestamp: int
    times_rise: bool
    bad_ports: list[tuple[int, int]]
    """Hosts without a port: position of the record, and 0 (where it was born) or 1 (where it is stored)."""


class MatchedKeys(NamedTuple):
    """How far `match_index_keys` came with entries and keys, and where they differ."""

    entry: int
    key: int
    missing_count: int
    """Keys without an entry; `first_missing` are the first of them."""
    first_missing: list[int]
    surplus_count: int
    """Entries without a key; `first_surplus` are the first of them."""
    first_surplus: list[int]
    first_late: list[int]
    """The first entries that have their key, but another time."""


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
"""The columns of scan_columns. Bit `1 << i` of its mask selects column i."""

Scanned = tuple[int, int, int, dict[str, bytes | bytearray]]
"""Position reached, why scan_columns stopped, row count, and Arrow buffers by name.

A numeric column is one buffer under its own name. A text column is `NAME.offsets` (int32, one more than there are
texts) and `NAME.values`; so are `body` and `tags`, and `tags` also has a bitmap `tags.validity`. `topic`, `born_host`
and `store_host` are dictionary encoded: the two buffers hold the dictionary in order of first appearance, and the
buffer `NAME` holds an int32 index per row. A list column is `NAME.offsets` and the texts of its items: `keys.item`,
`properties.name`, `properties.value`.
"""

APPENDED, COMMITTED, DURABLE, REPLICATED, DISPATCHED, VISIBLE = range(6)
"""The ends of the log, as `Ends` names them."""

REACHED, LATE, NUDGED = range(3)
"""What `Ends.wait` answers: the end is there; the time is over; look at your condition again."""

MAX_PIN_MS = 10_000
"""A clock that is set back by less than this leaves the store time where it is."""

COVERED, FAILED, TIMED_OUT, LEAD, STOPPED = range(5)
"""What GroupCommit answers a waiting thread: durable; the sync failed; timed out; lead the sync; stopped."""
