"""Convert Arrow columns to packed records, find their destinations, and compare them with the log."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from mqlake.errors import InvalidMessage
from mqlake.kernel.hosts import format_host
from mqlake.kernel.reference.encode import CRC_NAME, CRC_PROPERTY, encode_record
from mqlake.kernel.reference.hashing import crc32
from mqlake.kernel.reference.message import Message
from mqlake.kernel.reference.record import parse
from mqlake.kernel.types import IN_TURN, OTHER_RECORD, REACHED_END, Readable

LIGHT_QUEUES = "INNER_MULTI_DISPATCH"
TOPIC = re.compile(rb"%RETRY%[%|a-zA-Z0-9_-]{0,248}|[%|a-zA-Z0-9_-]{1,127}")
NUMBERS = {"queue_id": "i", "flag": "i", "sys_flag": "i", "reconsume_times": "i", "born_host": "i", "body_crc": "i"}
COMPRESSED, COMPRESSION_TYPE = 0x1, 0x700


def pack_records(
    columns: Mapping[str, Any],
    rows: int,
    store_host: bytes,
    max_body: int,
    max_size: int,
    append_crc: bool,
    lights: bool,
) -> tuple[bytearray, int]:
    """Return the rows as packed records, one after the other, and the number of rows that were packed.

    Columns are buffers by name, as in `types.Scanned`, all without nulls. Only `topic` and `body` are required.
    `topic` is a text, `born_host` holds indexes into packed hosts, an empty text in `tags` means no tag, `keys` are
    lists (`keys.item`) or texts, and -1 in `queue_id` means the topic's queues in turn. If `sys_flag` says compressed
    and `body_crc` is not the body's CRC, the body was decompressed since, and the flag is cleared. `born_timestamp` is
    in milliseconds. A packed record gets `queue_offset` and `store_timestamp` as given. Packing stops before a row
    that cannot be stored, whose body exceeds `max_body` or whose record exceeds `max_size`, or that names light queues
    while `lights` is False.
    """
    packed = bytearray()
    for row in range(rows):
        record = _pack(_Row(columns, row), store_host, append_crc)
        if record is None or len(record) > max_size or len(_Row(columns, row).text("body") or b"") > max_body:
            return packed, row
        if not lights and LIGHT_QUEUES.encode() in dict(_Row(columns, row).properties()):
            return packed, row
        packed += record
    return packed, rows


class _Row:
    """One row of the columns."""

    def __init__(self, columns: Mapping[str, Any], row: int) -> None:
        self._columns, self._row = columns, row

    def text(self, name: str, at: int | None = None) -> bytes | None:
        if f"{name}.offsets" not in self._columns:
            return None
        at = self._row if at is None else at
        start, stop = struct.unpack_from("=2i", self._columns[f"{name}.offsets"], 4 * at)
        return bytes(memoryview(self._columns[f"{name}.values"])[start:stop])

    def items(self, name: str) -> range:
        return range(*struct.unpack_from("=2i", self._columns[f"{name}.offsets"], 4 * self._row))

    def number(self, name: str, absent: int = 0) -> int:
        if name not in self._columns:
            return absent
        kind = NUMBERS.get(name, "q")
        return int(struct.unpack_from(f"={kind}", self._columns[name], struct.calcsize(f"={kind}") * self._row)[0])

    def properties(self) -> Iterator[tuple[bytes, bytes]]:
        if "properties.offsets" in self._columns:
            for at in self.items("properties"):
                yield self.text("properties.name", at) or b"", self.text("properties.value", at) or b""

    def keys(self) -> str | list[str]:
        if "keys.item.offsets" in self._columns:
            return [(self.text("keys.item", at) or b"").decode() for at in self.items("keys")]
        return (self.text("keys") or b"").decode()

    def sys_flag(self) -> int:
        flag, crc = self.number("sys_flag"), crc32(self.text("body") or b"") & 0x7FFFFFFF
        return (
            flag & ~(COMPRESSED | COMPRESSION_TYPE)
            if flag & COMPRESSED and crc != self.number("body_crc", crc)
            else flag
        )

    def born_host(self) -> str | None:
        if "born_host" not in self._columns:
            return None
        return format_host(self.text("born_host", self.number("born_host")) or b"")


def _pack(row: _Row, store_host: bytes, append_crc: bool) -> bytes | None:
    """Return the record of one row as a put would write it, or None if a put would refuse it."""
    topic = row.text("topic") or b""
    queue_id = row.number("queue_id", IN_TURN)
    if not TOPIC.fullmatch(topic) or queue_id < IN_TURN:
        return None
    try:
        message = Message(
            topic.decode(),
            row.text("body") or b"",
            tags=(row.text("tags") or b"").decode(),
            keys=row.keys(),
            properties={name.decode(): value.decode() for name, value in row.properties() if name != CRC_NAME.encode()},
            flag=row.number("flag"),
            sys_flag=row.sys_flag(),
            born_timestamp=row.number("born_timestamp"),
            born_host=row.born_host(),
            reconsume_times=row.number("reconsume_times"),
            prepared_offset=row.number("prepared_offset"),
        )
        places = row.number("queue_offset"), 0, row.number("store_timestamp")
        record = bytearray(encode_record(message, queue_id, *places, store_host, append_crc))
    except (InvalidMessage, UnicodeDecodeError):
        return None
    if append_crc:
        record[-11:-1] = b"0000000000"  # computed once queue offset, physical offset and store time are known
    return bytes(record)


def survey_packed(packed: Readable, position: int, max_bytes: int) -> tuple[int, bytes, list[tuple[str, int]]]:
    """Find the destinations of packed records, from `position` on: up to `max_bytes` of them, and at least one.

    Returns where it stopped, the index of each record's destination as int32, and the destinations: topic and queue
    id, which is -1 if the topic's queues take turns.
    """
    if not 0 <= position <= len(packed):
        raise ValueError(f"{position} is not inside {len(packed)} bytes")
    start, destinations, numbers = position, dict[tuple[str, int], int](), bytearray()
    while position < len(packed):
        parsed = parse(memoryview(packed)[position:], -1, False)
        if isinstance(parsed, int):
            raise ValueError(f"no packed record at {position}: {parsed}")
        size, fields = parsed
        if position > start and position + size - start > max_bytes:
            break
        numbers += struct.pack("=i", destinations.setdefault((fields.topic, fields.queue_id), len(destinations)))
        position += size
    return position, bytes(numbers), list(destinations)


def match_packed(
    log: Readable, position: int, end: int, log_start: int, store_timestamp: int, packed: Readable, at: int
) -> tuple[int, int, int]:
    """Walk over records in [position, end) of a log file for as long as they are the packed ones from `at` on.

    A record matches if it has everything that was packed, and this store time. Returns the position in the log, the
    position in the packed records, and why it stopped: 1 = the end of the log or of the packed records, 2 = another
    record, 0 = end-of-file marker, negative = a code of `check_record`.
    """
    if position < 0 or end > len(log) or position > end or not 0 <= at <= len(packed):
        raise ValueError(f"[{position}, {end}) is not inside {len(log)} bytes, or {at} of {len(packed)}")
    while position < end and at < len(packed):
        parsed = parse(memoryview(log)[position:end], log_start + position, True)
        if isinstance(parsed, int):
            return position, at, parsed
        size, fields = parsed
        record, wanted = bytearray(log[position : position + size]), bytearray(packed[at : at + size])
        if fields.store_timestamp != store_timestamp or len(wanted) < size:
            return position, at, OTHER_RECORD
        time_at = 48 + len(fields.born_host)
        for start, stop in ((20, 36), (time_at, time_at + 8), (12, 16) if wanted[12:16] == b"\xff" * 4 else (0, 0)):
            record[start:stop] = wanted[start:stop] = bytes(stop - start)
        if fields.properties_size >= len(CRC_PROPERTY) and record[-20:-11] == f"{CRC_NAME}\x01".encode():
            record[-11:] = wanted[-11:] = bytes(11)
        if record != wanted:
            return position, at, OTHER_RECORD
        position += size
        at += size
    return position, at, REACHED_END
