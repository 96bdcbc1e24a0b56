"""A checkpoint of a Delta log: the state of a table as one Parquet file, so that readers need no older entries."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TEXTS = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        (
            "protocol",
            pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.field("element", pa.string()))),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                ]
            ),
        ),
        (
            "remove",
            pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]),
        ),
        (
            "txn",
            pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        ),
    ]
)


def checkpoint(actions: Sequence[dict[str, Any]]) -> bytes:
    """Return the file for these actions."""
    made = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([_row(action) for action in actions], SCHEMA), made, compression="zstd")
    return made.getvalue()


def _row(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action as Arrow takes it: maps as lists of pairs."""
    return {name: _pairs(SCHEMA.field(name).type, value) for name, value in action.items()}


def _pairs(kind: pa.DataType, value: Any) -> Any:
    if pa.types.is_map(kind):
        return list(value.items())
    if pa.types.is_struct(kind):
        return {field.name: _pairs(field.type, value[field.name]) for field in kind if field.name in value}
    return value
