"""CRC-32 and Java's string hash."""

from __future__ import annotations

import zlib

from mqlake.kernel.types import Readable


def crc32(data: Readable, value: int = 0) -> int:
    """Return the CRC-32 of a buffer, continued from `value`."""
    return zlib.crc32(data, value)


def as_int64(value: int) -> int:
    """Wrap a sum of 64-bit numbers from a file around, as Java does."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def java_hash(text: str, seed: int = 0) -> int:
    """Return Java's String.hashCode: 31 * h + unit over the UTF-16 units, continued from `seed`."""
    units = text.encode("utf-16-be", "surrogatepass")
    h = seed & 0xFFFFFFFF
    for at in range(0, len(units), 2):
        h = (31 * h + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return h - (1 << 32) if h & 0x80000000 else h
