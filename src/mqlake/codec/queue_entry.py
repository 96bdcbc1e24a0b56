"""Consume-queue entries: 20 bytes in ordinary queues, 46 in the batch queues of RocketMQ 5."""

from __future__ import annotations

import struct
from typing import NamedTuple

ENTRY_SIZE = 20
ENTRY = struct.Struct(">qiq")
FILLER_SIZE = 0x7FFFFFFF
FILLER = ENTRY.pack(0, FILLER_SIZE, 0)
"""An entry without a message. It fills a queue's first file up to where the queue begins."""

BATCH_ENTRY_SIZE = 46
BATCH_ENTRY = struct.Struct(">qiqqqhii")


class QueueEntry(NamedTuple):
    """The physical offset and size of a message, and the hash of its tag."""

    physical_offset: int
    size: int
    tags_code: int


class BatchEntry(NamedTuple):
    """The place of a record with one or more messages, and the queue offset of the first of them."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_offset: int
    message_count: int
    compacted_offset: int
    reserved: int
