"""The next whole record after damage."""

from __future__ import annotations

from mqlake.kernel.reference.record import parse
from mqlake.kernel.types import Readable


def find_record(data: Readable, position: int, end: int, log_start: int, check_crc: bool = True) -> int:
    """Return where the next whole record at or after `position` begins; `end` if there is none."""
    if position < 0 or end > len(data) or position > end:
        raise ValueError(f"[{position}, {end}) is not inside {len(data)} bytes")
    rest = bytes(data[position:end])
    at = rest.find(b"\xda\xa3\x20", 4) - 4  # how both magic numbers begin; the record begins four bytes before
    while at >= 0:
        if not isinstance(parse(memoryview(rest)[at:], log_start + position + at, check_crc), int):
            return position + at
        at = rest.find(b"\xda\xa3\x20", at + 5) - 4
    return end
