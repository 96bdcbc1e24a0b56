"""A seal file: the checksums of the blocks of one log file.

A head, then one byte for each block (1 if it is sealed), then the checksums of each block, CRC-32 and CRC-32C. Blocks
have 64 KiB; the last one sealed may be shorter, because the log ended there when it was sealed. All numbers are
little-endian. A file with a wrong checksum of its own counts as missing.

Why two checksums: RocketMQ's body CRC is a CRC-32, so damage inside of a body that it does not see is not seen by a
CRC-32 of the block either. Together the two are a CRC of 64 bits: they find every change of one, two or three bits,
every odd number of changed bits, every burst of up to 64 bits, and of all other changes all but one in 2 ** 64.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

MAGIC: Final = b"MQSEALS1"
BLOCK_BYTES: Final = 64 << 10
HEAD: Final = struct.Struct("<8sIiqqqq")
"""Magic, CRC-32 of what follows, block size; start and size of the log file, the store time of its first record, and
the position up to which it is sealed."""
SUMS: Final = struct.Struct("<II")
MAX_SIZE: Final = 1 << 20
"""Log files have less than 2 GiB, so no seal file is larger."""


class SealTable(NamedTuple):
    """The seals of one log file. Blocks without a seal have the state 0 and checksums of zero."""

    start: int
    file_size: int
    first_time: int
    """The store time of the file's first record when it was sealed: another log has another one there."""
    end: int
    """The position in the file up to which blocks were looked at."""
    states: bytes
    sums: bytes

    @property
    def sealed_bytes(self) -> int:
        short = -self.end % BLOCK_BYTES if self.states[-1:] == b"\1" else 0
        return self.states.count(1) * BLOCK_BYTES - short

    def block(self, index: int) -> tuple[int, int]:
        """Return the positions [low, high) of a block in its file."""
        return index * BLOCK_BYTES, min((index + 1) * BLOCK_BYTES, self.end)

    def sums_of(self, index: int) -> bytes:
        return self.sums[index * SUMS.size : (index + 1) * SUMS.size]

    def sealed(self) -> list[int]:
        """Return the blocks that are sealed."""
        return [index for index, state in enumerate(self.states) if state]

    def without(self, low: int, high: int) -> SealTable:
        """Return the table without the seals of the blocks that overlap positions [low, high)."""
        first, stop = max(0, low // BLOCK_BYTES), min(block_count(high), len(self.states))
        if first >= stop:
            return self
        states = self.states[:first] + bytes(stop - first) + self.states[stop:]
        size = SUMS.size
        return self._replace(
            states=states, sums=self.sums[: first * size] + bytes((stop - first) * size) + self.sums[stop * size :]
        )

    def cut_to(self, end: int) -> SealTable:
        """Return the table of the blocks that end at or before a position."""
        if end >= self.end:
            return self
        count = end // BLOCK_BYTES
        return self._replace(end=count * BLOCK_BYTES, states=self.states[:count], sums=self.sums[: count * SUMS.size])

    def encode(self) -> bytes:
        body = struct.pack("<iqqqq", BLOCK_BYTES, *self[:4]) + self.states + self.sums
        return MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def empty_table(start: int, file_size: int, first_time: int = 0) -> SealTable:
    return SealTable(start, file_size, first_time, 0, b"", b"")


def decode_seals(data: bytes, start: int, file_size: int) -> SealTable | None:
    """Return the table in the bytes of a seal file; None if it is damaged, or another log file's."""
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        return None
    _, checksum, block_size, its_start, its_size, first_time, end = HEAD.unpack_from(data)
    if zlib.crc32(data[len(MAGIC) + 4 :]) != checksum or block_size != BLOCK_BYTES:
        return None
    if (its_start, its_size) != (start, file_size) or not 0 <= end <= file_size:
        return None
    count = block_count(end)
    if len(data) != HEAD.size + count * (1 + SUMS.size):
        return None
    states = data[HEAD.size : HEAD.size + count]
    return SealTable(start, file_size, first_time, end, states, data[HEAD.size + count :])


def block_count(end: int) -> int:
    """Return how many blocks, the last perhaps short, lie before a position."""
    return -(-end // BLOCK_BYTES)
