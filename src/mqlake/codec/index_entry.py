"""The key index: its header, its file size, and the text and hash of a key."""

from __future__ import annotations

import struct
from typing import NamedTuple

from mqlake.kernel import java_hash

HEADER = struct.Struct(">qqqqii")
HEADER_SIZE = 40
ENTRY_SIZE = 20
DEFAULT_SLOTS = 5_000_000
DEFAULT_ENTRIES = 20_000_000


class IndexHeader(NamedTuple):
    """The range of an index file in time and in the log. `next_entry` starts at 1: entry 0 is never used."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int

    @classmethod
    def decode(cls, data: bytes) -> IndexHeader:
        return cls(*HEADER.unpack_from(data))


def index_file_size(slot_count: int, entry_count: int) -> int:
    return HEADER_SIZE + 4 * slot_count + ENTRY_SIZE * entry_count


def key_text(topic: str, key: str, *, tag: bool = False) -> str:
    """Return the text that RocketMQ hashes for a key. Since 5.4 it also indexes tags, with a `T` in the text."""
    return f"{topic}#T#{key}" if tag else f"{topic}#{key}"


def key_hash(text: str) -> int:
    """Return Java's Math.abs of the text's hash. The one int without an absolute value counts as 0."""
    h = java_hash(text)
    return 0 if h == -(1 << 31) else abs(h)
