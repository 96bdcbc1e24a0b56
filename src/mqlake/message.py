"""What goes in (`Message`), what comes out (`StoredMessage`), and what a put answers (`PutReceipt`).

A `StoredMessage` is one record's bytes, copied out of the log, and decodes a field when it is asked for: reading a
million messages does not decode what nobody looks at.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NewType

from mqlake.codec.compression import decompress_body
from mqlake.codec.host import format_host, pack_host
from mqlake.codec.message_id import encode_message_id
from mqlake.errors import InvalidMessage
from mqlake.kernel import decode_properties, decode_record
from mqlake.kernel.types import RecordFields

PhysicalOffset = NewType("PhysicalOffset", int)
"""Bytes from the beginning of the commit log."""
QueueOffset = NewType("QueueOffset", int)
"""The number of a message in its queue."""

KEYS = "KEYS"
TAGS = "TAGS"


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


class Message:
    """A message to be stored. `tags` and `keys` are written as the properties that RocketMQ knows them by."""

    __slots__ = (
        "body",
        "born_address",
        "born_timestamp",
        "flag",
        "prepared_offset",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
    )

    topic: str
    body: bytes
    queue_id: int | None
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    born_address: bytes
    reconsume_times: int
    prepared_offset: int

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        queue_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> None:
        """`keys` is one key or several; `queue_id` None takes the topic's queues in turn; `sys_flag` is RocketMQ's."""
        self.topic = topic
        self.body = body
        self.queue_id = queue_id
        own = dict(properties) if properties else {}
        if keys:
            own[KEYS] = join_keys(keys)
        if tags:
            own[TAGS] = tags
        self.properties = own
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = time.time_ns() // 1_000_000 if born_timestamp is None else born_timestamp
        self.born_address = b"" if born_host is None else pack_host(born_host)
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, queue_id={self.queue_id}, {self.properties!r})"


class StoredMessage:
    """A message as the log holds it. Two are equal when their records are, byte for byte."""

    __slots__ = ("_fields", "_properties", "record")

    record: bytes
    """The whole record as it lies in the commit log."""

    def __init__(self, record: bytes) -> None:
        self.record = record
        self._fields: RecordFields | None = None
        self._properties: dict[str, str] | None = None

    @property
    def fields(self) -> RecordFields:
        """All fields of the record's header, decoded once."""
        fields = self._fields
        if fields is None:
            fields = self._fields = RecordFields._make(decode_record(self.record))
        return fields

    @property
    def topic(self) -> str:
        return self.fields.topic

    @property
    def queue_id(self) -> int:
        return self.fields.queue_id

    @property
    def queue_offset(self) -> QueueOffset:
        return QueueOffset(self.fields.queue_offset)

    @property
    def physical_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self.fields.physical_offset)

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return len(self.record)

    @property
    def raw_body(self) -> bytes:
        """The body as stored: compressed where `sys_flag` says so."""
        fields = self.fields
        return self.record[fields.body_at : fields.body_at + fields.body_size]

    @property
    def body(self) -> bytes:
        """The body as the producer gave it, decompressed."""
        return decompress_body(self.raw_body, self.fields.sys_flag)

    @property
    def properties(self) -> dict[str, str]:
        properties = self._properties
        if properties is None:
            at = self.fields.properties_at
            properties = self._properties = decode_properties(self.record[at : at + self.fields.properties_size])
        return properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties)

    @property
    def flag(self) -> int:
        return self.fields.flag

    @property
    def sys_flag(self) -> int:
        return self.fields.sys_flag

    @property
    def born_timestamp(self) -> int:
        return self.fields.born_timestamp

    @property
    def store_timestamp(self) -> int:
        return self.fields.store_timestamp

    @property
    def born_host(self) -> str:
        return format_host(self.fields.born_host)

    @property
    def store_host(self) -> str:
        return format_host(self.fields.store_host)

    @property
    def reconsume_times(self) -> int:
        return self.fields.reconsume_times

    @property
    def prepared_offset(self) -> int:
        return self.fields.prepared_offset

    @property
    def body_crc(self) -> int:
        return self.fields.body_crc

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id: store host and physical offset, in hexadecimal."""
        return encode_message_id(self.fields.store_host, self.fields.physical_offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredMessage) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.record)

    def __repr__(self) -> str:
        return (
            f"StoredMessage({self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, {self.fields.body_size} bytes)"
        )


class PutReceipt(NamedTuple):
    """What a put answers: where the message is, and how safe."""

    topic: str
    queue_id: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    store_timestamp: int
    durability: Durability
    store_host: bytes

    @property
    def end(self) -> PhysicalOffset:
        """The offset just behind the record."""
        return PhysicalOffset(self.physical_offset + self.size)

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id, as a broker returns it to a producer."""
        return encode_message_id(self.store_host, self.physical_offset)


def join_keys(keys: str | Iterable[str]) -> str:
    """Keys as the KEYS property holds them: separated by one space."""
    if isinstance(keys, str):
        return keys
    parts = list(keys)
    for key in parts:
        if not key or " " in key:
            raise InvalidMessage("keys", repr(key), "keys that are not empty and hold no space: spaces separate them")
    return " ".join(parts)


def split_keys(properties: Mapping[str, str]) -> list[str]:
    return [key for key in properties.get(KEYS, "").split(" ") if key]
