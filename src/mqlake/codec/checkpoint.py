"""RocketMQ's `checkpoint` file: 4096 bytes that begin with six longs, all of them hints.

Any of them may be stale or zero after a clean stop of the original, so nothing concludes "empty" from a zero here.
4.x knows the first three, 5.0 four, 5.1.1 five, 5.5 all six.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

CHECKPOINT_SIZE = 4096
FIELDS = struct.Struct(">qqqqqq")


class RocketCheckpoint(NamedTuple):
    """Store times up to which log, queues and index were on disk; and three offsets of RocketMQ 5."""

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
        """A short file reads as if zeroes followed."""
        return cls(*FIELDS.unpack_from(data.ljust(FIELDS.size, b"\0")))
