"""One record of the commit log: its parts, and whether it is valid."""

from __future__ import annotations

import struct
from collections.abc import Iterator

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
    TORN,
    Readable,
    RecordFields,
    Walked,
)

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
FIXED_SIZE = 91
BORN_IPV6 = 0x10
STORE_IPV6 = 0x20
SECTOR = 512
MAX_ZEROES = 4
"""The lengths of an empty topic and of empty properties are zeros."""

# size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag, born time
HEAD = struct.Struct(">iIiiiqqiq")
# after the store host: reconsume times, prepared transaction offset, body length
TAIL = struct.Struct(">iqi")


def check_record(data: Readable, position: int, end: int, physical_offset: int, check_crc: bool) -> int:
    """Return the size of the record at `position`, 0 for an end-of-file marker, or a negative code for an error."""
    if position < 0 or end > len(data) or position > end:
        raise ValueError(f"[{position}, {end}) is not inside {len(data)} bytes")
    parsed = parse(data[position:end], physical_offset, check_crc)
    return parsed if isinstance(parsed, int) else parsed[0]


def parse(data: Readable, physical_offset: int, check_crc: bool) -> int | tuple[int, RecordFields]:
    """Return the record that `data` begins with, as size and fields; or the code for why there is none."""
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


def is_torn(record: Readable, offset: int, fields: RecordFields) -> bool:
    """Return whether there are zeros where a writer leaves none: in the store time, at the end of topic or properties,
    or in all of a sector's part of these.

    Topic and properties have no CRC, and disks write sectors of 512 bytes in any order.
    """
    size = len(record)
    topic_at = fields.body_at + fields.body_size + (2 if record[7] == 0xAB else 1)
    if fields.store_timestamp == 0 or (topic_at < fields.properties_at - 2 and not record[fields.properties_at - 3]):
        return True
    if fields.properties_size and not record[size - 1]:
        return True
    at = topic_at
    while at < size:
        stop = min(size, ((offset + at) // SECTOR + 1) * SECTOR - offset)
        if stop - at > MAX_ZEROES and not any(record[at:stop]):
            return True
        at = stop
    return False


def walk_records(
    log: Readable, position: int, end: int, log_start: int, check_crc: bool, most: int = 2**63 - 1
) -> Walked:
    """Walk the valid records in [position, end) of a log file; with `check_crc` none may be torn either.

    The walk stops at `end`, after `most` records, at an end-of-file marker or at bytes that are not a record: see
    `Walked`.
    """
    if position < 0 or end > len(log) or position > end:
        raise ValueError(f"[{position}, {end}) is not inside {len(log)} bytes")
    count, last, timestamp = 0, -1, 0
    while position < end and count < most:
        parsed = parse(log[position:end], log_start + position, check_crc)
        if isinstance(parsed, int):
            return Walked(position, parsed, count, last, timestamp)
        size, fields = parsed
        if check_crc and is_torn(log[position : position + size], log_start + position, fields):
            return Walked(position, TORN, count, last, timestamp)
        last, timestamp = log_start + position, parsed[1].store_timestamp
        position += parsed[0]
        count += 1
    return Walked(position, REACHED_END, count, last, timestamp)


def decode_properties(data: Readable) -> dict[str, str]:
    """Decode RocketMQ's property text to a dict. Malformed parts are omitted; the last of equal names counts."""
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in _pairs(data)}


def raw_properties(data: Readable) -> dict[bytes, bytes]:
    """Do the same in bytes, so that names that are not UTF-8 stay distinct even if they decode to the same text."""
    return dict(_pairs(data))


def _pairs(data: Readable) -> Iterator[tuple[bytes, bytes]]:
    for part in bytes(data).split(b"\x02"):
        name, separator, value = part.partition(b"\x01")
        if separator and name and value:
            yield name, value
