"""What goes in (`Message`), what comes out (`StoredMessage`), what a put answers (`PutReceipt`), and how safe it is.

`Message` and `PutReceipt` are the kernel's own: a put makes one of each. A `StoredMessage` is one record's bytes,
copied out of the log; a field is decoded when it is asked for, so that reading a million messages does not decode what
nobody looks at.
"""

from __future__ import annotations

import enum

from mqlake.codec.compression import decompress_body
from mqlake.codec.message_id import encode_message_id
from mqlake.kernel import Message, PutReceipt, StoredRecord
from mqlake.kernel.hosts import format_host

__all__ = ["WAITING_TOPICS", "Durability", "Message", "PutReceipt", "StoredMessage"]

WAITING_TOPICS = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
)
"""What lies there waits to be delivered, or says what was, by places of its own log: copies of messages have no use for
it, and would deliver again what was delivered."""


class Durability(enum.IntEnum):
    """How safe a message is when its put returns; each level holds what the one before it holds."""

    MEMORY = 0
    """In this process' memory only (a pool buffer): the process' death loses it."""
    PAGE_CACHE = 1
    """Handed to the operating system: the process may die, a power cut loses it."""
    DISK = 2
    """On the disk: a sync that covers it has succeeded."""
    REPLICA = 3
    """On the disk here and acknowledged by a replica."""


class StoredMessage(StoredRecord):
    """A message as the log holds it. Two are equal when their records are, byte for byte."""

    __slots__ = ()

    @property
    def body(self) -> bytes:
        """The body as the producer gave it, decompressed."""
        return decompress_body(self.raw_body, self.sys_flag)

    @property
    def born_host(self) -> str:
        return format_host(self.born_address)

    @property
    def store_host(self) -> str:
        return format_host(self.store_address)

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id: store host and physical offset, in hexadecimal."""
        return encode_message_id(self.store_address, self.physical_offset)

    def __repr__(self) -> str:
        return (
            f"StoredMessage({self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, {len(self.raw_body)} bytes)"
        )
