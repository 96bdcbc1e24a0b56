"""A key -> its messages: the index names candidates, their records decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mqlake.kernel.reference.hashing import java_hash
from mqlake.kernel.reference.index import find_index_key
from mqlake.kernel.reference.message import StoredRecord
from mqlake.kernel.reference.record import parse, raw_properties
from mqlake.kernel.types import LogFile, Readable

Kind = TypeVar("Kind", bound=StoredRecord)


def find_messages(
    indexes: tuple[Readable, ...],
    slot_count: int,
    entry_count: int,
    topic: str,
    key: str,
    tag: bool,
    begin_timestamp: int,
    end_timestamp: int,
    limit: int,
    first: int,
    readable: int,
    file_at: Callable[[int], LogFile | None],
    kind: type[Kind],
) -> list[Kind]:
    """Return the newest `limit` messages with a key (or tag), newest first, of the records in [first, readable).

    `indexes` are index files, oldest first. `file_at(offset)` returns the log file that covers an offset (with `start`
    and `pages`), or None. The index only names candidates: a message counts if its record is whole and has the key.
    """
    if not issubclass(kind, StoredRecord):
        raise TypeError(f"{kind!r} is not a StoredRecord")
    topic_bytes, key_bytes = topic.encode(), key.encode()
    key_hash = _hash_of_key(topic, key, tag)
    found: list[Kind] = []
    lowest = 1 << 63
    for index in reversed(indexes):
        if len(found) >= limit:
            break
        times = begin_timestamp, end_timestamp
        for offset in find_index_key(index, slot_count, entry_count, key_hash, *times, entry_count):
            if len(found) >= limit:
                break
            if not first <= offset < min(lowest, readable):
                continue  # outside the log; or added twice, because offsets fall along a chain
            record = _matching_record(offset, topic_bytes, key_bytes, tag, readable, file_at)
            if record is not None and begin_timestamp <= kind(record).store_timestamp <= end_timestamp:
                found.append(kind(record))
                lowest = offset
    return found


def _hash_of_key(topic: str, key: str, tag: bool) -> int:
    """Return Java's Math.abs of the hash of `topic#key` or `topic#T#tag`; 0 for the int32 without an absolute value."""
    h = java_hash(f"{topic}#T#{key}" if tag else f"{topic}#{key}")
    return 0 if h == -(1 << 31) else abs(h)


def _matching_record(
    offset: int, topic: bytes, key: bytes, tag: bool, readable: int, file_at: Callable[[int], LogFile | None]
) -> bytes | None:
    """Return the record at an offset if it is whole and has the topic and the key; else None."""
    file = file_at(offset)
    if file is None or not file.start <= offset < file.start + len(file.pages):
        return None
    position = offset - file.start
    parsed = parse(file.pages[position : min(len(file.pages), readable - file.start)], offset, True)
    if isinstance(parsed, int):
        return None
    record = bytes(file.pages[position : position + parsed[0]])
    fields = parsed[1]
    topic_end = fields.properties_at - 2
    found_topic = record[topic_end - len(topic) : topic_end]
    length = record[fields.body_at + fields.body_size : topic_end - len(topic)]
    if not topic or found_topic != topic or int.from_bytes(length, "big") != len(topic):
        return None
    properties = raw_properties(record[fields.properties_at :])
    if tag:
        has_it = bool(key) and properties.get(b"TAGS") == key
    else:
        has_it = bool(key) and (properties.get(b"UNIQ_KEY") == key or key in properties.get(b"KEYS", b"").split(b" "))
    return record if has_it else None
