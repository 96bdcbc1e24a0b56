"""Splits: each proves its end, damage is reported, and a change after planning is an error, never fewer rows."""

from __future__ import annotations

import dataclasses
import logging
import struct
import zlib
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mqlake import CommitLogConfig, Message, MessageStore
from mqlake.errors import ChangedUnderRead, CorruptRecord
from mqlake.files.names import file_name
from mqlake.spark.read_split import read_split
from mqlake.spark.schema import arrow_schema
from tests.helpers import LOG_FILE, QUEUE_FILE, open_small
from tests.spark.tables import Row, offsets_of, options_for, rows_of, splits_of, write_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "store")
    return tmp_path / "store"


def records_of(path: Path) -> list[Row]:
    with MessageStore.open(path, read_only=True) as opened:
        return [row for batch in opened.scan() for row in batch.to_pylist()]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change the log without going through the store."""
    start = offset - offset % LOG_FILE
    with (path / "commitlog" / file_name(start)).open("r+b") as file:
        file.seek(offset - start)
        file.write(data)


def messages_but(records: list[Row], *damaged: int) -> list[int]:
    return [
        row["physical_offset"] for row in records if not row["sys_flag"] & 4 and row["physical_offset"] not in damaged
    ]


@pytest.mark.parametrize("size", ["1g", "7k", "1k"])
@pytest.mark.parametrize("damage", ["body", "header", "size", "several"])
def test_damage_is_skipped_logged_and_nothing_else_is_lost(
    store: Path, size: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    records = records_of(store)
    hit = [record for record in records if record["size"] > 300][40]
    at = hit["physical_offset"]
    damaged = [at]
    if damage == "body":
        overwrite(store, at + 100, b"\xff\x00\xff")
    elif damage == "header":
        overwrite(store, at + 4, b"????")
    elif damage == "size":
        overwrite(store, at, struct.pack(">i", 1 << 30))
    else:
        run = [record for record in records if record["physical_offset"] >= at][:4]
        damaged = [record["physical_offset"] for record in run]
        overwrite(store, at, b"\xda" * sum(record["size"] for record in run))
    with caplog.at_level(logging.WARNING):
        assert offsets_of(store, splitSize=size) == messages_but(records, *damaged)
    assert f"record at {at}" in caplog.text


@pytest.mark.parametrize("via", ["scan", "queue", "index"])
def test_damage_can_be_returned_as_rows(store: Path, via: str) -> None:
    hit = [record for record in records_of(store) if record["topic"] == "topic-2" and record["size"] > 300][5]
    overwrite(store, hit["physical_offset"] + 100, b"\xff\x00\xff")
    options = {"topics": "topic-2", "keys": hit["keys"][1], "via": via}
    whole = offsets_of(store, **options)

    rows = rows_of(store, onDamage="rows", **options)

    (reported,) = [row for row in rows if row["damage"] is not None]
    assert {name: value for name, value in reported.items() if value is not None} == {
        "store": str(store),
        "physical_offset": hit["physical_offset"],
        "size": hit["size"],
        "damage": "the body's CRC differs from the one in its header",
    }
    assert sorted(row["physical_offset"] for row in rows if row["damage"] is None) == whole


def test_damage_rows_have_the_selected_columns(store: Path) -> None:
    overwrite(store, records_of(store)[40]["physical_offset"] + 4, b"????")
    rows = rows_of(store, onDamage="rows", columns="topic,keys,properties,body,born_timestamp")
    assert [row for row in rows if row["damage"]] == [
        {
            "topic": None,
            "keys": None,
            "properties": None,
            "body": None,
            "born_timestamp": None,
            "damage": "the magic number is not a record's",
        }
    ]


@pytest.mark.parametrize("via", ["scan", "queue"])
def test_damage_can_be_an_error_that_names_its_offset(store: Path, via: str) -> None:
    hit = [record for record in records_of(store) if record["topic"] == "topic-2" and record["size"] > 300][5]
    overwrite(store, hit["physical_offset"] + 100, b"\xff\x00\xff")
    with pytest.raises(CorruptRecord, match=f"record at {hit['physical_offset']}"):
        rows_of(store, onDamage="fail", topics="topic-2", via=via)


def test_a_body_that_does_not_decompress_is_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as opened:
        opened.put(Message("orders", zlib.compress(b"whole"), sys_flag=0x301))
        receipt = opened.put(Message("orders", b"no zlib at all", sys_flag=0x301))
    assert [row["body"] for row in rows_of(path)] == [b"whole"]
    reported = [row for row in rows_of(path, onDamage="rows") if row["damage"]]
    assert [(row["physical_offset"], row["size"]) for row in reported] == [(receipt.physical_offset, receipt.size)]


def test_a_split_that_ends_inside_a_record_fails_and_names_it(store: Path) -> None:
    records = records_of(store)
    (split,) = splits_of(store)
    at = records[20]["physical_offset"]
    wrong = dataclasses.replace(split, end=at + 50)
    with pytest.raises(ChangedUnderRead, match=f"offset {at}: found a whole record that crosses {at + 50}"):
        rows_of(store, [wrong])


def test_a_split_that_begins_inside_a_record_reports_it(store: Path) -> None:
    records = records_of(store)
    (split,) = splits_of(store)
    wrong = dataclasses.replace(split, start=records[20]["physical_offset"] + 10)
    with pytest.raises(CorruptRecord, match=f"record at {wrong.start}"):
        rows_of(store, [wrong], onDamage="fail")


def test_an_end_of_file_marker_in_the_middle_of_a_file_is_an_error(store: Path) -> None:
    """Otherwise all records after it would be missing without an error."""
    at = records_of(store)[20]["physical_offset"]
    splits = splits_of(store)
    overwrite(store, at, struct.pack(">iI", 500, 0xCBD43194))
    with pytest.raises(ChangedUnderRead, match=f"offset {at}: found an end-of-file marker over 500 bytes"):
        rows_of(store, splits)


@pytest.mark.parametrize("via", ["scan", "queue", "index"])
def test_a_file_deleted_after_planning_is_an_error_and_never_fewer_rows(store: Path, via: str) -> None:
    options = {"topics": "topic-1", "keys": "group-1", "via": via}
    splits = splits_of(store, **options)
    (store / "commitlog" / file_name(0)).unlink()
    with pytest.raises(ChangedUnderRead, match="deleted after this read was planned"):
        rows_of(store, splits, **options)
    assert splits_of(store)[0].start == LOG_FILE


def test_changed_queue_entries_are_an_error(store: Path) -> None:
    options = {"topics": "topic-1", "via": "queue"}
    splits = splits_of(store, **options)
    queue = store / "consumequeue" / "topic-1" / "0"
    with (queue / file_name(0)).open("r+b") as file:
        file.seek(40)
        file.write(struct.pack(">qiq", 1 << 40, 100, 0))
    with pytest.raises(ChangedUnderRead, match="an entry of topic-1, queue 0"):
        rows_of(store, splits, **options)
    (queue / file_name(0)).unlink()
    with pytest.raises(ChangedUnderRead, match="deleted"):
        rows_of(store, splits, **options)


def test_a_read_is_a_snapshot(store: Path) -> None:
    options = {"topics": "topic-1"}
    before = {via: splits_of(store, via=via, **options) for via in ("scan", "queue")}
    expected = offsets_of(store, **options)
    with open_small(store) as opened:
        for _ in range(QUEUE_FILE // 20):
            opened.put(Message("topic-1", b"later", queue_id=0))
    for via, splits in before.items():
        rows = rows_of(store, splits, via=via, **options)
        assert sorted(row["physical_offset"] for row in rows) == expected
    assert len(offsets_of(store, **options)) == len(expected) + QUEUE_FILE // 20


@pytest.mark.parametrize("via", ["scan", "queue"])
def test_a_worker_holds_one_window_of_the_log_however_large_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, via: str
) -> None:
    """Pages of a mapped file count for the process that touched them until it releases them."""
    size = 64 << 20
    with open_small(tmp_path, commit_log=CommitLogConfig(file_size_bytes=size)) as store:
        for _ in range(1200):
            store.put(Message("orders", bytes(50_000)))
    monkeypatch.setattr("mqlake.spark.read_split.WINDOW_BYTES", 4 << 20)
    options = options_for(tmp_path, topics="orders", via=via, columns="size")
    (split,) = splits_of(tmp_path, topics="orders", via=via, minPartitions=1)

    def mapped_in() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssFile:")[1].split()[0]) << 10

    held = [mapped_in() for _ in read_split(options, arrow_schema(options.columns), split)]
    assert len(held) > 10
    assert max(held) - held[0] < size / 4  # by the first batch all libraries are loaded
