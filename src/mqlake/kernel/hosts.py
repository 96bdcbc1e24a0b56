"""Hosts as records hold them: 4 or 16 bytes of address, then 4 bytes of port."""

from __future__ import annotations

import functools
import struct
from _socket import (
    AF_INET,
    AF_INET6,
    inet_ntop,
    inet_pton,
)  # `socket` would be a thirtieth of the time of `import mqlake`

from mqlake.errors import InvalidMessage

PORT = struct.Struct(">i")


@functools.lru_cache(maxsize=4096)
def pack_host(text: str) -> bytes:
    """Pack `127.0.0.1:10911` or `[::1]:10911`. Raises InvalidMessage for any other text."""
    address, _, port = text.rpartition(":")
    address = address.strip("[]")
    try:
        packed = inet_pton(AF_INET6 if ":" in address else AF_INET, address)
        number = int(port)
        if not 0 <= number <= 65535:
            raise ValueError(port)
    except (OSError, ValueError):
        raise InvalidMessage("host", repr(text), "an address and a port, like 127.0.0.1:10911 or [::1]:10911") from None
    return packed + PORT.pack(number)


def format_host(packed: bytes) -> str:
    """Return the text of a packed host: `127.0.0.1:10911`, `[::1]:10911`."""
    (port,) = PORT.unpack_from(packed, len(packed) - 4)
    if len(packed) == 8:
        return f"{inet_ntop(AF_INET, packed[:4])}:{port}"
    return f"[{inet_ntop(AF_INET6, packed[:16])}]:{port}"
