"""The columns of the table in Spark and in Arrow, and the conversion of scanned batches to batches of the table.

Names are those of `store.scan.COLUMNS`, preceded by `store`. Dictionaries become texts, and times become microseconds,
because Spark expects that. Whole columns are converted; Python touches no row.

A column that every message has is NOT NULL. With `onDamage=rows`, damage has rows of its own, and only `store`,
`physical_offset` and `size` are NOT NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mqlake.errors import InvalidConfig
from mqlake.store.scan import COLUMNS as SCANNED
from mqlake.store.scan import RAW_BODY

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

STORE = "store"
DAMAGE = "damage"
DEFAULT_COLUMNS = (STORE, *SCANNED)
ALL_COLUMNS = (*DEFAULT_COLUMNS, RAW_BODY)
FARTHEST_MS = (2**63 - 1) // 1000
"""The farthest time before or after 1970 that fits in microseconds."""
MICROSECONDS = pa.timestamp("us", "UTC")
OF_DAMAGE = (STORE, "physical_offset", "size", DAMAGE)
"""The columns of a row for a damaged range. Its other columns are null."""

KINDS = {STORE: "string", **SCANNED, RAW_BODY: "binary", DAMAGE: "string"}
"""Each column, and what `store.scan` calls its type."""
_ARROW: dict[str, pa.DataType] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp[ms, UTC]": pa.timestamp("us", "UTC"),
    "dictionary<int32, string>": pa.string(),
    "list<string>": pa.list_(pa.field("element", pa.string())),
    "map<string, string>": pa.map_(pa.string(), pa.string()),
}


@cache
def _spark() -> dict[str, DataType]:
    """Return Spark's type of each kind. Imported when asked for: what counts in this process needs no Spark."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, MapType, StringType, TimestampType

    return {
        "int32": IntegerType(),
        "int64": LongType(),
        "string": StringType(),
        "binary": BinaryType(),
        "timestamp[ms, UTC]": TimestampType(),
        "dictionary<int32, string>": StringType(),
        "list<string>": ArrayType(StringType(), True),
        "map<string, string>": MapType(StringType(), StringType(), True),
    }


def checked_columns(columns: Sequence[str] | None, *, with_damage: bool) -> tuple[str, ...]:
    """Check the given columns (default: all but `raw_body`). With damage rows, append `damage` if it is missing."""
    known = (*ALL_COLUMNS, DAMAGE) if with_damage else ALL_COLUMNS
    chosen = tuple(columns) if columns is not None else DEFAULT_COLUMNS
    if not chosen:  # Spark's workers lose the row count of a batch without columns: a count would be 0
        raise InvalidConfig("option columns", "none", "at least one; size is the cheapest for counting")
    for name in chosen:
        if name not in known:
            hint = " (damage needs onDamage=rows)" if name == DAMAGE else ""
            raise InvalidConfig("option columns", name, f"one of {', '.join(known)}{hint}")
    if len(set(chosen)) < len(chosen):
        raise InvalidConfig("option columns", ",".join(chosen), "no column twice")
    return (*chosen, DAMAGE) if with_damage and DAMAGE not in chosen else chosen


def spark_schema(columns: Sequence[str]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, _spark()[KINDS[name]], nullable(name, columns)) for name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, _ARROW[KINDS[name]], nullable(name, columns)) for name in columns])


def nullable(name: str, columns: Sequence[str]) -> bool:
    return name in ("tags", DAMAGE) or (DAMAGE in columns and name not in OF_DAMAGE)


def arrow_schema_for(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects. A user's schema may declare more columns nullable than ours."""
    expected = {field.name: field.nullable for field in spark_schema(schema.names)}
    for field in schema.fields:
        if expected[field.name] and not field.nullable:
            raise InvalidConfig("schema", f"{field.name} NOT NULL", f"{field.name} is null for some rows")
    return pa.schema([pa.field(field.name, _ARROW[KINDS[field.name]], field.nullable) for field in schema.fields])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema from the user. It may select and order columns, but not change their types."""
    for field in schema.fields:
        if field.name not in KINDS:
            raise InvalidConfig("schema", field.name, f"one of {', '.join(KINDS)}")
        expected = _spark()[KINDS[field.name]]
        if field.dataType != expected:
            found = f"{field.name} {field.dataType.simpleString()}"
            raise InvalidConfig("schema", found, f"{field.name} is {expected.simpleString()}; cast it after the read")
    return tuple(schema.names)


def microseconds(times: pa.Array) -> pa.Array:
    """Convert times from milliseconds to microseconds. Times that do not fit become the farthest possible ones.

    No checksum covers a record's times: one flipped bit must not fail the read of all other records.
    """
    try:
        return times.cast(MICROSECONDS)
    except pa.ArrowInvalid:
        values = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return pa.array(np.clip(values, -FARTHEST_MS, FARTHEST_MS) * 1000, pa.int64()).cast(MICROSECONDS)


class Table:
    """Make batches of the table for one store and one schema."""

    def __init__(self, store: str, schema: pa.Schema) -> None:
        self._store = pa.scalar(store)
        self._schema = schema

    def of_messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a scanned batch to a batch of the table."""
        return pa.RecordBatch.from_arrays([self._column(field, batch) for field in self._schema], schema=self._schema)

    def _column(self, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
        if field.name == STORE:
            return pa.repeat(self._store, batch.num_rows)
        if field.name == DAMAGE:
            return pa.nulls(batch.num_rows, pa.string())
        column = batch.column(field.name)
        if pa.types.is_dictionary(column.type):
            return column.dictionary_decode()
        if pa.types.is_timestamp(column.type):
            return microseconds(column)
        return column if column.type == field.type else column.cast(field.type)

    def of_damage(self, ranges: Sequence[tuple[int, int, str]]) -> pa.RecordBatch:
        """Return rows for damaged ranges, given as offset, size and reason."""
        offsets, sizes, reasons = zip(*ranges, strict=True)
        values = {"physical_offset": offsets, "size": [min(size, 2**31 - 1) for size in sizes], DAMAGE: reasons}
        arrays = []
        for field in self._schema:
            if field.name == STORE:
                arrays.append(pa.repeat(self._store, len(ranges)))
            elif field.name in values:
                arrays.append(pa.array(values[field.name], field.type))
            else:
                arrays.append(pa.nulls(len(ranges), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
