"""Typed bodies: every row stays, the body stays, and what is not what the schema says is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqlake import Message
from mqlake.errors import InvalidConfig
from mqlake.spark import archive, typed
from mqlake.spark.predicate import read
from tests.helpers import open_small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

ORDERS = [b'{"id": 1, "total": 9.99}', b'{"id": 2, "total": 5, "by": {"name": "Ann"}}', b'{"total": null}']
BAD = [
    b'{"id": 3',
    b"",
    b"\xff\xfe",
    b"7",
    b"null",
    b'{"id": "no number", "total": 4}',
    b'[{"id": 8}, {"id": 9}]',
    b'{"id": 1} {"id": 2}',
    b'{"id": 1}}',
    b"{'id': 1}",
]
DDL = "id BIGINT, total DECIMAL(12, 2)"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bodies") / "store"
    with open_small(path) as opened:
        for body in [*ORDERS, *BAD]:
            opened.put(Message("orders", body))
        opened.put(Message("payments", b'{"id": "p-1", "paid": true}'))
        opened.put(Message("pay-later", b'{"n": [1, 2]}'))
    return path


def values(rows: Any) -> list[Any]:
    return [row.asDict(recursive=True) for row in rows.orderBy("physical_offset").collect()]


def test_fields_have_the_types_of_the_schema_and_the_body_stays(spark: SparkSession, store: Path) -> None:
    rows = read(spark, str(store), where="topic = 'orders'", schema=DDL)
    assert rows.columns[-3:] == ["body", "value", "value_error"]
    assert dict(rows.dtypes)["value"] == "struct<id:bigint,total:decimal(12,2)>"
    found = values(rows)
    assert [bytes(row["body"]) for row in found] == [*ORDERS, *BAD]
    assert [row["value"]["id"] for row in found[:3]] == [1, 2, None]
    assert [str(row["value"]["total"]) for row in found[:3]] == ["9.99", "5.00", "None"]
    assert [row["value_error"] for row in found[:3]] == [None] * 3


def test_a_body_that_does_not_fit_is_kept_and_counted(spark: SparkSession, store: Path) -> None:
    rows = read(spark, str(store), where="topic = 'orders'", columns=["physical_offset"], schema=DDL)
    assert rows.columns == ["physical_offset", "value", "value_error"]
    counted = {row.value_error: row["count"] for row in rows.groupBy("value_error").count().collect()}
    assert counted.pop(None) == len(ORDERS)
    assert counted["the body is empty"] == counted["the body is not UTF-8"] == 1
    assert sum(counted.values()) == len(BAD)
    (partly,) = [row for row in values(rows) if row["value"] and str(row["value"]["total"]) == "4.00"]
    assert partly["value_error"] and partly["value"]["id"] is None, "what could be parsed is there"


def test_topics_have_schemas_of_their_own(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    from pyspark.sql.types import StructType

    file = tmp_path / "payments.json"
    file.write_text(StructType.fromDDL("id STRING, paid BOOLEAN").json())
    rows = read(spark, str(store), schema={"orders": DDL, "payments": str(file), "pay-later": "n ARRAY<INT>"})
    *orders, payment, later = values(rows)
    assert payment["value"] == {"orders": None, "payments": {"id": "p-1", "paid": True}, "pay-later": None}
    assert later["value"]["pay-later"] == {"n": [1, 2]}
    assert orders[0]["value"]["orders"]["id"] == 1 and orders[0]["value"]["payments"] is None
    assert [row["value_error"] is None for row in orders] == [True] * 3 + [False] * len(BAD)
    assert rows.where("value.payments.paid").count() == 1
    only = read(spark, str(store), columns=["size"], schema={"payments": str(file)})
    assert only.columns == ["size", "value", "value_error"]
    assert only.where("value_error is null").count() == only.count(), "a topic without a schema has no errors"


def test_an_inferred_schema_has_every_field_and_new_fields_are_added(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    bodies: list[dict[str, Any]] = [{"id": 1}, {"id": 2, "by": {"name": "Ann"}}]
    with open_small(path) as opened:
        for body in bodies:
            opened.put(Message("orders", json.dumps(body).encode()))
        opened.put(Message("orders", b"no json"))
    before = read(spark, str(path), schema="infer")
    assert dict(before.dtypes)["value"] == "struct<by:struct<name:string>,id:bigint>"
    later: list[dict[str, Any]] = [{"id": 3, "by": {"name": "Bob", "age": 7}, "new": [1.5]}, {"id": "four"}]
    with open_small(path) as opened:
        for body in later:
            opened.put(Message("orders", json.dumps(body).encode()))
        opened.put(Message("others", b'{"other": 1}'))
    (tmp_path / "kept.json").write_text(before.schema["value"].dataType.json())
    kept = read(spark, str(path), schema=str(tmp_path / "kept.json"))
    assert kept.schema["value"] == before.schema["value"]
    after = read(spark, str(path), where="size > 0 -- all", schema={"orders": "infer"})
    kind = "struct<by:struct<age:bigint,name:string>,id:string,new:array<double>>"
    assert dict(after.dtypes)["value"] == f"struct<orders:{kind}>"
    found = [row["value"]["orders"] for row in values(after)]
    assert [row and row["id"] for row in found] == ["1", "2", None, "3", "four", None]
    assert found[1]["by"] == {"age": None, "name": "Ann"} and found[3]["new"] == [1.5]
    assert [row["value_error"] is None for row in values(after)] == [True, True, False, True, True, True]


def test_names_that_differ_in_case_are_two_fields(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as opened:
        opened.put(Message("orders", b'{"id": 1, "ID": 2, "a.b": 3}'))
    (row,) = read(spark, str(tmp_path / "store"), schema="infer").collect()
    assert sorted(row.value) == [1, 2, 3] and row.value_error is None


def test_a_body_with_a_key_twice_leaves_the_columns_of_all_others_usable(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as opened:
        opened.put(Message("orders", b'{"id": 1, "by": {"n": 1}, "all": [{"x": 1}], "more": 1}'))
        opened.put(
            Message("orders", b'{"id": 2, "id": "b", "by": {"n": 2, "n": 3}, "by": {"m": 4}, "more": 1, "more": 0.5}')
        )
        opened.put(Message("orders", b'{"id": 3, "all": [{"x": 1, "x": 2}], "all": [{"y": 3}]}'))
    found = read(spark, str(tmp_path / "store"), schema="infer")
    kind = "struct<all:array<struct<x:bigint,y:bigint>>,by:struct<n:bigint,m:bigint>,id:string,more:double>"
    assert dict(found.dtypes)["value"] == kind
    ids = found.orderBy("physical_offset").select("value.id", "value.by.n", "value_error").collect()
    assert [row.id for row in ids] == ["1", "b", "3"] and ids[0].n == 1
    assert [row.value_error for row in ids] == [None] * 3
    archive(spark, str(tmp_path / "store"), str(tmp_path / "lake"), schema={"orders": "infer"})
    table = typed(spark, str(tmp_path / "lake"), "orders")
    assert [one[0] for one in table.dtypes[-4:]] == ["all", "by", "id", "more"]
    assert [row.id for row in table.orderBy("_physical_offset").collect()] == ["1", "b", "3"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("", "at least one field"),
        ("id NOTHING", "as in id BIGINT"),
        ("int", "at least one field"),
        ({}, "at least one topic"),
        ("missing.json", "No such file"),
        ("orders.avsc", "only JSON bodies are parsed here; for Avro, use Spark's from_avro"),
        ("orders.proto", "from_protobuf"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(spark: SparkSession, store: Path, schema: Any, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        read(spark, str(store), schema=schema)


def test_a_file_that_is_no_schema_is_refused(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    for text in ("{", "[]", '{"type": "record"}', '{"fields": [{"name": "a", "type": "nothing", "nullable": true}]}'):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(InvalidConfig, match=r"schema as df.schema.json\(\) writes it|as in id BIGINT"):
            read(spark, str(store), schema=str(tmp_path / "s.json"))
