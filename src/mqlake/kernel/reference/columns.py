"""Convert a range of the commit log, or records at given offsets, to column buffers in Arrow's layout."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterable, Sequence

from mqlake.kernel.reference.record import decode_properties, parse
from mqlake.kernel.types import COLUMN_NAMES, REACHED_END, Readable, RecordFields, Scanned

MAX_SCAN = 1 << 30
MAX_OFFSET = (1 << 31) - 1

NUMBERS = {  # name -> struct's letter, little-endian
    "queue_id": "i",
    "queue_offset": "q",
    "physical_offset": "q",
    "flag": "i",
    "sys_flag": "i",
    "body_crc": "i",
    "born_timestamp": "q",
    "store_timestamp": "q",
    "reconsume_times": "i",
    "prepared_offset": "q",
}
Row = tuple[int, RecordFields, dict[str, str], bytes]  # size, fields, properties, body


def scan_columns(
    log: Readable,
    position: int,
    end: int,
    log_start: int,
    max_bytes: int,
    max_rows: int,
    columns: int,
    check_crc: bool,
    topics: Sequence[str] | None = None,
) -> Scanned:
    """Lay out the records in [position, end) of a log file as columns, one row per record.

    Stops before it exceeds `max_bytes` (one record always fits) or `max_rows`, at an end-of-file marker, or at bytes
    that are no record. With `topics`, records of other topics are skipped and their bodies are not checked. Returns
    the position reached, why it stopped (1 = end or a limit, 0 = marker, negative = a code of `check_record`), the
    row count, and the buffers by name: see `types.Scanned`.
    """
    if not 0 < max_bytes <= MAX_SCAN or max_rows <= 0:
        raise ValueError(f"max_bytes = {max_bytes}, max_rows = {max_rows}: 1 to {MAX_SCAN}, and at least 1")
    require_columns(columns)
    if position < 0 or end > len(log) or position > end:
        raise ValueError(f"[{position}, {end}) is not inside {len(log)} bytes")
    for topic in topics or ():
        topic.encode()
    rows: list[Row] = []
    weight = 0
    first, stop = position, min(end, position + max_bytes)
    result = REACHED_END
    with memoryview(log) as view:
        while position < stop and len(rows) < max_rows:
            with view[position:end] as data:
                parsed = parse(data, log_start + position, check_crc and topics is None)
                if not isinstance(parsed, int) and position > first and position + parsed[0] > stop:
                    break
                if topics is not None and not isinstance(parsed, int):
                    if parsed[1].topic not in topics:
                        position += parsed[0]
                        continue
                    parsed = parse(data, log_start + position, check_crc)
                if isinstance(parsed, int):
                    result = parsed
                    break
                size, fields = parsed
                weight += size + 2 * fields.properties_size  # malformed UTF-8 grows to at most three times its size
                if rows and weight > MAX_OFFSET:
                    break
                rows.append(row_of(data, size, fields))
                position += size
    return position, result, len(rows), wanted_buffers(rows, columns, topics)


def pick_columns(
    log: Readable,
    offsets: Readable,
    first: int,
    end: int,
    log_start: int,
    max_bytes: int,
    columns: int,
    check_crc: bool,
    topics: Sequence[str] | None = None,
) -> Scanned:
    """Lay out the records at the given physical offsets as columns, one row per record, starting at offsets[first].

    `offsets` are int64 in the machine's byte order, and `log` holds [log_start, log_start + end). Stops at an offset
    outside of it, before it exceeds `max_bytes` (one record always fits), or where no whole record starts. Returns the
    same as `scan_columns`, with the index of the offset reached instead of a position.
    """
    if not 0 < max_bytes <= MAX_SCAN:
        raise ValueError(f"max_bytes = {max_bytes}: 1 to {MAX_SCAN}")
    require_columns(columns)
    count = len(offsets) // 8
    if not 0 <= first <= count:
        raise ValueError(f"{first} is not inside {count} offsets")
    if not 0 <= end <= len(log):
        raise ValueError(f"[0, {end}) is not inside {len(log)} bytes")
    for topic in topics or ():
        topic.encode()
    rows: list[Row] = []
    number, taken, weight = first, 0, 0
    result = REACHED_END
    with memoryview(log) as view:
        for (offset,) in itertools.islice(struct.iter_unpack("=q", memoryview(offsets)[: count * 8]), first, None):
            if not log_start <= offset < log_start + end:
                break
            with view[offset - log_start : end] as data:
                size = max(0, min(len(data), struct.unpack_from(">i", data)[0])) if len(data) >= 4 else 0
                if number > first and taken + size > max_bytes:
                    break
                taken += size
                parsed = parse(data, offset, check_crc and topics is None)
                if topics is not None and not isinstance(parsed, int):
                    if parsed[1].topic not in topics:
                        number += 1
                        continue
                    parsed = parse(data, offset, check_crc)
                if isinstance(parsed, int):
                    result = parsed
                    break
                weight += parsed[0] + 2 * parsed[1].properties_size
                if rows and weight > MAX_OFFSET:
                    break
                rows.append(row_of(data, *parsed))
                number += 1
    return number, result, len(rows), wanted_buffers(rows, columns, topics)


def require_columns(columns: int) -> None:
    if columns >> len(COLUMN_NAMES):
        raise ValueError(f"columns = {columns:#x}: there are only {len(COLUMN_NAMES)}")


def row_of(data: memoryview, size: int, fields: RecordFields) -> Row:
    body = bytes(data[fields.body_at : fields.body_at + fields.body_size])
    return size, fields, decode_properties(data[fields.properties_at : size]), body


def wanted_buffers(rows: list[Row], columns: int, topics: Sequence[str] | None) -> dict[str, bytes | bytearray]:
    wanted = [name for place, name in enumerate(COLUMN_NAMES) if columns & 1 << place]
    return column_buffers(rows, wanted, list(dict.fromkeys(topics or ())))


def column_buffers(rows: list[Row], wanted: list[str], topics: list[str]) -> dict[str, bytes | bytearray]:
    buffers: dict[str, bytes | bytearray] = {}
    for name in wanted:
        if name == "topic":
            buffers |= dictionary(name, (fields.topic for _, fields, _, _ in rows), topics)
        elif name in ("born_host", "store_host"):
            buffers |= dictionary(name, (host_text(getattr(fields, name)) for _, fields, _, _ in rows), [])
        elif name == "size":
            buffers[name] = pack("i", [size for size, _, _, _ in rows])
        elif name == "tags":
            buffers["tags.validity"] = bitmap(["TAGS" in properties for _, _, properties, _ in rows])
            buffers |= texts(name, [properties.get("TAGS", "").encode() for _, _, properties, _ in rows])
        elif name == "keys":
            keys = [[key for key in properties.get("KEYS", "").split(" ") if key] for _, _, properties, _ in rows]
            buffers["keys.offsets"] = offsets(len(row) for row in keys)
            buffers |= texts("keys.item", [key.encode() for row in keys for key in row])
        elif name == "properties":
            pairs = [pair for _, _, properties, _ in rows for pair in properties.items()]
            buffers["properties.offsets"] = offsets(len(properties) for _, _, properties, _ in rows)
            buffers |= texts("properties.name", [name.encode() for name, _ in pairs])
            buffers |= texts("properties.value", [value.encode() for _, value in pairs])
        elif name == "body":
            buffers |= texts(name, [body for _, _, _, body in rows])
        else:
            buffers[name] = pack(NUMBERS[name], [getattr(fields, name) for _, fields, _, _ in rows])
    return buffers


def dictionary(name: str, values: Iterable[str], known: list[str]) -> dict[str, bytes]:
    """Encode values as indexes into the distinct ones: first the known ones, then new ones in order of appearance."""
    numbers = {text: number for number, text in enumerate(known)}
    indices = [numbers.setdefault(value, len(numbers)) for value in values]
    return {name: pack("i", indices), **texts(name, [text.encode() for text in numbers])}


def texts(name: str, values: list[bytes]) -> dict[str, bytes]:
    return {f"{name}.offsets": offsets(len(value) for value in values), f"{name}.values": b"".join(values)}


def offsets(sizes: Iterable[int]) -> bytes:
    """Return where each item starts, and where the last one ends."""
    running = [0]
    for size in sizes:
        running.append(running[-1] + size)
    return pack("i", running)


def bitmap(flags: list[bool]) -> bytes:
    """Return one bit per row, the least significant bit of a byte first."""
    bits = bytearray((len(flags) + 7) // 8)
    for i, flag in enumerate(flags):
        bits[i // 8] |= flag << i % 8
    return bytes(bits)


def pack(letter: str, numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{letter}", *numbers)


def host_text(packed: bytes) -> str:
    """Return `ip:port` or `[ip]:port` for a packed host of 8 or 20 bytes."""
    (port,) = struct.unpack_from(">i", packed, len(packed) - 4)
    if len(packed) == 8:
        return f"{socket.inet_ntop(socket.AF_INET, packed[:4])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed[:16])}]:{port}"
