"""Encode a message as a record."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from mqlake.errors import InvalidMessage
from mqlake.kernel.hosts import pack_host
from mqlake.kernel.reference.hashing import crc32
from mqlake.kernel.reference.message import Message
from mqlake.kernel.reference.record import BORN_IPV6, HEAD, MAGIC_V1, MAGIC_V2, STORE_IPV6, TAIL

MAX_PROPERTIES = 32767
CRC_NAME = "__CRC32#"
CRC_PROPERTY = b"__CRC32#\x010000000000\x02"


def encode_record(
    message: Message,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
    append_crc: bool,
) -> bytes:
    """Return the record of a message at a physical offset."""
    born_host = born_host_of(message, store_host)
    topic = message.topic.encode()
    body = body_of(message)
    properties = encode_properties(message.properties, append_crc)
    v2 = len(topic) > 127
    sys_flag = message.sys_flag & ~(BORN_IPV6 | STORE_IPV6)
    sys_flag |= (BORN_IPV6 if len(born_host) == 20 else 0) | (STORE_IPV6 if len(store_host) == 20 else 0)
    magic = MAGIC_V2 if v2 else MAGIC_V1
    body_crc = crc32(body) & 0x7FFFFFFF
    parts = [
        born_host,
        struct.pack(">q", store_timestamp),
        store_host,
        TAIL.pack(message.reconsume_times, message.prepared_offset, len(body)),
        body,
        struct.pack(">h" if v2 else ">b", len(topic)),
        topic,
        struct.pack(">h", len(properties)),
        properties,
    ]
    size = HEAD.size + sum(map(len, parts))
    places = queue_offset, physical_offset
    head = HEAD.pack(size, magic, body_crc, queue_id, message.flag, *places, sys_flag, message.born_timestamp)
    record = bytearray(b"".join([head, *parts]))
    if append_crc:
        crc = crc32(record[: -len(CRC_PROPERTY)]) & 0x7FFFFFFF
        record[-11:-1] = f"{crc:010d}"[::-1].encode()  # least significant digit first
    return bytes(record)


def body_of(message: Message) -> bytes:
    try:
        return bytes(memoryview(message.body))
    except (TypeError, BufferError):
        raise InvalidMessage("body", repr(type(message.body)), "bytes or another bytes-like object") from None


def born_host_of(message: Message, store_host: bytes) -> bytes:
    """Return the producer's host, packed."""
    return store_host if message.born_host is None else pack_host(message.born_host)


def encode_properties(properties: Mapping[str, str], append_crc: bool) -> bytes:
    """Return RocketMQ's property text: name \\x01 value \\x02, one after the other."""
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
        raise InvalidMessage("properties", shown, "names and values of type str")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("properties", shown, "text without lone surrogates") from None
    if not text:
        raise InvalidMessage("properties", shown, "no empty name or value: readers drop them")
    if "\x01" in text or "\x02" in text:
        raise InvalidMessage(
            "properties", shown, "no \\x01 or \\x02 inside a name or a value: they separate properties on disk"
        )
    return text
