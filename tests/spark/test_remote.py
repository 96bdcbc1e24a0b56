"""Reads through a broker give what reads of its files give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mqlake import Message
from mqlake.broker.in_thread import BrokerThread
from mqlake.client import Admin, Producer
from mqlake.errors import ChangedUnderRead, InvalidConfig
from mqlake.spark.options import parse_options, parse_stream_options
from mqlake.spark.remote import plan_remote, read_remote
from mqlake.spark.schema import arrow_schema_for, spark_schema
from mqlake.spark.split import RemoteSplit
from tests.broker.conftest import SMALL
from tests.clients.endpoints import start
from tests.interop.marks import WITH_ROCKETMQ

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerThread, Path]]:
    """A broker with messages of two topics: tags, keys, properties, large bodies."""
    path = tmp_path_factory.mktemp("served") / "store"
    with BrokerThread(path, config=SMALL) as broker:
        with Producer(broker.name_server) as producer:
            for topic in ("orders", "payments"):
                messages = [
                    Message(topic, b"%s-%d" % (topic.encode(), number), tags=f"t{number % 3}", keys=[f"k{number}"])
                    for number in range(200)
                ]
                producer.send_many(messages[:150])
                for message in messages[150:]:
                    producer.send(message)
                producer.send(Message(topic, b"large" * 10_000, properties={"größe": "groß"}))
        broker.store.flush()
        broker.store.wait_dispatched()
        yield broker, path


def read(spark: SparkSession, endpoint: str, **options: str) -> DataFrame:
    return spark.read.format("mqlake").option("endpoint", endpoint).options(**options).load()


def test_every_column_is_that_of_a_read_of_the_files(spark: SparkSession, served: tuple[BrokerThread, Path]) -> None:
    broker, path = served
    ours = read(spark, broker.name_server, topics="orders,payments").drop("store")
    files = spark.read.format("mqlake").option("topics", "orders,payments").load(str(path)).drop("store")
    assert ours.schema == files.schema
    assert sorted(ours.collect(), key=str) == sorted(files.collect(), key=str)
    assert ours.count() == 402


def test_all_topics_are_read_unless_some_are_named(spark: SparkSession, served: tuple[BrokerThread, Path]) -> None:
    endpoint = served[0].name_server
    counts = {row["topic"]: row["count"] for row in read(spark, endpoint).groupBy("topic").count().collect()}
    assert counts == {"orders": 201, "payments": 201}
    assert read(spark, endpoint, topicsPattern="pay.*").count() == 201


def test_selections_are_exact(spark: SparkSession, served: tuple[BrokerThread, Path]) -> None:
    endpoint = served[0].name_server
    assert read(spark, endpoint, topics="orders", tags="t1").count() == 67
    assert [row["body"] for row in read(spark, endpoint, topics="orders", keys="k7").collect()] == [b"orders-7"]
    with Admin(endpoint) as admin:
        expected = {each.queue_id: each.message_count for each in admin.queues("orders")}
    for queue_id, count in expected.items():
        assert read(spark, endpoint, topics="orders", queues=str(queue_id)).count() == count
    rows = read(spark, endpoint, topics="orders").select("store").distinct().collect()
    assert [row["store"] for row in rows] == [endpoint]


def test_splits_cover_each_queue_once(served: tuple[BrokerThread, Path]) -> None:
    options = parse_options({"endpoint": served[0].name_server, "topics": "orders", "minPartitions": "10"})
    splits = plan_remote(options)
    assert len(splits) >= 10
    covered = sorted((split.queue_id, at) for split in splits for at in range(split.first, split.stop))
    assert len(covered) == len(set(covered)) == 201


def test_a_task_that_gets_less_than_planned_fails(served: tuple[BrokerThread, Path]) -> None:
    endpoint = served[0].name_server
    options = parse_options({"endpoint": endpoint, "topics": "orders"})
    schema = arrow_schema_for(spark_schema(options.columns))
    beyond = RemoteSplit(endpoint, "orders", "broker-a", 0, 0, 100_000)
    with pytest.raises(ChangedUnderRead, match="up to 100000"):
        list(read_remote(options, schema, beyond))


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=WITH_ROCKETMQ) for kind in ("rocketmq-5.5", "rocketmq-4.9")])
def test_a_real_broker_is_read_with_every_column(kind: str, tmp_path: Path) -> None:
    endpoint = start(kind, tmp_path / "store")
    try:
        with Producer(endpoint.name_server) as producer, Admin(endpoint.name_server) as admin:
            for number in range(50):
                producer.send(Message("orders", b"%d" % number * 2_000, tags="t", keys=[f"k{number}"]), timeout_s=60.0)
            stored = {
                message.physical_offset: message
                for queue in admin.queues("orders")
                for message in admin.read("orders", queue_id=queue.queue_id, limit=100)
            }
        options = parse_options({"endpoint": endpoint.name_server, "topics": "orders", "minPartitions": "7"})
        schema = arrow_schema_for(spark_schema(options.columns))
        batches = [batch for split in plan_remote(options) for batch in read_remote(options, schema, split)]
        rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    finally:
        endpoint.stop()
    assert len(rows) == len(stored) == 50
    for row in rows:
        message = stored[row["physical_offset"]]
        names = (
            "topic",
            "queue_id",
            "queue_offset",
            "size",
            "body",
            "tags",
            "keys",
            "born_host",
            "store_host",
            "properties",
        )
        assert {name: row[name] for name in names} == {name: getattr(message, name) for name in names}


def test_options_that_need_files_are_refused() -> None:
    for name, value in (("startOffset", "0"), ("onDamage", "rows"), ("lake", "/tmp/lake"), ("via", "scan")):
        with pytest.raises(InvalidConfig, match=f"{name}.*not with endpoint"):
            parse_options({"endpoint": "127.0.0.1:9876", name: value})
    with pytest.raises(InvalidConfig, match="not both"):
        parse_options({"endpoint": "127.0.0.1:9876", "path": "/data"})
    with pytest.raises(InvalidConfig, match="HOST:PORT"):
        parse_options({"endpoint": "somewhere"})
    with pytest.raises(InvalidConfig, match=r"endpoint.*not in a stream"):
        parse_stream_options({"endpoint": "127.0.0.1:9876"})
