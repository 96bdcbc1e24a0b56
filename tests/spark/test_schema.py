"""The table's columns: Arrow batches match the schema that Spark was given."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from mqlake.errors import InvalidConfig
from mqlake.spark.schema import (
    ALL_COLUMNS,
    DAMAGE,
    OF_DAMAGE,
    arrow_schema,
    arrow_schema_for,
    checked_columns,
    columns_of,
    microseconds,
    spark_schema,
)
from mqlake.store.scan import COLUMNS


@pytest.mark.parametrize("columns", [ALL_COLUMNS, (*ALL_COLUMNS, DAMAGE), ("body", "topic")])
def test_arrow_and_spark_schemas_agree(columns: tuple[str, ...]) -> None:
    expected = to_arrow_schema(spark_schema(columns), timezone="UTC")
    assert arrow_schema(columns).equals(expected)
    assert [field.nullable for field in arrow_schema(columns)] == [field.nullable for field in expected]


def test_the_columns_are_store_and_those_of_a_scan() -> None:
    assert checked_columns(None, with_damage=False) == ("store", *COLUMNS)
    assert [field.name for field in spark_schema(ALL_COLUMNS) if field.nullable] == ["tags"]


def test_damage_rows_make_all_but_their_own_columns_nullable() -> None:
    schema = spark_schema(checked_columns(None, with_damage=True))
    assert {field.name for field in schema if not field.nullable} == {*OF_DAMAGE} - {DAMAGE}


def test_a_schema_from_the_user_selects_columns_and_changes_no_type() -> None:
    assert columns_of(StructType([StructField("body", spark_schema(["body"])[0].dataType)])) == ("body",)
    chosen = StructType([StructField("tags", StringType()), StructField("topic", StringType())])
    assert [field.nullable for field in arrow_schema_for(chosen)] == [True, True]
    with pytest.raises(InvalidConfig, match="tags is null for some rows"):
        arrow_schema_for(StructType([StructField("tags", StringType(), nullable=False)]))
    with pytest.raises(InvalidConfig, match="topic is string"):
        columns_of(StructType([StructField("topic", IntegerType())]))
    with pytest.raises(InvalidConfig, match="one of store, topic"):
        columns_of(StructType([StructField("subject", StringType())]))


def test_an_impossible_time_is_clipped_and_fails_nothing() -> None:
    times = pa.array([0, 1_700_000_000_123, -5, 2**62, -(2**62)], pa.timestamp("ms", "UTC"))
    found = microseconds(times)
    farthest = (2**63 - 1) // 1000 * 1000
    assert found.type == pa.timestamp("us", "UTC")
    assert found.cast(pa.int64()).to_pylist() == [0, 1_700_000_000_123_000, -5000, farthest, -farthest]
