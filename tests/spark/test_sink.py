"""Writing to a store: batches and streams, what is refused before a task runs, and exactly-once rows."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from mqlake import CommitLogConfig, Message, MessageStore, check
from mqlake.delivery.registry.topics import Permission
from mqlake.errors import InvalidConfig, NotAStore, StoreError
from mqlake.files.layout import Layout
from mqlake.files.lock import writer_of
from mqlake.spark.sink_options import plan_write
from tests.spark.tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

FILE_SIZE = 262_144
SMALL = {"mappedFileSizeCommitLog": str(FILE_SIZE), "maxHashSlotNum": "1000", "maxIndexNum": "4000"}
WRITTEN = ("topic", "body", "tags", "keys", "properties", "queue_id", "flag", "born_timestamp")


def messages(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "concat('topic-', id % 3) topic",
        "if(id % 5 = 0, null, concat('tag', id % 2)) tags",
        "if(id % 4 = 0, null, array(concat('key-', id), 'shared')) keys",
        "map('color', 'rød', 'n', string(id)) properties",
        "if(id % 7 = 0, int(id % 2), null) queue_id",
        "int(id) flag",
        "timestamp_millis(1700000000000 + id) born_timestamp",
        "cast(concat('body ', id) as binary) body",
    )


def write(df: DataFrame, path: Path, **options: str) -> None:
    df.write.format("mqlake").options(**SMALL, **options).mode("append").save(str(path))


def flags(path: Path) -> list[int]:
    return sorted(row["flag"] for row in rows_of(path, columns="flag"))


def test_rows_are_read_back_as_written(spark: SparkSession, tmp_path: Path) -> None:
    """The write creates the store, with consume queues and index."""
    path = tmp_path / "store"
    write(messages(spark, 600), path)
    found = {row["flag"]: row for row in rows_of(path)}
    assert sorted(found) == list(range(600))
    for number in (0, 1, 7, 35, 599):
        row = found[number]
        keys = [] if number % 4 == 0 else [f"key-{number}", "shared"]
        tags = None if number % 5 == 0 else f"tag{number % 2}"
        assert (row["topic"], row["body"]) == (f"topic-{number % 3}", b"body %d" % number)
        assert (row["keys"], row["tags"]) == (keys, tags)
        own = {"color": "rød", "n": str(number)}
        own |= {"KEYS": " ".join(keys)} if keys else {}
        assert row["properties"] == own | ({"TAGS": tags} if tags else {})
        assert row["born_timestamp"].timestamp() == pytest.approx(1_700_000_000 + number / 1000)
        assert number % 7 or row["queue_id"] == number % 2
    with MessageStore.open(path, read_only=True) as store:
        assert [m.body for m in store.find("topic-1", "key-7")] == [b"body 7"]
        queues = [queue for topic in store.topics() for queue in store.queues(topic)]
        assert sum(queue.end_offset for queue in queues) == 600
    assert len(list((path / "commitlog").iterdir())) == 1
    assert not list((path / "mqlake" / "staging").iterdir())
    assert check(path).holds


def test_a_stores_table_can_be_written_with_the_select_from_the_error(spark: SparkSession, tmp_path: Path) -> None:
    write(messages(spark, 50), tmp_path / "one")
    table = spark.read.format("mqlake").load(str(tmp_path / "one"))
    with pytest.raises(Exception, match=r"column = 'store'.*df.select\(\"topic\", \"body\"") as refused:
        write(table, tmp_path / "two")
    assert 'df.select("topic", "body", "tags", "keys", "properties", "queue_id", "flag", "born_timestamp")' in str(
        refused.value
    )
    write(table.select(*WRITTEN), tmp_path / "two")
    one, two = rows_of(tmp_path / "one"), rows_of(tmp_path / "two")
    assert [{name: row[name] for name in WRITTEN} for row in one] == [
        {name: row[name] for name in WRITTEN} for row in two
    ]


def test_a_job_with_an_id_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(2):
        write(messages(spark, 90), tmp_path, jobId="nightly-2026-01-31")
    assert flags(tmp_path) == list(range(90))
    write(messages(spark, 90), tmp_path)
    assert len(flags(tmp_path)) == 180, "without an id it is another write"


def test_other_rows_under_a_used_job_id_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    rows = messages(spark, 90).drop("born_timestamp")
    write(rows, tmp_path, jobId="nightly")
    write(rows.repartition(5), tmp_path, jobId="nightly")
    assert flags(tmp_path) == list(range(90)), "the same rows in other partitions are a repetition"
    with pytest.raises(Exception, match=r"OtherRows: .*job 'nightly' wrote 90 rows of .*, and now it has 91 rows"):
        write(messages(spark, 91).drop("born_timestamp"), tmp_path, jobId="nightly")
    with pytest.raises(Exception, match="OtherRows"):
        write(rows.selectExpr("topic", "flag", "'other' body"), tmp_path, jobId="nightly")
    assert flags(tmp_path) == list(range(90))
    assert not list((tmp_path / "mqlake" / "staging").iterdir())


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("'SCHEDULE_TOPIC_XXXX' topic", "topic: found 'SCHEDULE_TOPIC_XXXX'; expected a topic that messages can be"),
        ("'rmq_sys_wheel_timer' topic", "topic: found 'rmq_sys_wheel_timer'"),
        ("'RMQ_SYS_TRANS_HALF_TOPIC' topic", "topic: found 'RMQ_SYS_TRANS_HALF_TOPIC'"),
        ("'MQLAKE_SINK' topic", "topic: found 'MQLAKE_SINK'"),
        ("'read-only' topic", "topic: found 'read-only'; expected .*read-only"),
        (
            "'new' topic, 5000000 queue_id",
            r"queue_id: found 5000000; expected a queue id in \[0, 65536\), as topic new",
        ),
        ("'orders' topic, 6 queue_id", r"queue_id: found 6; expected a queue id in \[0, 6\), as topic orders"),
        ("'new' topic, -1 queue_id", "queue_id: found -1"),
    ],
)
def test_system_topics_and_queues_that_a_topic_cannot_have_are_refused(
    spark: SparkSession, tmp_path: Path, row: str, expected: str
) -> None:
    with MessageStore.open(tmp_path, commit_log=CommitLogConfig(file_size_bytes=FILE_SIZE)) as store:
        store.create_topic("orders", 6)
        store.create_topic("read-only", 1)
        store.update_topic("read-only", permission=Permission.READ)
    good = spark.sql("select 'orders' topic, 5 queue_id, 'body' body, 0 flag")
    write(good, tmp_path)
    bad = spark.sql(f"select {row}, 'body' body, 1 flag")
    with pytest.raises(Exception, match=rf"InvalidMessage: partition \d+, row \d, {expected}"):
        write(good.unionByName(bad, allowMissingColumns=True), tmp_path)
    assert flags(tmp_path) == [0]


def test_the_first_bad_row_is_named_with_its_place_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    write(messages(spark, 10), tmp_path)
    bad = messages(spark, 100, 1).selectExpr("if(flag = 57, 'no topic', topic) topic", "body")
    with pytest.raises(Exception, match=r"partition 0, row 57, topic: found 'no topic'; expected only ASCII"):
        write(bad, tmp_path)
    assert len(flags(tmp_path)) == 10
    assert not list((tmp_path / "mqlake" / "staging").iterdir())


def test_a_write_waits_for_another_writer_of_the_store(spark: SparkSession, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, commit_log=CommitLogConfig(file_size_bytes=FILE_SIZE)) as store:
        store.put(Message("topic-0", b"", flag=1000))
        with pytest.raises(Exception, match=rf"process {os.getpid()} writes this store"):
            messages(spark, 10).write.format("mqlake").option("lockTimeout", "1s").mode("append").save(str(tmp_path))
    assert flags(tmp_path) == [1000]


# ---- streams


def feed(spark: SparkSession, folder: Path, batches: int, rows: int) -> DataFrame:
    """Return a stream of so many batches. Row n has the flag n."""
    if not folder.exists():
        df = messages(spark, batches * rows, batches)
        df.write.parquet(str(folder))
    return spark.readStream.schema(messages(spark, 1).schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(source: DataFrame, store: Path, checkpoint: Path) -> Exception | None:
    """Run the stream to its end. Return the error if it stopped before."""
    query = (
        source.writeStream.format("mqlake")
        .options(**SMALL)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(store))
    )
    with contextlib.suppress(Exception):
        query.awaitTermination()
    return query.exception()


def test_a_stream_whose_commits_are_killed_writes_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """kill -9 at random moments of a commit. The stream is restarted each time and repeats its batch."""
    source = feed(spark, tmp_path / "in", batches=4, rows=150)
    draw, stop, kills = random.Random(5), threading.Event(), 0

    def kill_some(store: Path) -> None:
        nonlocal kills
        while not stop.is_set() and kills < 3:
            holder = writer_of(Layout(store).lock)
            if holder and holder != os.getpid():
                time.sleep(draw.uniform(0, 0.08) / (attempt + 1))  # a commit may be shorter than this
                if writer_of(Layout(store).lock) == holder:
                    os.kill(holder, signal.SIGKILL)
                    kills += 1
                    while writer_of(Layout(store).lock) == holder:
                        time.sleep(0.001)
            time.sleep(0.001)

    for attempt in range(20):
        store, checkpoint, failures = tmp_path / f"store-{attempt}", tmp_path / f"checkpoint-{attempt}", 0
        killer = threading.Thread(target=kill_some, args=[store])
        stop.clear()
        kills = 0  # a kill may hit a process that has just finished its commit, and then fails nothing
        killer.start()
        while (failure := run(source, store, checkpoint)) is not None:
            failures += 1
            assert failures < 20, failure
        stop.set()
        killer.join()
        assert flags(store) == list(range(600))
        assert run(source, store, checkpoint) is None
        assert len(flags(store)) == 600
        if failures:
            break
    assert kills > 0 and failures > 0


def test_a_stream_whose_task_fails_resumes_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """A row that cannot be stored stops the stream. After a fix, rows written before are not written again."""
    source = feed(spark, tmp_path / "in", batches=3, rows=40)
    failing = source.selectExpr("if(flag = 95, 'no topic', topic) topic", "body", "flag")
    assert run(failing, tmp_path / "store", tmp_path / "checkpoint") is not None
    assert 95 not in flags(tmp_path / "store")
    assert run(source.select("topic", "body", "flag"), tmp_path / "store", tmp_path / "checkpoint") is None
    assert flags(tmp_path / "store") == list(range(120))


# ---- refused at planning


def planned(path: Path, schema: str, *, overwrite: bool = False, stream: bool = False, **options: Any) -> Any:
    given = {"path": str(path), **{name.lower(): value for name, value in options.items()}}
    return plan_write(given, columns(schema), overwrite=overwrite, stream=stream)


def columns(schema: str) -> StructType:
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed


@pytest.mark.parametrize(
    ("schema", "options", "expected"),
    [
        ("topic string, body binary, colour string", {}, "column = 'colour'.*topic.*born_timestamp"),
        ("topic string, body int", {}, "body int.*must be binary or string: cast it"),
        ("topic string, body string, keys array<int>", {}, "keys array<int>.*array<string> or string"),
        ("topic string, body string, properties map<string,int>", {}, "must be map<string,string>"),
        ("topic string, body string, queue_id bigint", {}, "queue_id bigint.*must be int"),
        ("topic string, body string, born_timestamp bigint", {}, "must be timestamp"),
        ("topic string", {}, "must include body"),
        ("body string", {}, "must include topic, or option topic"),
        ("topic string, body string", {"topic": "orders"}, "there is also a column topic"),
        ("body string", {"topic": "no topic"}, "only ASCII letters"),
        ("body string", {"topic": "SCHEDULE_TOPIC_XXXX"}, "the system writes this topic itself"),
        ("topic string, body string", {"topics": "orders"}, "there is no such option; there are path, topic, jobId"),
        ("topic string, body string", {"jobId": "../up"}, "jobId = '../up'"),
        ("topic string, body string", {"lockTimeout": "soon"}, "lockTimeout = 'soon'"),
        ("topic string, body string", {"mappedFileSizeCommitLog": "12"}, "mappedFileSizeCommitLog = 12"),
    ],
)
def test_an_invalid_write_is_refused_by_name(
    tmp_path: Path, schema: str, options: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidConfig, match=expected):
        planned(tmp_path / "store", schema, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "store").exists(), "a refused write must create nothing"


def test_overwriting_is_refused(tmp_path: Path) -> None:
    for stream in (False, True):
        with pytest.raises(InvalidConfig, match="can only be appended to"):
            planned(tmp_path / "store", "topic string, body string", overwrite=True, stream=stream)
    with pytest.raises(InvalidConfig, match="a stream identifies its own batches"):
        planned(tmp_path / "store", "topic string, body string", stream=True, jobId="mine")


def test_a_folder_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotAStore, match="not a store"):
        planned(tmp_path, "topic string, body string")
    with pytest.raises(StoreError, match="name the store's folder"):
        plan_write({}, columns("topic string, body string"), overwrite=False, stream=False)


def test_sizes_that_contradict_the_stores_files_are_refused(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, commit_log=CommitLogConfig(file_size_bytes=FILE_SIZE)) as store:
        store.put(Message("topic-0", b""))
    with pytest.raises(InvalidConfig, match="have 262144 bytes"):
        planned(tmp_path, "topic string, body string", mappedFileSizeCommitLog="65536")
    assert planned(tmp_path, "topic string, body string").config.commit_log.file_size_bytes == FILE_SIZE
