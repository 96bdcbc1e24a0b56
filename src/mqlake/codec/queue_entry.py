"""Consume-queue entries: 20 bytes in ordinary queues, 46 in the batch queues of RocketMQ 5."""

from __future__ import annotations

import struct
from typing import NamedTuple

ENTRY_SIZE = 20
ENTRY = struct.Struct(">qiq")
FILLER_SIZE = 0x7FFFFFFF
FILLER = ENTRY.pack(0, FILLER_SIZE, 0)
"""An entry without a message. It fills a queue's first file up to where the queue begins."""
LOST = 1
"""The tags code of a filler in the middle of a queue; those before its beginning have 0."""

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


def entry_of_no_message(log_first: int, following: int, log_file_size: int) -> bytes | None:
    """Return the entry of a lost message if the next one of its queue is at physical offset `following` or after it.

    RocketMQ neither fails on it nor skips more than the entry itself: it looks for a record of the entry's size, finds
    it in no file, and continues with the log file after the entry's offset. So the entry names the beginning of the
    file before that of the next message. In a log that does not begin at 0 this must be neither the first file of the
    log nor an earlier one: RocketMQ 5 finds the beginning of a queue by such offsets. None if there is no such file;
    then the entry names the next message, which RocketMQ's consumers get once more.
    """
    before = following - following % log_file_size - log_file_size
    return ENTRY.pack(before, FILLER_SIZE, LOST) if before > log_first or before == log_first == 0 else None
