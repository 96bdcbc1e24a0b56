"""RocketMQ's `checkpoint` file: 4096 bytes that start with six longs. All six are hints.

RocketMQ may leave any of them stale or zero after a clean stop, so a zero here never means "empty". 4.x writes the
first three, 5.0 four, 5.1.1 five, 5.5 all six.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

CHECKPOINT_SIZE = 4096
FIELDS = struct.Struct(">qqqqqq")


class RocketCheckpoint(NamedTuple):
    """The store times up to which log, queues and index were on disk, and three offsets of RocketMQ 5."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    queue_physical_offset: int = 0

    def encode(self) -> bytes:
        return FIELDS.pack(*self).ljust(CHECKPOINT_SIZE, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> RocketCheckpoint:
        """Decode the fields. A short file reads as if zeros followed."""
        return cls(*FIELDS.unpack_from(data.ljust(FIELDS.size, b"\0")))
