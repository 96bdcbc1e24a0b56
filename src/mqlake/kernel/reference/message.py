"""The values that puts and reads create: a message to put, a receipt, a record that was read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mqlake.errors import InvalidMessage
from mqlake.kernel.delays import delay_properties
from mqlake.kernel.reference.record import decode_properties, parse

if TYPE_CHECKING:
    from datetime import datetime

KEYS = "KEYS"
TAGS = "TAGS"
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


class Message:
    """A message to be stored. `tags` and `keys` are written as the properties that RocketMQ knows them by.

    topic            where it goes; a topic is made with its first message
    body             bytes
    tags             one tag, for filters
    keys             one key or several, for look-ups
    queue_id         the topic's queue; None takes the queues in turn
    properties       names and values, all of type str
    deliver_at       deliver it at this time: a datetime, or milliseconds since 1970
    delay_s          deliver it after so many seconds
    delay_level      deliver it after RocketMQ's delay of this level; of these three at most one is given
    flag, sys_flag, born_timestamp, born_host, reconsume_times, prepared_offset
                     fields of a record, for copies of messages
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "prepared_offset",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
    )

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
        deliver_at: datetime | int | None = None,
        delay_s: float | None = None,
        delay_level: int | None = None,
    ) -> None:
        """`keys` is one key or several; `queue_id` None takes the topic's queues in turn; `sys_flag` is RocketMQ's.

        One of `deliver_at` (a datetime, or milliseconds since 1970), `delay_s` and `delay_level` sets when it is
        delivered: see `kernel/delays.py`.
        """
        self.topic = topic
        self.body = body
        self.queue_id = queue_id
        self.properties = {} if properties is None else dict(properties)
        if keys or isinstance(keys, int):  # 0 is no key, but it was meant as one
            self.properties[KEYS] = keys if isinstance(keys, str) else join_keys(keys)
        if tags is not None:
            if not isinstance(tags, str):
                raise InvalidMessage("tags", repr(tags), "one tag of type str")
            if tags:
                self.properties[TAGS] = tags
        if deliver_at is not None or delay_s is not None or delay_level is not None:
            self.properties.update(delay_properties(deliver_at, delay_s, delay_level))
        self.flag = whole_number("flag", flag, INT32_MAX)
        self.sys_flag = whole_number("sys_flag", sys_flag, INT32_MAX)
        if born_timestamp is None:
            born_timestamp = time.time_ns() // 1_000_000
        self.born_timestamp = whole_number("born_timestamp", born_timestamp, INT64_MAX)
        self.born_host = born_host
        self.reconsume_times = whole_number("reconsume_times", reconsume_times, INT32_MAX)
        self.prepared_offset = whole_number("prepared_offset", prepared_offset, INT64_MAX)

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties)

    def __repr__(self) -> str:
        # a body of another type is refused by put, and must be shown until then
        size = f"{len(self.body)} bytes" if hasattr(self.body, "__len__") else repr(self.body)
        return f"Message({self.topic!r}, {size}, queue_id={self.queue_id}, {self.properties!r})"


def whole_number(field: str, value: int, most: int) -> int:
    """Return a number if it fits into its field of a record, a signed int32 or int64; else raise InvalidMessage."""
    if not isinstance(value, int) or not -most - 1 <= value <= most:
        raise InvalidMessage(field, repr(value), f"a whole number in [{-most - 1}, {most}]")
    return value


def join_keys(keys: Iterable[str]) -> str:
    """Join keys as the KEYS property holds them: separated by one space."""
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        raise InvalidMessage("keys", repr(keys), "one key or several, each of type str")
    parts = list(keys)
    for key in parts:
        if not isinstance(key, str):
            raise InvalidMessage("keys", repr(key), "keys of type str")
        if not key or " " in key:
            raise InvalidMessage("keys", repr(key), "keys that are not empty and hold no space: spaces separate them")
    return " ".join(parts)


def split_keys(properties: Mapping[str, str]) -> list[str]:
    return [key for key in properties.get(KEYS, "").split(" ") if key]


class PutReceipt(NamedTuple):
    """The result of a put: where the message is, and how durable."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int
    durability: Any
    store_host: bytes

    @property
    def end(self) -> int:
        """The physical offset after the record."""
        return self.physical_offset + self.size

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id, as a broker returns it to a producer."""
        return (self.store_host + self.physical_offset.to_bytes(8, "big")).hex().upper()


class StoredRecord:
    """One record's bytes, copied from the log. The header is parsed at creation, and the record must be whole."""

    def __init__(self, record: bytes) -> None:
        parsed = parse(record, -1, False)
        size = parsed if isinstance(parsed, int) else parsed[0]
        if isinstance(parsed, int) or size != len(record):
            raise ValueError(f"not one whole record: {size}")
        fields = parsed[1]
        self.record = record
        self.topic = fields.topic
        self.properties = decode_properties(record[fields.properties_at :])
        self.raw_body = record[fields.body_at : fields.body_at + fields.body_size]
        self.size = size
        self.queue_id = fields.queue_id
        self.queue_offset = fields.queue_offset
        self.physical_offset = fields.physical_offset
        self.flag = fields.flag
        self.sys_flag = fields.sys_flag
        self.born_timestamp = fields.born_timestamp
        self.store_timestamp = fields.store_timestamp
        self.born_address = fields.born_host
        self.store_address = fields.store_host
        self.reconsume_times = fields.reconsume_times
        self.prepared_offset = fields.prepared_offset
        self.body_crc = fields.body_crc

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties)

    def __reduce__(self) -> tuple[type, tuple[bytes]]:
        return type(self), (self.record,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredRecord) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.record)
