"""Typed tables of a lake: JSON bodies of a topic as columns, by the same rules as `read(…, schema=…)`.

    archive(spark, "data/store", "data/lake", schema={"orders": "orders.json", "payments": "infer"})
    type_bodies(spark, "data/lake", {"orders": "infer"})    # the same for what is archived already
    typed(spark, "data/lake", "orders")                     # read it; other engines read the Delta table

A run takes the messages that the lake has and the table has not, parses them in the JVM, writes files in the workers
and adds them with one commit (`lake/typed.py`). A body that is not what the schema says is kept in `_body`, with the
reason in `_error` and the columns that could be parsed. New fields of a schema are added columns. A column keeps its
type: bodies with another type in it are among those that do not parse.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from mqlake.errors import InvalidConfig, NotALake
from mqlake.files.place import place_of
from mqlake.lake import Lake, LakeSnapshot
from mqlake.lake.storage import storage_at
from mqlake.lake.typed import TypedFile, TypedTable, typed_topics
from mqlake.spark.bodies import INFER, OneSchema, infer, parsed, schema_of
from mqlake.spark.jobs.lake_table import LakeTable, by_spark
from mqlake.spark.jobs.tasks import lazily, settle
from mqlake.spark.options import parse_options
from mqlake.spark.reach import reach
from mqlake.spark.schema import spark_schema

ERROR, BODY = "_error", "_body"
PLACES = ("store", "queue_id", "queue_offset", "physical_offset", "born_timestamp", "store_timestamp", "tags", "keys")
"""The columns of `messages` that a row keeps, each with a `_` before its name: JSON may have fields of these names."""
FORBIDDEN = set(" ,;{}()\n\t=")
"""No column of a Delta table may have one of these in its name."""
ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""The types that a column may have besides DECIMAL, structs, arrays and maps: those that every engine has."""
WRITTEN = pa.schema([("name", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()), ("errors", pa.int64())])

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Typed:
    """What a run did for one topic."""

    topic: str
    rows: int
    """Messages added to the table."""
    errors: int
    """How many of them did not parse. They are in the table, with their body."""
    added_columns: tuple[str, ...]
    version: int
    """Of the table. -1: there is none yet, because there is no message."""


def type_bodies(spark: SparkSession, lake: str, schema: Mapping[str, OneSchema] | None = None) -> list[Typed]:
    """Bring the typed tables of these topics up to what the lake has. None: those that exist, with their columns."""
    reach(spark, lake)
    opened = Lake.open(lake)
    snapshot = opened.snapshot()
    wanted: Mapping[str, OneSchema | None] = (
        schema if schema is not None else dict.fromkeys(typed_topics(opened.storage))
    )
    return [_extend(spark, opened, snapshot, topic, one) for topic, one in wanted.items()]


def typed(spark: SparkSession, lake: str, topic: str) -> DataFrame:
    """Return the newest version of a typed table. Needs no jar, in a folder or in an object store."""
    reach(spark, lake)
    opened = Lake.open(lake)
    table = TypedTable(opened.storage, topic)
    state = table.state()
    if state.version < 0:
        raise NotALake(table.place, "there is no typed table of this topic", "make it: mqlake lake type")
    schema = StructType.fromJson({"type": "struct", "fields": state.columns})
    names = sorted(state.files)
    if not names:
        return spark.createDataFrame([], schema)
    if place_of(opened.place).is_local:
        return by_spark(spark, schema, table.place, names)
    work = partial(_read_in_worker, opened.place, schema.json())
    return lazily(spark, [f"{table.folder}/{name}" for name in names], work, _arrow(schema))


def _extend(spark: SparkSession, lake: Lake, snapshot: LakeSnapshot, topic: str, schema: OneSchema | None) -> Typed:
    table = TypedTable(lake.storage, topic)
    state = table.state()
    known = StructType.fromJson({"type": "struct", "fields": state.columns[len(PLACES) + 2 :]})
    rows = _new_rows(spark, lake, snapshot, topic, state.positions)
    columns = known
    if schema is not None:
        infers = isinstance(schema, str) and schema.strip().lower() == INFER
        if infers and rows is None:
            return Typed(topic, 0, 0, (), state.version)
        found = usable(infer(rows)) if infers and rows is not None else schema_of(schema, _no_bodies, topic)
        columns = merged(known, found, strict=not infers)
    if not columns.fields or (rows is None and columns == known):
        return Typed(topic, 0, 0, (), state.version)
    files = _write(rows, lake.place, table.folder, columns) if rows is not None else []
    positions = {one.identity: one.end for one in snapshot.stores.values()}
    added = [*_places().fields, *columns.fields]
    version = table.commit(state, [one.jsonValue() for one in added], files, positions, snapshot.version)
    names = tuple(one.name for one in columns.fields if one.name not in known.names)
    return Typed(topic, sum(file.rows for file in files), sum(file.errors for file in files), names, version)


def _no_bodies(topic: str | None) -> DataFrame:
    raise AssertionError(f"the bodies of {topic} are not needed: its schema is written down")


def _new_rows(
    spark: SparkSession, lake: Lake, snapshot: LakeSnapshot, topic: str, positions: Mapping[str, int]
) -> DataFrame | None:
    """Return the messages of a topic that are not in the table yet. None if the table has all that the lake has."""
    parts = []
    for name, state in snapshot.stores.items():
        start = positions.get(state.identity, state.start)
        if start >= state.end:
            continue
        options = {"path": "-", "lake": lake.place, "topics": json.dumps([topic])}
        options |= {"columns": json.dumps([*PLACES, "body"]), "failOnDataLoss": "false"}
        options |= {"startOffset": str(start), "endOffset": str(state.end)}
        found = LakeTable(lake, snapshot, {name: name}, parse_options(options))
        if found.files:
            parts.append(found.frame(spark))
    if parts:
        return reduce(DataFrame.unionAll, parts)
    return None


def _write(rows: DataFrame, place: str, folder: str, columns: StructType) -> list[TypedFile]:
    value, error = parsed(columns)
    made = [
        *(F.col(name) for name in PLACES),
        error,
        F.when(error.isNotNull(), F.col("body")),
        *(value[one.name] for one in columns.fields),
    ]
    # `mapInArrow` looks columns up by name, and fails on a backtick in one; a field of a message can have any name.
    numbered = rows.select(*(one.alias(f"c{place}") for place, one in enumerate(made)))
    work = partial(_write_in_worker, place, folder, StructType([*_places().fields, *columns.fields]).json())
    written = numbered.mapInArrow(work, from_arrow_schema(WRITTEN)).toArrow()
    return [TypedFile(row["name"], row["rows"], row["bytes"], row["errors"]) for row in written.to_pylist()]


def _write_in_worker(
    place: str, folder: str, schema: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task as one file. If the task is repeated, only what its last attempt wrote is committed."""
    settle()
    target = _arrow(StructType.fromJson(json.loads(schema)))
    name, rows, errors = f"{secrets.token_hex(16)}.parquet", 0, 0
    output: Any = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if output is None:
                output = storage_at(place).open_output(f"{folder}/{name}")
                writer = pq.ParquetWriter(output, target, compression="zstd", store_schema=False)
            writer.write_table(pa.table(batch.columns, names=target.names).cast(target))
            rows += batch.num_rows
            errors += batch.num_rows - batch.column(len(PLACES)).null_count
        if output is None:
            return
        writer.close()
        output.commit()
    except BaseException:
        if output is not None:
            output.drop()
        raise
    yield pa.record_batch([[name], [rows], [output.size], [errors]], schema=WRITTEN)


def _read_in_worker(place: str, schema: str, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file. Columns that were added later are null."""
    target = _arrow(StructType.fromJson(json.loads(schema)))
    with pq.ParquetFile(storage_at(place).open_input(name), pre_buffer=True) as file:
        for batch in file.iter_batches():
            yield pa.record_batch([_as(batch, field) for field in target], schema=target)


def _as(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    return widened(batch.column(field.name), field.type)


def widened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column with a type that has more fields inside."""
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        have = column.type.names
        inside = [
            widened(column.field(one.name), one.type) if one.name in have else pa.nulls(len(column), one.type)
            for one in kind
        ]
        return pa.StructArray.from_arrays(inside, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind):
        items = widened(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, items, type=kind, mask=column.is_null())
    return column.cast(kind)


def _places() -> StructType:
    """Return the columns that every typed table has."""
    kept = [StructField(f"_{one.name}", one.dataType, True) for one in spark_schema(PLACES).fields]
    return StructType([*kept, StructField(ERROR, StringType(), True), StructField(BODY, BinaryType(), True)])


def _arrow(schema: StructType) -> pa.Schema:
    return pa.schema([pa.field(one.name, _arrow_type(one.dataType)) for one in schema.fields])


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([pa.field(one.name, _arrow_type(one.dataType)) for one in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _arrow_type(kind.elementType)))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return ARROW[str(kind.jsonValue())]


def usable(found: StructType) -> StructType:
    """Return what can be columns of what was inferred. Other fields stay in the bodies only, and the log names them."""
    kept: dict[str, StructField] = {}
    taken = {name.lower() for name in _places().names}
    for one in found.fields:
        if one.name.lower() in {*taken, *kept} or _fault(one.name, one.dataType) is not None:
            _log.warning("the field %r cannot be a column of a typed table; it stays in the bodies", one.name)
        else:
            kept[one.name.lower()] = one
    return StructType(list(kept.values()))


def merged(known: StructType, found: StructType, *, strict: bool) -> StructType:
    """Return the columns of a table with those of a newer schema after them. A column keeps its type.

    If `strict`, another type is an error, and so is a name that no table can have.
    """
    columns = {one.name.lower(): one for one in known.fields}
    for one in found.fields:
        fault = _fault(one.name, one.dataType)
        if strict and fault is not None:
            raise InvalidConfig("schema", one.name, fault)
        if strict and one.name.lower() in {name.lower() for name in _places().names}:
            raise InvalidConfig("schema", one.name, "this is a column of every typed table; use another name")
        before = columns.get(one.name.lower())
        kind = one.dataType if before is None else _wider(before.dataType, one.dataType)
        if strict and before is not None and kind != _nullable(one.dataType, kind):
            expected = f"{before.dataType.simpleString()} as in the table, or another name"
            raise InvalidConfig("schema", f"{one.name} {one.dataType.simpleString()}", expected)
        columns[one.name.lower()] = StructField(one.name if before is None else before.name, kind, True)
    return StructType(list(columns.values()))


def _wider(known: DataType, found: DataType) -> DataType:
    """Return the known type, with what structs inside have more in the other one."""
    if isinstance(known, StructType) and isinstance(found, StructType):
        return merged(known, found, strict=False)
    if isinstance(known, ArrayType) and isinstance(found, ArrayType):
        return ArrayType(_wider(known.elementType, found.elementType), True)
    return known


def _nullable(found: DataType, kind: DataType) -> DataType:
    """Return `kind` if `found` differs from it only in fields that it lacks, else `found`."""
    return kind if _wider(found, kind) == kind else found


def _fault(name: str, kind: DataType) -> str | None:
    """Return why this cannot be a column of a Delta table. None if it can."""
    if not name or FORBIDDEN & set(name):
        return "names of columns have no spaces, commas, semicolons, braces, brackets, tabs, line ends or ="
    if isinstance(kind, StructType):
        faults: Sequence[str | None] = [_fault(one.name, one.dataType) for one in kind.fields]
        return next(filter(None, faults), None if kind.fields else "a struct has at least one field")
    if isinstance(kind, ArrayType):
        return _fault(name, kind.elementType)
    if isinstance(kind, MapType):
        return _fault(name, kind.keyType) or _fault(name, kind.valueType)
    known = isinstance(kind, DecimalType) or str(kind.jsonValue()) in ARROW
    return None if known else f"{kind.simpleString()} is not a type of every engine; use STRING"
