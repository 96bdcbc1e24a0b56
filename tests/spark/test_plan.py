"""Plans: every way returns the same rows, and splits are cut between records."""

from __future__ import annotations

import itertools
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mqlake import CommitLogConfig, IndexConfig, Message, MessageStore
from mqlake.errors import InvalidConfig, NotAStore, OffsetOutOfRange
from mqlake.kernel import check_record, find_record
from mqlake.spark import explain
from mqlake.spark.plan import split_size
from mqlake.spark.topics import is_internal
from tests.helpers import LOG_FILE, message, open_small
from tests.kernel.records import Parts
from tests.spark.tables import Row, offsets_of, options_for, plan_of, put_messages, rows_of, splits_of, write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spark") / "store"
    write_store(path)
    return path


@pytest.fixture(scope="module")
def messages(store: Path) -> list[Row]:
    """All records from the store's own scan. Half and rolled-back ones are not messages."""
    with MessageStore.open(store, read_only=True) as opened:
        rows = [row for batch in opened.scan() for row in batch.to_pylist(maps_as_pydicts="strict")]
    return [row for row in rows if not row["sys_flag"] & 4]


def offsets(rows: list[Row]) -> list[int]:
    return [row["physical_offset"] for row in rows]


def test_a_full_read_returns_what_the_store_scans(store: Path, messages: list[Row]) -> None:
    found = rows_of(store)
    assert {row.pop("store") for row in found} == {str(store)}
    assert found == messages


def test_half_and_rolled_back_messages_are_returned_only_on_request(store: Path) -> None:
    assert len(rows_of(store, includeInternal="true")) == 600
    assert len(rows_of(store)) == 400


SELECTIONS: list[tuple[dict[str, Any], Any]] = [
    ({"topics": "topic-1"}, lambda row: row["topic"] == "topic-1"),
    ({"topics": "topic-1,topic-3"}, lambda row: row["topic"] in ("topic-1", "topic-3")),
    ({"topicsPattern": "topic-[03]"}, lambda row: row["topic"] in ("topic-0", "topic-3")),
    ({"topics": "topic-2", "queues": "0,2"}, lambda row: row["topic"] == "topic-2" and row["queue_id"] in (0, 2)),
    ({"topics": "topic-2", "tags": "tag1"}, lambda row: row["topic"] == "topic-2" and row["tags"] == "tag1"),
    ({"topics": "topic-2", "tags": "nobody"}, lambda row: False),
    ({"topics": "topic-2", "keys": "group-7"}, lambda row: row["topic"] == "topic-2" and "group-7" in row["keys"]),
    ({"topics": "topic-1,topic-2", "keys": "group-7,key-7"}, lambda row: {*row["keys"]} & {"group-7", "key-7"}),
    ({"topicsPattern": ".*", "keys": "group-4"}, lambda row: "group-4" in row["keys"]),
]


@pytest.mark.parametrize("split", ["1g", "20k", "1k"])
@pytest.mark.parametrize(("options", "wanted"), SELECTIONS)
def test_every_way_returns_exactly_the_selected_rows(
    store: Path, messages: list[Row], options: dict[str, Any], wanted: Any, split: str
) -> None:
    names = options.get("topics", "").split(",")
    expected = offsets([row for row in messages if wanted(row) and (names == [""] or row["topic"] in names)])
    ways = ["auto", "scan", "queue", *(["index"] if "keys" in options else [])]
    for via in ways:
        found = rows_of(store, via=via, splitSize=split, **options)
        assert sorted(offsets(found)) == expected, via
        by_offset = {row["physical_offset"]: row for row in messages}
        assert all(row == {"store": str(store), **by_offset[row["physical_offset"]]} for row in found)


@pytest.mark.parametrize("via", ["scan", "queue", "index"])
def test_offset_bounds_may_lie_inside_records_and_at_the_ends(store: Path, messages: list[Row], via: str) -> None:
    places = offsets(messages)
    for start, end in ((places[3], places[9]), (places[3] + 1, places[9] + 1), (0, places[-1]), (65_000, 66_000)):
        options: dict[str, Any] = {
            "startOffset": start,
            "endOffset": end,
            "topics": "topic-1",
            "keys": "group-1,group-6",
        }
        expected = [
            row["physical_offset"]
            for row in messages
            if start <= row["physical_offset"] < end
            and row["topic"] == "topic-1"
            and {*row["keys"]} & {"group-1", "group-6"}
        ]
        assert offsets_of(store, via=via, **options) == expected


def test_offsets_outside_the_log_are_an_error_unless_data_loss_is_allowed(store: Path, messages: list[Row]) -> None:
    end = plan_of(store).end
    with pytest.raises(OffsetOutOfRange, match=rf"offset {end + 1} is outside of \[0, {end}\)"):
        rows_of(store, endOffset=end + 1)
    assert offsets_of(store, endOffset=end + 1, failOnDataLoss="false") == offsets(messages)
    assert offsets_of(store, startOffset=end) == []


def test_splits_are_contiguous_end_between_records_and_are_never_empty(store: Path) -> None:
    splits = splits_of(store, splitSize="3k")
    assert len(splits) > 60
    assert splits[0].start == 0 and splits[-1].end == splits[0].readable
    assert all(before.end == after.start for before, after in itertools.pairwise(splits))
    with MessageStore.open(store, read_only=True) as opened:
        starts = {
            row["physical_offset"] for batch in opened.scan(columns=["physical_offset"]) for row in batch.to_pylist()
        }
    assert all(split.start in starts or split.start % LOG_FILE == 0 for split in splits)


def test_there_are_splits_for_every_core_but_none_is_too_small() -> None:
    mib = 1 << 20
    options = options_for("s", minPartitions=8)
    assert split_size(8 << 30, options) == 128 * mib
    assert split_size(400 * mib, options) == 50 * mib
    assert split_size(64 * mib, options) == 16 * mib
    assert split_size(64 * mib, options_for("s", minPartitions=8, splitSize="2m")) == 2 * mib


@pytest.mark.parametrize("options", [{}, {"topics": "topic-1", "via": "queue"}])
def test_the_size_of_a_task_does_not_grow_with_the_store(tmp_path: Path, options: dict[str, str]) -> None:
    """A larger store has more tasks, not larger ones. What is sent to a task does not grow either."""
    largest, counts = [], []
    for count in (600, 2400):
        path = tmp_path / str(count)
        write_store(path, count)
        splits = splits_of(path, splitSize="20k", **options)
        rows = [len(rows_of(path, [split], **options)) for split in splits]
        largest.append((max(rows), max(len(pickle.dumps(split)) for split in splits)))
        counts.append(len(splits))
    (few_rows, few_bytes), (many_rows, many_bytes) = largest
    assert counts[1] > 3 * counts[0] > 20
    assert many_rows <= few_rows + 6
    assert many_bytes <= few_bytes + 16


def quoting_body(place: int) -> bytes:
    """Return a body that holds valid records which name their own offsets, if the body lies at `place`."""
    fake = b""
    for _ in range(3):
        fake += Parts(b"orders", b"fake", b"").record(place + len(fake))
    return fake + b"." * 40_000


def test_a_record_quoted_in_a_body_is_not_a_boundary(tmp_path: Path) -> None:
    """It has the magic number, its own offset, a valid CRC and records after it. Only walking up to it reveals it."""
    path = tmp_path / "store"
    with open_small(path, commit_log=CommitLogConfig(file_size_bytes=1 << 20)) as opened:
        real = [opened.put(Message("orders", b"first")).physical_offset]
        opened.wait_dispatched()
        for _ in range(8):
            at = opened.end_offset
            body_at = at + 88  # the bytes before the body of a record with IPv4 hosts
            receipt = opened.put(Message("orders", quoting_body(body_at)))
            opened.wait_dispatched()
            real.append(receipt.physical_offset)
    log = (path / "commitlog" / f"{0:020d}").read_bytes()
    assert find_record(log, real[1] + 1, len(log), 0) == real[1] + 88, "the quoted record looks real"
    assert check_record(log, real[1] + 88, len(log), real[1] + 88, True) > 0

    for size in (1000, 5000, 20_000, 41_000):
        splits = splits_of(path, splitSize=size)
        assert all(split.start in real for split in splits)
        assert offsets_of(path, splitSize=size) == real


def test_queues_and_index_are_not_trusted_after_an_unclean_stop(
    store: Path, messages: list[Row], tmp_path: Path
) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / "abort").touch()
    shutil.rmtree(copy / "consumequeue" / "topic-1")
    made = plan_of(copy, topics="topic-1", keys="group-1")
    assert made.way.name == "scan"
    assert "unclean" in made.way.reason
    expected = offsets([row for row in messages if row["topic"] == "topic-1"])
    assert offsets_of(copy, topics="topic-1") == expected
    assert offsets_of(copy, topicsPattern="topic-1") == expected
    with pytest.raises(InvalidConfig, match="the last stop was unclean"):
        plan_of(copy, topics="topic-1", via="queue")


def test_what_the_index_does_not_cover_is_scanned(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write_store(path, 200, index=IndexConfig(enabled=False))
    with open_small(path) as opened:
        put_messages(opened, 200, 200)
        opened.put(Message("topic-0", b"no key"))
    expected = offsets_of(path, keys="group-4", topicsPattern=".*", via="scan")
    made = plan_of(path, keys="group-4", topicsPattern=".*", via="index")
    assert offsets_of(path, keys="group-4", topicsPattern=".*", via="index") == expected
    assert len(expected) > 4
    assert "does not cover" in made.way.reason


def test_an_unreadable_index_is_not_used(store: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / "mqlake" / "settings.json").unlink()
    for file in (copy / "index").iterdir():
        file.write_bytes(bytes(1000))  # nothing in it proves how many slots and entries it has
    made = plan_of(copy, keys="group-1")
    assert made.way.name == "scan"
    assert "maxHashSlotNum" in made.way.reason


def test_the_cheapest_way_is_taken_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path, commit_log=CommitLogConfig(file_size_bytes=1 << 22)) as opened:
        for i in range(2000):
            opened.put(Message("rare" if i % 100 == 0 else "common", b"x" * 1000, keys=f"k{i}"))
    assert plan_of(path).way.name == "scan"
    assert plan_of(path, topics="common").way.name == "scan"
    assert plan_of(path, topics="rare").way.name == "consume queue"
    assert plan_of(path, topics="common", keys="k77").way.name == "index"
    explained = explain(str(path), topics="rare")
    assert "consume queue: 20 entries of 4 queues of 1 topics" in explained
    assert "scan would read about" in explained
    assert f"{path}: log [0, " in explained


def test_every_way_finds_what_the_log_has_of_deleted_topics(tmp_path: Path) -> None:
    """Queues have fewer messages than the log of a deleted and recreated topic, and none of a topic only deleted."""
    path = tmp_path / "store"
    with open_small(path) as opened:
        for number in range(60):
            opened.put(message(number, ("again", "gone", "stays")[number % 3], queue_id=0))
        opened.delete_topic("again")
        opened.delete_topic("gone")
        begin = opened.put(message(60, "again", queue_id=0)).physical_offset
        for number in range(300):
            opened.put(message(number, "stays", queue_id=0))
    wanted: list[tuple[dict[str, Any], int]] = [
        ({"topics": "again"}, 21),
        ({"topics": "gone"}, 20),
        ({"topicsPattern": "again|gone"}, 41),
        ({"topics": "again", "keys": "key-0,key-60"}, 2),
        ({"keys": "key-1"}, 2),
        ({"topics": "again", "startOffset": str(begin)}, 1),
    ]
    for selection, count in wanted:
        assert len(rows_of(path, **selection)) == len(rows_of(path, via="scan", **selection)) == count, selection
    assert plan_of(path, topics="again").way.name == "scan"
    assert plan_of(path, topics="again", startOffset=str(begin)).way.name == "consume queue"
    assert "again was deleted, and the log still has messages of it, which are in no queue" in explain(
        str(path), topics="again"
    )


def test_internal_topics_are_left_out_unless_named_or_included(tmp_path: Path) -> None:
    path = tmp_path / "store"
    names = ["orders", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "%RETRY%group"]
    with open_small(path) as opened:
        for name in names:
            opened.put(Message(name, b"."))
    assert [is_internal(name) for name in names] == [False, True, True, True, False]
    assert {row["topic"] for row in rows_of(path)} == {"orders", "%RETRY%group"}
    assert {row["topic"] for row in rows_of(path, includeInternal="true")} == {*names}
    assert {row["topic"] for row in rows_of(path, topics="SCHEDULE_TOPIC_XXXX")} == {"SCHEDULE_TOPIC_XXXX"}
    assert {row["topic"] for row in rows_of(path, topicsPattern=".*_.*")} == set()


def test_several_stores_and_patterns_are_one_table_and_each_store_counts_once(tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1"):
        write_store(tmp_path / name, 60)
    rows = rows_of(tmp_path / "a?")
    assert {row["store"] for row in rows} == {str(tmp_path / "a1"), str(tmp_path / "a2")}
    assert len(rows) == 80
    assert len(rows_of(f"file://{tmp_path}/a1")) == 40
    options = options_for(tmp_path / "a?", paths=f'["{tmp_path}/a1", "{tmp_path}/b1"]')
    assert len(options.paths) == 3
    from mqlake.spark.plan import expand

    assert [path.name for path in expand(options.paths)] == ["a1", "a2", "b1"]
    with pytest.raises(NotAStore, match="no folder matches"):
        plan_of(tmp_path / "c*")
    with pytest.raises(NotAStore, match="no such folder"):
        plan_of(tmp_path / "c")
    with pytest.raises(InvalidConfig, match="file system"):
        plan_of("hdfs://host/store")


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    with open_small(tmp_path / "store"):
        pass
    assert splits_of(tmp_path / "store") == []


def test_raw_bodies_can_be_read_with_decompressed_ones(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as opened:
        opened.put(Message("orders", zlib.compress(b"text " * 20), sys_flag=0x1 | 0x300))
    (row,) = rows_of(path, columns="raw_body,body")
    assert row == {"raw_body": zlib.compress(b"text " * 20), "body": b"text " * 20}


def test_delayed_messages_are_found_by_tag_although_their_entries_have_no_tag_hash(tmp_path: Path) -> None:
    """An entry of the delay topic holds the delivery time instead of the tag's hash."""
    path = tmp_path / "store"
    with open_small(path) as opened:
        for i in range(9):
            opened.put(Message("SCHEDULE_TOPIC_XXXX", b"%d" % i, tags=f"tag{i % 3}", properties={"DELAY": "3"}))
    options = {"topics": "SCHEDULE_TOPIC_XXXX", "tags": "tag1"}
    assert len(offsets_of(path, via="queue", **options)) == 3
    assert offsets_of(path, via="queue", **options) == offsets_of(path, via="scan", **options)
