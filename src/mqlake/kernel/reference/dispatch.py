"""A stretch of the commit log -> consume-queue entries by queue, and index keys."""

from __future__ import annotations

from mqlake.kernel.reference.hashing import as_int64, java_hash
from mqlake.kernel.reference.index import KEY
from mqlake.kernel.reference.queue import ENTRY
from mqlake.kernel.reference.record import decode_properties, parse
from mqlake.kernel.types import REACHED_END, Dispatched, Readable, RecordFields

TRANSACTION_MASK = 0xC
DELIVERED = (0x0, 0x8)  # ordinary and committed messages; prepared and rolled-back ones are in no queue
ROLLED_BACK = 0xC
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
NO_LIGHT_QUEUES = ("%RETRY%", "rmq_sys_")


def dispatch_records(
    log: Readable,
    position: int,
    end: int,
    log_start: int,
    max_bytes: int,
    delays_ms: tuple[int, ...],
    index_keys: bool,
    index_tags: bool,
) -> Dispatched:
    """Walk the records in [position, end) of a log file. Return their consume-queue entries and index keys.

    The walk stops at `end`, after `max_bytes`, at an end-of-file marker or at bytes that are not a record. CRCs are not
    checked: a record was checked when it was put or walked, before it is dispatched.
    """
    if len(delays_ms) > 64:
        raise ValueError(f"{len(delays_ms)} delay levels, at most 64")
    if position < 0 or end > len(log) or position > end:
        raise ValueError(f"[{position}, {end}) is not inside {len(log)} bytes")
    runs: list[tuple[str, int, int, bytearray]] = []
    latest: dict[tuple[str, int], int] = {}
    keys = bytearray()
    records = last_timestamp = 0
    last_offset = -1
    stop = min(end, position + max_bytes)
    result = REACHED_END
    while position < stop:
        parsed = parse(log[position:end], log_start + position, False)
        if isinstance(parsed, int):
            result = parsed
            break
        size, fields = parsed
        at = position + fields.properties_at
        properties = decode_properties(log[at : at + fields.properties_size])
        for topic, queue_id, queue_offset, tags_code in queue_places(fields, properties, delays_ms):
            number = latest.get((topic, queue_id), -1)
            if number < 0 or runs[number][2] + len(runs[number][3]) // ENTRY.size != queue_offset:
                number = latest[topic, queue_id] = len(runs)
                runs.append((topic, queue_id, queue_offset, bytearray()))
            runs[number][3].extend(ENTRY.pack(fields.physical_offset, size, tags_code))
        if index_keys and fields.sys_flag & TRANSACTION_MASK != ROLLED_BACK:
            for key in index_texts(fields.topic, properties, index_tags):
                keys += KEY.pack(index_hash(key), fields.physical_offset, fields.store_timestamp)
        records += 1
        last_offset, last_timestamp = fields.physical_offset, fields.store_timestamp
        position += size
    done = [(topic, queue_id, first, bytes(entries)) for topic, queue_id, first, entries in runs]
    return Dispatched(position, result, done, bytes(keys), records, last_offset, last_timestamp)


def queue_places(
    fields: RecordFields, properties: dict[str, str], delays_ms: tuple[int, ...]
) -> list[tuple[str, int, int, int]]:
    """Return every queue that gets an entry for a record: topic, queue id, queue offset, tags code."""
    if fields.sys_flag & TRANSACTION_MASK not in DELIVERED:
        return []
    tags_code = java_hash(properties.get("TAGS", ""))
    level = _decimal(properties.get("DELAY", ""))
    if fields.topic == SCHEDULE_TOPIC and level > 0:
        level = min(level, len(delays_ms))
        tags_code = as_int64(fields.store_timestamp + (delays_ms[level - 1] if level else 1000))
    places = [(fields.topic, fields.queue_id, fields.queue_offset, tags_code)]
    names = properties.get("INNER_MULTI_DISPATCH", "").split(",")
    offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    if len(names) != len(offsets) or fields.topic == SCHEDULE_TOPIC or fields.topic.startswith(NO_LIGHT_QUEUES):
        return places
    for name, text in zip(names, offsets, strict=True):
        queue_offset = _decimal(text)
        if name and queue_offset >= 0 and "/" not in name:
            places.append((name, 0 if name.startswith("%LMQ%") else fields.queue_id, queue_offset, tags_code))
    return places


def index_texts(topic: str, properties: dict[str, str], index_tags: bool) -> list[str]:
    """Return the texts under which a message is indexed: its client id, each key between single spaces, its tag."""
    keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
    texts = [f"{topic}#{key}" for key in keys if key]
    if index_tags and properties.get("TAGS"):
        texts.append(f"{topic}#T#{properties['TAGS']}")
    return texts


def index_hash(text: str) -> int:
    """Return Java's Math.abs of the hash; 0 for the int32 without an absolute value."""
    h = java_hash(text)
    return 0 if h == -(1 << 31) else abs(h)


def _decimal(text: str) -> int:
    """Parse a non-negative decimal number of at most 18 ASCII digits; -1 if it is not one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1
