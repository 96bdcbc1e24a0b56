"""Tables of stores that RocketMQ wrote have every record that RocketMQ finds in its own store, and no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from mqlake import MessageStore
from mqlake.spark.schema import ALL_COLUMNS
from mqlake.spark.topics import is_internal
from tests.golden.stores import NAMES, GoldenStore
from tests.spark.tables import offsets_of, rows_of
from tests.store.test_scan import as_dumped, java_host

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOADED = [name for name in NAMES if name != "v4-empty-next-file"]
"""RocketMQ 4.9 does not start with an empty next file, so there is no dump to compare with."""
EVERYTHING: dict[str, Any] = {"includeInternal": "true", "columns": ",".join(ALL_COLUMNS)}


def require_equal(rows: list[dict[str, Any]], golden: GoldenStore) -> int:
    """Assert that rows of the table equal the records of RocketMQ's dump, with bodies as stored. Return their count."""
    wanted = golden.expected("record")
    rows = sorted(rows, key=lambda row: row["physical_offset"])
    assert len(rows) == len(wanted)
    for row, record in zip(rows, wanted, strict=True):
        found = as_dumped({**row, "body": bytes(row["raw_body"])})
        record["bornHost"], record["storeHost"] = java_host(record["bornHost"]), java_host(record["storeHost"])
        assert found == {key: record[key] for key in found}
        assert row["tags"] == record["properties"].get("TAGS")
        assert row["keys"] == record["properties"].get("KEYS", "").split()
    return len(rows)


@pytest.mark.parametrize("name", LOADED)
def test_a_plan_and_its_splits_hold_every_record(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    require_equal(rows_of(golden.path, splitSize="5k", **EVERYTHING), golden)


@pytest.mark.parametrize("name", LOADED)
def test_every_way_reads_what_rocketmq_delivers(name: str, tmp_path: Path) -> None:
    """Queues, scan and index alike return the messages that the queues of each topic name."""
    golden = GoldenStore(name, tmp_path)
    delivered: dict[str, set[int]] = defaultdict(set)
    for line in golden.expected("message"):
        delivered[line["topic"]].add(line["physicalOffset"])
    records = {line["physicalOffset"]: line for line in golden.expected("record")}
    for topic, offsets in delivered.items():
        own = {offset for offset in offsets if records[offset]["topic"] == topic}  # light queues also name others'
        for via in ("auto", "scan"):
            assert {*offsets_of(golden.path, topics=topic, via=via)} >= own
    with MessageStore.open(golden.path, config=golden.config):  # after recovery, queues and index are trusted
        pass
    for topic in delivered:
        if not is_internal(topic):
            assert offsets_of(golden.path, topics=topic) == offsets_of(golden.path, topics=topic, via="scan")


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(400)
def test_spark_reads_all_golden_stores_as_one_table(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    stores = {name: GoldenStore(name, tmp_path / name) for name in LOADED}
    table = spark.read.format("mqlake").options(**EVERYTHING).load([str(store.path) for store in stores.values()])
    by_store: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.collect():
        by_store[Path(row["store"]).name].append(row.asDict())
    assert by_store.keys() == {name for name, golden in stores.items() if golden.expected("record")}
    count = sum(require_equal(rows, stores[name]) for name, rows in by_store.items())
    record_property("compared: Spark on stores of RocketMQ", {"stores": len(by_store), "records": count})
