"""The four tables of a lake: their columns. All of them are types that every engine has."""

from __future__ import annotations

from types import MappingProxyType

import pyarrow as pa

from mqlake.lake.entries import TableName
from mqlake.store.scan import COLUMNS

_TYPES = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp[ms, UTC]": pa.timestamp("us", "UTC"),
    "dictionary<int32, string>": pa.string(),
    "list<string>": pa.list_(pa.field("element", pa.string())),
    "map<string, string>": pa.map_(pa.string(), pa.string()),
}
STORE = pa.field("store", pa.string(), nullable=False)

MESSAGES = pa.schema(
    [STORE, *(pa.field(name, _TYPES[kind], nullable=name == "tags") for name, kind in COLUMNS.items())]
)
"""Names and types match the Spark table, so the two can be combined without casts."""

INDEX = pa.schema(
    [
        STORE,
        pa.field("key_hash", pa.int32(), nullable=False),
        pa.field("physical_offset", pa.int64(), nullable=False),
        pa.field("store_timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
)

STATS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        STORE,
        pa.field("internal", pa.bool_(), nullable=False),  # RocketMQ's own topics, half and rolled-back messages
        pa.field("topic", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("tags", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("at", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),  # of whole records
        pa.field("body_bytes", pa.int64()),  # as stored
        pa.field("min_size", pa.int32()),
        pa.field("max_size", pa.int32()),
        pa.field("latency_ms", pa.int64()),
        pa.field("max_latency_ms", pa.int64()),
        pa.field("error", pa.int64()),
        pa.field("sketch", pa.binary()),
    ]
)
"""What the rows mean is written in `spark/jobs/stats_rows.py`."""

FINDINGS = pa.schema(
    [
        STORE,
        pa.field("severity", pa.string(), nullable=False),
        pa.field("promise", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("offset", pa.int64()),
        pa.field("physical_offset", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("queue_offset", pa.int64()),
        pa.field("found", pa.string(), nullable=False),
        pa.field("expected", pa.string(), nullable=False),
        pa.field("cost", pa.string(), nullable=False),
        pa.field("remedy", pa.string(), nullable=False),
    ]
)
"""A finding: its place in a file and, for the log and for queues, its offset as readers see it."""

SCHEMAS: MappingProxyType[TableName, pa.Schema] = MappingProxyType(
    {"messages": MESSAGES, "index": INDEX, "stats": STATS, "findings": FINDINGS}
)
