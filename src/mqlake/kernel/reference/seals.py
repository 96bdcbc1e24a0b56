"""The checksums of blocks of a log file."""

from __future__ import annotations

import struct

from mqlake.kernel.reference.hashing import crc32
from mqlake.kernel.types import Readable

CASTAGNOLI = 0x82F63B78


def crc32c(data: Readable, value: int = 0) -> int:
    """Return the CRC-32C of a buffer, continued from `value`."""
    value ^= 0xFFFFFFFF
    for byte in bytes(data):
        value = TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (CASTAGNOLI if value & 1 else 0)
    return value


TABLE = [_entry(byte) for byte in range(256)]


def checksum_blocks(log: Readable, position: int, end: int, block_bytes: int, crc: int = 0, crc_c: int = 0) -> bytes:
    """Return CRC-32 and CRC-32C of each block of [position, end), 4 bytes each, little-endian.

    Blocks begin at multiples of `block_bytes`; the last may be shorter. If `position` is inside of a block, its
    checksums are continued from `crc` and `crc_c`, those of the bytes before.
    """
    if position < 0 or end > len(log) or position > end or block_bytes <= 0:
        raise ValueError(f"[{position}, {end}) in blocks of {block_bytes} is not inside {len(log)} bytes")
    made = b""
    while position < end:
        stop = min(end, position - position % block_bytes + block_bytes)
        made += struct.pack("<II", crc32(log[position:stop], crc), crc32c(log[position:stop], crc_c))
        position, crc, crc_c = stop, 0, 0
    return made
