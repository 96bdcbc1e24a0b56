"""The message that goes in (`Message`), the message that comes out (`StoredMessage`), the receipt of a put
(`PutReceipt`), and how durable it is (`Durability`).

`Message` and `PutReceipt` are kernel types, because every put makes one of each. A `StoredMessage` holds the bytes of
one record, copied out of the log. It decodes a field on access, so that reading a million messages does not decode
fields that nobody uses.
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
"""Topics that hold messages before their delivery, or notes of what was delivered. Their records name physical offsets
of their own log. A copy of the messages must leave them out: it would deliver again what was already delivered."""


class Durability(enum.IntEnum):
    """How durable a message is when its put returns. Each level includes the one before it."""

    MEMORY = 0
    """In the memory of this process only (a pool buffer): lost if the process dies."""
    PAGE_CACHE = 1
    """In the page cache: survives the death of the process, lost in a power cut."""
    DISK = 2
    """On disk: a sync that covers it has succeeded."""
    REPLICA = 3
    """On disk here, and confirmed by a replica."""

    def __str__(self) -> str:
        return self.name

    def __format__(self, form: str) -> str:
        return format(self.name, form)


class StoredMessage(StoredRecord):
    """A message as the log holds it. Two are equal if their records are, byte for byte."""

    __slots__ = ()

    @property
    def body(self) -> bytes:
        """Return the body as the producer sent it, decompressed."""
        return decompress_body(self.raw_body, self.sys_flag)

    @property
    def born_host(self) -> str:
        return format_host(self.born_address)

    @property
    def store_host(self) -> str:
        return format_host(self.store_address)

    @property
    def message_id(self) -> str:
        """Return RocketMQ's offset message id: store host and physical offset, in hexadecimal."""
        return encode_message_id(self.store_address, self.physical_offset)

    def __repr__(self) -> str:
        return (
            f"StoredMessage({self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, {len(self.raw_body)} bytes)"
        )
