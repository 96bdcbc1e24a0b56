"""One record of the commit log: encode a message, place the bytes, check them, decode them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from mqlake.errors import InvalidMessage
from mqlake.kernel.reference.hashing import crc32
from mqlake.kernel.types import (
    BAD_CRC,
    BAD_LENGTHS,
    BAD_MAGIC,
    BAD_OFFSET,
    BAD_SIZE,
    BLANK,
    NOTHING,
    REACHED_END,
    Encodable,
    Readable,
    RecordFields,
    Writable,
)

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
FIXED_SIZE = 91
BORN_IPV6 = 0x10
STORE_IPV6 = 0x20
MAX_PROPERTIES = 32767
CRC_NAME = "__CRC32#"
CRC_PROPERTY = b"__CRC32#\x010000000000\x02"

# size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag, born time
HEAD = struct.Struct(">iIiiiqqiq")
# after the store host: reconsume times, prepared transaction offset, body length
TAIL = struct.Struct(">iqi")


def encode_record(message: Encodable, queue_id: int, store_host: bytes, max_body: int, append_crc: bool) -> bytes:
    """The record of a message, complete but for queue offset, physical offset and store time: see `place_record`."""
    topic = message.topic.encode()
    body = bytes(message.body)
    properties = encode_properties(message.properties, append_crc)
    born_host = message.born_address or store_host
    if len(body) > max_body:
        raise InvalidMessage("body", f"{len(body)} bytes", f"at most {max_body} bytes (maxMessageSize)")
    v2 = len(topic) > 127
    sys_flag = message.sys_flag & ~(BORN_IPV6 | STORE_IPV6)
    sys_flag |= (BORN_IPV6 if len(born_host) == 20 else 0) | (STORE_IPV6 if len(store_host) == 20 else 0)
    size = FIXED_SIZE - 16 + len(born_host) + len(store_host) + v2 + len(body) + len(topic) + len(properties)
    magic = MAGIC_V2 if v2 else MAGIC_V1
    body_crc = crc32(body) & 0x7FFFFFFF
    return b"".join(
        [
            HEAD.pack(size, magic, body_crc, queue_id, message.flag, 0, 0, sys_flag, message.born_timestamp),
            born_host,
            bytes(8),
            store_host,
            TAIL.pack(message.reconsume_times, message.prepared_offset, len(body)),
            body,
            struct.pack(">h" if v2 else ">b", len(topic)),
            topic,
            struct.pack(">h", len(properties)),
            properties,
        ]
    )


def encode_properties(properties: Mapping[str, str], append_crc: bool) -> bytes:
    """RocketMQ's property text: name \\x01 value \\x02, one after the other."""
    text = "".join(
        f"{_property_text(name, name)}\x01{_property_text(name, value)}\x02"
        for name, value in properties.items()
        if not (append_crc and name == CRC_NAME)
    )
    encoded = text.encode() + (CRC_PROPERTY if append_crc else b"")
    if len(encoded) > MAX_PROPERTIES:
        raise InvalidMessage("properties", f"{len(encoded)} bytes encoded", f"at most {MAX_PROPERTIES} bytes")
    return encoded


def _property_text(name: object, text: object) -> str:
    shown = f"{name!r}: {text!r}"
    if not isinstance(text, str):
        raise InvalidMessage("properties", shown, "names and values are str")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("properties", shown, "text that UTF-8 can carry") from None
    if not text:
        raise InvalidMessage("properties", shown, "no empty name or value: readers drop such a property")
    if "\x01" in text or "\x02" in text:
        raise InvalidMessage(
            "properties", shown, "no \\x01 or \\x02 inside a name or a value: they separate properties on disk"
        )
    return text


def place_record(
    target: Writable,
    position: int,
    record: bytes,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    append_crc: bool,
) -> None:
    """Copy an encoded record into the log and patch what only the log knows: its place, its number, its time."""
    size = len(record)
    if position < 0 or size < FIXED_SIZE or position + size > len(target):
        raise ValueError(f"a record of {size} bytes does not fit at {position} of {len(target)}")
    placed = bytearray(record)
    struct.pack_into(">qq", placed, 20, queue_offset, physical_offset)
    struct.pack_into(">q", placed, 68 if placed[39] & BORN_IPV6 else 56, store_timestamp)
    if append_crc:
        crc = crc32(placed[:-20]) & 0x7FFFFFFF
        placed[-11:-1] = f"{crc:010d}"[::-1].encode()
    target[position : position + size] = bytes(placed)


def place_records(
    target: Writable,
    position: int,
    records: list[bytes],
    queue_offsets: list[int],
    physical_offset: int,
    store_timestamp: int,
    append_crc: bool,
) -> None:
    """`place_record` for a batch whose records lie one behind the other."""
    for record, queue_offset in zip(records, queue_offsets, strict=True):
        place_record(target, position, record, queue_offset, physical_offset, store_timestamp, append_crc)
        position += len(record)
        physical_offset += len(record)


def check_record(data: Readable, position: int, end: int, physical_offset: int, check_crc: bool) -> int:
    """The size of the record at `position`, or 0 for an end-of-file marker, or a negative code for what is wrong."""
    if position < 0 or end > len(data) or position > end:
        raise ValueError(f"[{position}, {end}) is not inside of {len(data)} bytes")
    parsed = parse(data[position:end], physical_offset, check_crc)
    return parsed if isinstance(parsed, int) else parsed[0]


def parse(data: Readable, physical_offset: int, check_crc: bool) -> int | tuple[int, RecordFields]:
    """The record that `data` begins with, as size and fields; or the code for why there is none."""
    if len(data) < 8:
        return NOTHING
    size, magic = struct.unpack_from(">iI", data)
    if magic == MAGIC_BLANK:
        return BLANK if size >= 8 else BAD_SIZE
    if magic not in (MAGIC_V1, MAGIC_V2):
        return NOTHING if magic == 0 and size == 0 else BAD_MAGIC
    if not FIXED_SIZE <= size <= len(data):
        return BAD_SIZE
    _, _, body_crc, queue_id, flag, queue_offset, found_offset, sys_flag, born_timestamp = HEAD.unpack_from(data)
    store_time_at = 48 + (20 if sys_flag & BORN_IPV6 else 8)
    tail_at = store_time_at + 8 + (20 if sys_flag & STORE_IPV6 else 8)
    if tail_at + 16 > size:
        return BAD_LENGTHS
    (store_timestamp,) = struct.unpack_from(">q", data, store_time_at)
    reconsume_times, prepared_offset, body_size = TAIL.unpack_from(data, tail_at)
    body_at = tail_at + 16
    topic_length = struct.Struct(">h" if magic == MAGIC_V2 else ">b")
    at = body_at + body_size
    if body_size < 0 or at + topic_length.size + 2 > size:
        return BAD_LENGTHS
    (topic_size,) = topic_length.unpack_from(data, at)
    topic_at = at + topic_length.size
    if topic_size < 0 or topic_at + topic_size + 2 > size:
        return BAD_LENGTHS
    (properties_size,) = struct.unpack_from(">h", data, topic_at + topic_size)
    properties_at = topic_at + topic_size + 2
    if properties_size < 0 or properties_at + properties_size != size:
        return BAD_LENGTHS
    if physical_offset >= 0 and found_offset != physical_offset:
        return BAD_OFFSET
    if check_crc and body_size > 0 and crc32(data[body_at : body_at + body_size]) & 0x7FFFFFFF != body_crc & 0xFFFFFFFF:
        return BAD_CRC
    return size, RecordFields(
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=found_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=bytes(data[48:store_time_at]),
        store_timestamp=store_timestamp,
        store_host=bytes(data[store_time_at + 8 : tail_at]),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body_crc=body_crc,
        body_at=body_at,
        body_size=body_size,
        topic=bytes(data[topic_at : topic_at + topic_size]).decode("utf-8", "replace"),
        properties_at=properties_at,
        properties_size=properties_size,
    )


def walk_records(
    log: Readable, position: int, end: int, log_start: int, check_crc: bool
) -> tuple[int, int, int, int, int]:
    """Step over the records in [position, end) of a log file, as far as they hold.

    Returns where it stopped, why (1 = `end`, 0 = end-of-file marker, negative = code of `check_record`), the number of
    records, and physical offset and store time of the last of them (-1 and 0 where there is none).
    """
    if position < 0 or end > len(log) or position > end:
        raise ValueError(f"[{position}, {end}) is not inside of {len(log)} bytes")
    count, last, timestamp = 0, -1, 0
    while position < end:
        parsed = parse(log[position:end], log_start + position, check_crc)
        if isinstance(parsed, int):
            return position, parsed, count, last, timestamp
        last, timestamp = log_start + position, parsed[1].store_timestamp
        position += parsed[0]
        count += 1
    return position, REACHED_END, count, last, timestamp


def decode_record(record: bytes) -> RecordFields:
    """The fields of one whole record; ValueError where it is none."""
    parsed = parse(record, -1, False)
    size = parsed if isinstance(parsed, int) else parsed[0]
    if isinstance(parsed, int) or size != len(record):
        raise ValueError(f"not one whole record: {size}")
    return parsed[1]


def decode_properties(data: Readable) -> dict[str, str]:
    """RocketMQ's property text as a dict: malformed parts are left out, of a name given twice the last counts."""
    found = {}
    for part in bytes(data).split(b"\x02"):
        name, separator, value = part.partition(b"\x01")
        if separator and name and value:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found
