"""The queues of a store and the lag of its consumers: one task per store, one row per queue.

Both are the store's state at one moment. Unlike the counts of `stats_rows.py` they do not add up, so they are taken
again each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from mqlake import MessageStore
from mqlake.errors import StoreError
from mqlake.files.layout import Layout
from mqlake.inspect.consumer_offsets import consumer_offsets
from mqlake.spark.plan import expand

TIME = pa.timestamp("us", "UTC")
QUEUES = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("queue_id", pa.int32(), nullable=False),
        pa.field("min_offset", pa.int64(), nullable=False),
        pa.field("max_offset", pa.int64(), nullable=False),  # the offset of the next message, as in RocketMQ
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("first_time", TIME),  # store times of the first and last message; null if there is none
        pa.field("last_time", TIME),
    ]
)
LAG = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("consumer_group", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("queue_id", pa.int32(), nullable=False),
        pa.field("consumer_offset", pa.int64(), nullable=False),
        pa.field("max_offset", pa.int64(), nullable=False),
        pa.field("lag", pa.int64(), nullable=False),  # messages that the group has not yet consumed
        pa.field("waiting_since", TIME),  # store time of the first of them; null if none waits or it is gone
    ]
)


def stores_of(paths: tuple[str, ...]) -> list[str]:
    """Return the stores that paths and patterns name."""
    return [str(path) for path in expand(paths)]


def queues_of(path: str) -> pa.Table:
    """Return the queues of one store."""
    found = []
    with MessageStore.open(path, read_only=True) as store:
        for topic in store.topics():
            for queue in store.queues(topic):
                first = _store_time(store, topic, queue.queue_id, queue.first_offset)
                last = _store_time(store, topic, queue.queue_id, queue.end_offset - 1)
                place = (path, topic, queue.queue_id, queue.first_offset, queue.end_offset)
                found.append((*place, queue.message_count, first, last))
    return _table(found, QUEUES)


def lag_of(path: str) -> pa.Table:
    """Return how far each consumer group lags in the queues of one store. Deleted queues are left out."""
    offsets = list(consumer_offsets(Layout(Path(path))))
    wanted = {topic for _, topic, _, _ in offsets}
    found = []
    with MessageStore.open(path, read_only=True) as store:
        ends = {(topic, q.queue_id): q.end_offset for topic in wanted & {*store.topics()} for q in store.queues(topic)}
        for group, topic, queue_id, offset in offsets:
            if (topic, queue_id) in ends:
                end = ends[topic, queue_id]
                waiting = _store_time(store, topic, queue_id, offset) if offset < end else None
                found.append((path, group, topic, queue_id, offset, end, max(0, end - offset), waiting))
    return _table(found, LAG)


def _store_time(store: MessageStore, topic: str, queue_id: int, offset: int) -> int | None:
    """Return when a message was stored, in microseconds. None if it cannot be read."""
    try:
        messages = store.read(topic, queue_id=queue_id, start=offset, limit=1)
    except StoreError:
        return None
    return messages[0].store_timestamp * 1000 if messages else None


def _table(found: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*found, strict=True) if found else ([] for _ in schema)
    return pa.table([pa.array(list(values), field.type) for values, field in zip(columns, schema, strict=True)], schema)
