"""Typed tables of a lake: every message once, what does not parse kept and counted, new fields as added columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from mqlake import Message
from mqlake.errors import InvalidConfig, LakeConflict, NotALake
from mqlake.lake import Lake
from mqlake.lake.typed import TypedFile, TypedTable
from mqlake.lake.vacuum import vacuum
from mqlake.spark import Typed, archive, compact, type_bodies, typed
from tests.helpers import open_small
from tests.lake.s3 import Server, running, versitygw
from tests.spark.test_bodies import BAD, DDL, ORDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server(s3_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("versitygw" if versitygw() else "moto", tmp_path_factory.mktemp("s3"), s3_port) as started:
        yield started


@pytest.fixture(params=["folder", "bucket"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "lake")
    server: Server = request.getfixturevalue("server")
    return f"s3://{server.new_bucket()}/lake"


def put(store: Path, bodies: list[bytes], topic: str = "orders") -> None:
    with open_small(store) as opened:
        for body in bodies:
            opened.put(Message(topic, body, keys="k"))


def rows(spark: SparkSession, lake: str, topic: str = "orders") -> list[dict[str, Any]]:
    found = typed(spark, lake, topic).orderBy("_physical_offset").collect()
    return [row.asDict(recursive=True) for row in found]


def by_deltalake(lake: str, server: Server | None, version: int | None = None) -> list[dict[str, Any]]:
    deltalake = pytest.importorskip("deltalake")
    options = None if server is None else {**server.options, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    table = deltalake.DeltaTable(f"{lake}/typed/orders", version=version, storage_options=options)
    import polars

    found = polars.scan_delta(table).collect().sort("_physical_offset")
    return list(found.to_dicts())


def test_an_archive_with_a_schema_has_a_typed_table_with_every_message_once(
    spark: SparkSession, tmp_path: Path, lake: str, request: pytest.FixtureRequest
) -> None:
    store = tmp_path / "store"
    put(store, [*ORDERS, *BAD])
    put(store, [b'{"id": "p-1"}'], "payments")
    archive(spark, str(store), lake, schema={"orders": DDL})
    found = rows(spark, lake)
    assert [row["id"] for row in found[:3]] == [1, 2, None]
    assert [str(row["total"]) for row in found[:3]] == ["9.99", "5.00", "None"]
    assert [row["_body"] for row in found] == [None] * 3 + [bytearray(body) for body in BAD], "what did not parse stays"
    assert all((row["_error"] is None) == (row["_body"] is None) for row in found)
    assert (found[0]["_keys"], found[0]["_store"]) == (["k"], str(store))
    put(store, [b'{"id": 10, "total": 1, "state": "new"}'])
    archive(spark, str(store), lake, schema={"orders": "id BIGINT, state STRING"})
    again = rows(spark, lake)
    assert len(again) == len(found) + 1 and again[-1]["state"] == "new"
    assert [{**row, "state": None} for row in found] == again[:-1], "earlier rows have null in the added column"
    server = request.getfixturevalue("server") if lake.startswith("s3") else None
    seen = by_deltalake(lake, server)
    assert [(row["id"], row["state"], row["_body"]) for row in seen] == [
        (row["id"], row["state"], None if row["_body"] is None else bytes(row["_body"])) for row in again
    ]
    assert len(by_deltalake(lake, server, 0)) == len(found), "a version stays"


def test_what_is_inferred_adds_columns_and_keeps_types(spark: SparkSession, tmp_path: Path) -> None:
    store, lake = tmp_path / "store", str(tmp_path / "lake")
    put(store, [b'{"id": 1, "by": {"name": "Ann"}}', b"no json"])
    archive(spark, str(store), lake)
    assert type_bodies(spark, lake, {"orders": "infer"}) == [Typed("orders", 2, 1, ("by", "id"), 0)]
    put(store, [b'{"id": 2, "by": {"name": "Bo", "age": 7}, "a b": 1, "ID": 4}', b'{"id": "text", "new": [1]}'])
    archive(spark, str(store), lake)
    compact(spark, lake)
    (done,) = type_bodies(spark, lake, {"orders": "infer"})
    assert (done.rows, done.added_columns, done.version) == (2, ("new",), 1)
    found = rows(spark, lake)
    assert found[0]["by"] == {"name": "Ann", "age": None} and found[2]["by"] == {"name": "Bo", "age": 7}
    assert (found[3]["id"], found[3]["new"]) == (None, [1])
    assert found[3]["_error"] is not None and bytes(found[3]["_body"]) == b'{"id": "text", "new": [1]}'
    assert type_bodies(spark, lake, {"orders": "infer"}) == [Typed("orders", 0, 0, (), 1)]
    put(store, [b'{"id": 3}'])
    archive(spark, str(store), lake)
    assert type_bodies(spark, lake) == [Typed("orders", 1, 0, (), 2)], "without schemas: the tables that exist"
    assert [row["id"] for row in rows(spark, lake)] == [1, None, 2, None, 3]
    seen = by_deltalake(lake, None)
    assert [row["by"] for row in seen[:3:2]] == [{"name": "Ann", "age": None}, {"name": "Bo", "age": 7}]


def test_fields_with_dots_and_backticks_in_their_names_are_columns(
    spark: SparkSession, tmp_path: Path, lake: str
) -> None:
    """A field of a message can have any name, and one of them must not stop the table."""
    put(tmp_path / "store", [b'{"a": {"b": 1}, "a.b": 2, "c.d": 3, "e`f": 4, "`g`": 5}', b'{"a.b": {"c.d": {"`": 6}}}'])
    archive(spark, str(tmp_path / "store"), lake, schema={"orders": "a STRUCT<b: BIGINT>, `a.b` BIGINT"})
    assert [(row["a"], row["a.b"]) for row in rows(spark, lake)] == [({"b": 1}, 2), (None, None)]
    type_bodies(spark, lake, {"orders": "infer"})
    put(tmp_path / "store", [b'{"a": {"b": 1}, "a.b": 2, "c.d": 3, "e`f": 4, "`g`": 5, "h": {"i.j": 7}}'])
    archive(spark, str(tmp_path / "store"), lake, schema={"orders": "infer"})
    last = {name: value for name, value in rows(spark, lake)[-1].items() if name[0] != "_"}
    assert last == {"a": {"b": 1}, "a.b": 2, "c.d": 3, "e`f": 4, "`g`": 5, "h": {"i.j": 7}}


def test_a_job_that_is_killed_before_its_commit_leaves_nothing_that_counts(spark: SparkSession, tmp_path: Path) -> None:
    store, lake = tmp_path / "store", str(tmp_path / "lake")
    put(store, ORDERS)
    archive(spark, str(store), lake)
    opened = Lake.open(lake)
    table = TypedTable(opened.storage, "orders")
    before = table.state()
    with pytest.MonkeyPatch.context() as patch:

        def killed(*arguments: object) -> int:
            raise KeyboardInterrupt

        patch.setattr(TypedTable, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            type_bodies(spark, lake, {"orders": DDL})
    with pytest.raises(NotALake):
        typed(spark, lake, "orders")
    type_bodies(spark, lake, {"orders": DDL})
    assert len(rows(spark, lake)) == len(ORDERS)
    with pytest.raises(LakeConflict):
        table.commit(before, [], [TypedFile("x", 1, 1, 0)], {}, 1)
    files = {path.name for path in (tmp_path / "lake" / "typed" / "orders").glob("*.parquet")}
    with opened.lock():
        vacuum(opened, grace_s=-10)
    left = {path.name for path in (tmp_path / "lake" / "typed" / "orders").glob("*.parquet")}
    assert left == set(table.state().files) < files


def test_a_checkpoint_of_the_log_holds_columns_positions_and_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqlake.lake.typed.SNAPSHOT_EVERY", 2)
    store, lake = tmp_path / "store", str(tmp_path / "lake")
    for number in range(4):
        put(store, [b'{"id": %d}' % number])
        archive(spark, str(store), lake, schema={"orders": DDL})
    log = tmp_path / "lake" / "typed" / "orders" / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_bytes())["version"] == 2
    for entry in range(2):
        (log / f"{entry:020d}.json").unlink()
    assert [row["id"] for row in rows(spark, lake)] == [0, 1, 2, 3]
    assert [row["id"] for row in by_deltalake(lake, None)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id STRING", "as in the table"),
        ("`a b` STRING", "names of columns"),
        ("_body STRING", "every typed table"),
        ("d TIMESTAMP_NTZ", "not a type of every engine"),
    ],
)
def test_columns_that_cannot_be_are_refused(spark: SparkSession, tmp_path: Path, schema: str, message: str) -> None:
    store, lake = tmp_path / "store", str(tmp_path / "lake")
    put(store, ORDERS)
    archive(spark, str(store), lake, schema={"orders": DDL})
    with pytest.raises(InvalidConfig, match=message):
        type_bodies(spark, lake, {"orders": schema})
    with pytest.raises(InvalidConfig, match="letters, digits"):
        type_bodies(spark, lake, {"%RETRY%orders": DDL})
