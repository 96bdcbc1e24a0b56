"""RocketMQ's offset message id: store host and physical offset in upper-case hexadecimal, 32 or 56 digits."""

from __future__ import annotations

import struct

from mqlake.errors import NoSuchMessage

OFFSET = struct.Struct(">q")


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    return (store_host + OFFSET.pack(physical_offset)).hex().upper()


def decode_message_id(message_id: str) -> tuple[bytes, int]:
    """Return the packed store host and the physical offset. Raises NoSuchMessage if the text is no such id."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise NoSuchMessage(
            f"message id {message_id!r}",
            f"it has {len(message_id)} characters; expected 32 hexadecimal digits, or 56 with an IPv6 store host",
        )
    return data[:-8], OFFSET.unpack_from(data, len(data) - 8)[0]
