"""Dump a store as JSON lines, in the format in which RocketMQ's own answers are kept next to the golden stores.

One object a line, by `kind`: `store` first, then a `message` for every entry of every queue; with `walk` every `record`
and `blank` of the log and its `end`; with `keys` and `tags` what the index finds for each of them.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterator, Mapping
from itertools import chain, groupby
from typing import Any

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE
from mqlake.errors import StoreError
from mqlake.kernel import check_record
from mqlake.kernel.hosts import PORT
from mqlake.kernel.types import REASONS
from mqlake.message import StoredMessage
from mqlake.store.ports import Reading
from mqlake.store.read import END_OF_TIME
from mqlake.version import __version__

QUERY_LIMIT = 64

Line = dict[str, Any]


def dump_lines(side: Reading, settings: Mapping[str, str], *, walk: bool, keys: bool, tags: bool) -> Iterator[Line]:
    """Yield the lines of one store; `settings` are the properties it was opened with."""
    yield _store_line(side, settings)
    yield from _message_lines(side)
    if walk:
        yield from _walk_lines(side)
    if keys or tags:
        yield from _index_lines(side, keys=keys, tags=tags)


def _store_line(side: Reading, settings: Mapping[str, str]) -> Line:
    ranges = [queue for topic in side.reader.topics() for queue in side.reader.queues(topic)]
    return {
        "kind": "store",
        "version": f"mqlake {__version__}",
        "load": True,
        "minPhyOffset": side.log.first_offset,
        "maxPhyOffset": side.ends.visible,
        "settings": dict(sorted(settings.items())),
        "queues": [
            {"topic": queue.topic, "queueId": queue.queue_id, "min": queue.first_offset, "max": queue.end_offset}
            for queue in ranges
            if queue.end_offset > 0
        ],
    }


def _message_lines(side: Reading) -> Iterator[Line]:
    for topic in side.reader.topics():
        for queue in side.reader.queues(topic):
            batch = side.batch_queues.get(topic, queue.queue_id)
            if batch is not None and batch.damage is not None:
                yield {"kind": "unreadable", "cqTopic": topic, "cqQueueId": queue.queue_id, "status": str(batch.damage)}
            entries = _positions(side, topic, queue.queue_id, queue.first_offset)
            for physical_offset, same in groupby(entries, key=lambda entry: entry[2]):
                first = next(same)
                where = {"cqTopic": topic, "cqQueueId": queue.queue_id, "cqOffset": first[0]}
                try:
                    message = StoredMessage(side.log.record_at(physical_offset))
                except StoreError as error:
                    yield {"kind": "unreadable", **where, "status": str(error)}
                    continue
                # The entries of lost messages may name a neighbour, whose own entry is the one with its queue offset.
                own = (entry for entry in chain([first], same) if entry[0] == message.queue_offset)
                where["cqOffset"], tags_code, _ = next(own, first)
                yield {"kind": "message", **where, "tagsCode": tags_code, **record_fields(message)}


def _positions(side: Reading, topic: str, queue_id: int, first: int) -> Iterator[tuple[int, int, int]]:
    """Yield queue offset, tags code and physical offset of every entry of a queue."""
    batch = side.batch_queues.get(topic, queue_id)
    if batch is not None:
        while first < batch.end:
            for entry in batch.entries_from(first, 1024):
                yield entry.base_offset, entry.tags_code, entry.physical_offset
                first = entry.base_offset + entry.message_count
        return
    queue = side.queues.get(topic, queue_id)
    end = queue.end
    while first < end:
        entries = queue.entries(first, end)
        for physical_offset, size, tags_code in ENTRY.iter_unpack(entries):
            if size != FILLER_SIZE:  # a filler entry has no line
                yield first, tags_code, physical_offset
            first += 1
        if len(entries) < ENTRY_SIZE:
            return


def _walk_lines(side: Reading) -> Iterator[Line]:
    end = side.ends.visible
    for stretch in side.log.stretches(side.log.first_offset, end):
        position = stretch.position
        while position < stretch.end:
            offset = stretch.log_start + position
            size = check_record(stretch.data, position, stretch.end, offset, True)
            if size == 0:
                size = int.from_bytes(stretch.data[position : position + 4], "big")
                yield {"kind": "blank", "physicalOffset": offset, "storeSize": size}
                break
            if size < 0:
                after = min(side.after_damage(offset, REASONS[size]), stretch.log_start + stretch.end)
                yield {"kind": "scar", "physicalOffset": offset, "storeSize": after - offset, "reason": REASONS[size]}
                position = after - stretch.log_start
                continue
            record = bytes(stretch.data[position : position + size])
            yield {"kind": "record", **record_fields(StoredMessage(record))}
            position += size
    yield {"kind": "end", "physicalOffset": end}


def _index_lines(side: Reading, *, keys: bool, tags: bool) -> Iterator[Line]:
    words: dict[str, tuple[set[str], set[str]]] = {}
    for line in _walk_lines(side):
        if line["kind"] == "record":
            properties = line["properties"]
            of_topic = words.setdefault(line["topic"], (set(), set()))
            of_topic[0].update(key for key in properties.get("KEYS", "").split(" ") if key)
            of_topic[0].update([properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else [])
            of_topic[1].update([properties["TAGS"]] if "TAGS" in properties else [])
    for wanted, number, kind in ((keys, 0, "key"), (tags, 1, "tag")):
        for topic in sorted(words if wanted else (), key=_java_order):
            for key in sorted(words[topic][number], key=_java_order):
                offsets = side.reader.find_offsets(topic, key, QUERY_LIMIT, 0, END_OF_TIME, tag=kind == "tag")
                if offsets or kind == "key":  # older releases index no tags
                    yield {"kind": kind, "topic": topic, "key": key, "offsets": offsets}


def record_fields(message: StoredMessage) -> Line:
    """Return a record as the dump shows it."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "storeSize": message.size,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": java_host(message.born_address),
        "storeHost": java_host(message.store_address),
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_offset,
        "body": base64.b64encode(message.raw_body).decode(),
        "properties": dict(sorted(message.properties.items(), key=lambda item: _java_order(item[0]))),
        "msgId": message.message_id,
        "recordSha1": hashlib.sha1(message.record, usedforsecurity=False).hexdigest(),
    }


def java_host(packed: bytes) -> str:
    """Return a host as Java prints it: IPv6 addresses with all groups."""
    (port,) = PORT.unpack_from(packed, len(packed) - 4)
    if len(packed) == 8:
        return f"{ipaddress.IPv4Address(packed[:4])}:{port}"
    groups = [f"{int.from_bytes(packed[at : at + 2], 'big'):x}" for at in range(0, 16, 2)]
    return f"[{':'.join(groups)}]:{port}"


def _java_order(text: str) -> bytes:
    """Return a sort key: Java compares strings by UTF-16 unit."""
    return text.encode("utf-16-be", "surrogatepass")
