"""`read(…, schema=…)`: JSON bodies as typed columns, beside the body itself.

    read(spark, "data/store", where="topic = 'orders'", schema="id BIGINT, total DECIMAL(12, 2)")
    read(spark, "data/store", schema={"orders": "orders.json", "payments": "infer"})

`value` has the fields of the schema; by topic, it has one field for each topic. `value_error` says what is wrong with a
body that is not what the schema says, and is null otherwise. No row is left out, and `body` stays as it was sent. So
whatever a schema does not name or does not fit can be read later with another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from mqlake.errors import InvalidConfig

OneSchema = str | StructType
"""A DDL, the name of a file with a schema as Spark writes it (`df.schema.json()`), `infer`, or a StructType."""
BodySchema = OneSchema | Mapping[str, OneSchema]
"""One schema for all bodies, or one by topic."""
Bodies = Callable[[str | None], DataFrame]
"""Returns the column `body` of the selected messages of a topic, or of all for None."""

INFER = "infer"
VALUE, ERROR, END = "value", "value_error", "end"
KEPT = "_mqlake_kept"
"""Where Spark's parser puts a text that is not what the schema says."""
EXAMPLE = "as in id BIGINT, name STRING"
OTHER_FORMATS = {".avsc": "Avro", ".avro": "Avro", ".proto": "Protobuf", ".desc": "Protobuf", ".pb": "Protobuf"}


def needed(schema: BodySchema | None) -> tuple[str, ...]:
    """Return the columns that the typed ones are made of."""
    if schema is None:
        return ()
    return ("topic", "body") if isinstance(schema, Mapping) else ("body",)


def with_values(rows: DataFrame, schema: BodySchema, columns: Sequence[str], bodies: Bodies) -> DataFrame:
    """Return these columns of the rows, and `value` and `value_error`."""
    if isinstance(schema, Mapping):
        by_topic = {topic: _of_topic(topic, schema_of(one, bodies, topic)) for topic, one in schema.items()}
        if not by_topic:
            raise InvalidConfig("schema", dict(schema), "at least one topic")
        value = F.struct(*(value.alias(topic) for topic, (value, _) in by_topic.items()))
        error = F.coalesce(*(error for _, error in by_topic.values()))
    else:
        value, error = parsed(schema_of(schema, bodies))
    return rows.select(*columns, value.alias(VALUE), error.alias(ERROR))


def _of_topic(topic: str, schema: StructType) -> tuple[Column, Column]:
    """Return value and error for the rows of one topic; both are null for all others."""
    here = F.col("topic") == topic
    value, error = parsed(schema)
    return F.when(here, value), F.when(here, error)


def parsed(schema: StructType) -> tuple[Column, Column]:
    """Return value and error of a body.

    It is parsed as a part of another object, before another field. Otherwise Spark would not notice what comes after
    the end of the JSON.
    """
    text = F.try_validate_utf8(F.col("body").cast("string"))
    outer = StructType([StructField(VALUE, schema), StructField(END, BooleanType()), StructField(KEPT, StringType())])
    inside = F.concat(F.lit(f'{{"{VALUE}":'), text, F.lit(f',"{END}":true}}'))
    found = F.from_json(inside, outer, {"columnNameOfCorruptRecord": KEPT, "allowSingleQuotes": "false"})
    is_whole = found[VALUE].isNotNull() & found[END].isNotNull() & found[KEPT].isNull()
    error = (
        F.when(F.length("body") == 0, "the body is empty")
        .when(text.isNull(), "the body is not UTF-8")
        .when(~is_whole, "the body is not JSON of this schema")
    )
    return found[VALUE], error


def schema_of(schema: OneSchema, bodies: Bodies, topic: str | None = None) -> StructType:
    """Return the schema that a DDL or a file holds, or that the bodies have."""
    if isinstance(schema, str):
        schema = infer(bodies(topic)) if schema.strip().lower() == INFER else _written(schema)
    if not isinstance(schema, StructType) or not schema.fields:
        raise InvalidConfig("schema", str(schema), f"must have at least one field, {EXAMPLE}")
    return schema


def infer(rows: DataFrame) -> StructType:
    """Return a schema for the bodies of the rows: every field that one of them has. Reads them all.

    A field with values of several types gets one that holds them all, in the end STRING. A key that one body has twice
    is one field: two of the same name could not be told apart, for any body.
    """
    texts = rows.select(F.try_validate_utf8(F.col("body").cast("string")).alias(VALUE)).where(f"{VALUE} is not null")
    found = rows.sparkSession.read.json(texts, columnNameOfCorruptRecord=KEPT, allowSingleQuotes=False).schema
    return _fields_once([field for field in found.fields if field.name != KEPT])


def _fields_once(fields: Sequence[StructField]) -> StructType:
    """Return a struct that has each name once, with a type that holds the values of all fields of that name."""
    kinds: dict[str, DataType] = {}
    for field in fields:
        found = _names_once(field.dataType)
        kinds[field.name] = _holding_both(kinds[field.name], found) if field.name in kinds else found
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def _names_once(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _fields_once(kind.fields)
    return ArrayType(_names_once(kind.elementType)) if isinstance(kind, ArrayType) else kind


def _holding_both(one: DataType, other: DataType) -> DataType:
    """Return a type that holds the values of both, as Spark infers it for a field of two bodies."""
    if one == other:
        return one
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _fields_once([*one.fields, *other.fields])
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_holding_both(one.elementType, other.elementType))
    return DoubleType() if {type(one), type(other)} == {LongType, DoubleType} else StringType()


def _written(text: str) -> StructType:
    from pyspark.errors import PySparkException

    suffix = Path(text).suffix.lower()
    if what := OTHER_FORMATS.get(suffix):
        use = f"use Spark's from_{what.lower()}, which needs a package of its own, on the column body"
        raise InvalidConfig("schema", text, f"only JSON bodies are parsed here; for {what}, {use}")
    try:
        if suffix == ".json":
            return StructType.fromJson(json.loads(Path(text).read_bytes()))
        return StructType.fromDDL(text)  # type: ignore[return-value]  # `schema_of` checks that
    except OSError as error:
        raise InvalidConfig("schema", text, f"a file that can be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfig("schema", text, f"a file with a schema as df.schema.json() writes it ({error!r})") from None
    except PySparkException as error:
        raise InvalidConfig("schema", text, f"{EXAMPLE} ({str(error).strip().splitlines()[0]})") from None
