"""Scans return what RocketMQ wrote as Arrow batches, and report or skip damage."""

from __future__ import annotations

import base64
import ipaddress
import logging
import mmap
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import CorruptRecord, InvalidConfig, MissingExtra
from mqlake.kernel.types import COLUMN_NAMES
from mqlake.logs.stretch import Stretch
from mqlake.store import scan
from mqlake.store.scan import COLUMNS, record_batches, schema
from tests.golden.stores import NAMES, GoldenStore
from tests.kernel.records import PARTS, Parts, blank_marker, damaged, stretch_of

pa = pytest.importorskip("pyarrow")


def stretch(data: bytes, log_start: int = 0) -> Stretch:
    pages = mmap.mmap(-1, max(len(data), 1))
    pages[: len(data)] = data
    return Stretch(pages, log_start, 0, len(data), Path(f"commitlog/{log_start:020}"))


def valid_batches(*stretches: Stretch, **options: Any) -> Iterator[Any]:
    """Yield the batches of a scan, each fully validated as Arrow."""
    for batch in record_batches(stretches, **options):
        batch.validate(full=True)
        assert batch.schema == schema(options.get("columns"))
        assert batch.num_rows
        yield batch


def scanned(*stretches: Stretch, **options: Any) -> list[dict[str, Any]]:
    """Return all rows of a scan."""
    batches = valid_batches(*stretches, **options)
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["body"] for row in rows]


def golden_stretches(golden: GoldenStore, end: int) -> Iterator[Stretch]:
    for file in sorted(golden.path.glob("commitlog/*")):
        log_start = int(file.name)
        if log_start < end:
            data = file.read_bytes()
            yield stretch(data, log_start)._replace(file=file, end=min(len(data), end - log_start))


def java_host(text: str) -> str:
    """RocketMQ prints every group of an IPv6 address; a scan prints the short form."""
    address, _, port = text.rpartition(":")
    return f"[{ipaddress.ip_address(address.strip('[]'))}]:{port}" if "[" in text else text


def as_dumped(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": row["topic"],
        "queueId": row["queue_id"],
        "queueOffset": row["queue_offset"],
        "physicalOffset": row["physical_offset"],
        "storeSize": row["size"],
        "flag": row["flag"],
        "sysFlag": row["sys_flag"],
        "bodyCRC": row["body_crc"],
        "bornTimestamp": round(row["born_timestamp"].timestamp() * 1000),
        "storeTimestamp": round(row["store_timestamp"].timestamp() * 1000),
        "bornHost": row["born_host"],
        "storeHost": row["store_host"],
        "reconsumeTimes": row["reconsume_times"],
        "preparedTransactionOffset": row["prepared_offset"],
        "properties": row["properties"],
        "body": base64.b64encode(row["body"]).decode(),
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_scan_returns_every_record_that_rocketmq_finds_in_its_own_store(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    ends = golden.expected("end")
    if not ends:
        pytest.skip("RocketMQ itself does not load this store")
    wanted = golden.expected("record")

    rows = scanned(*golden_stretches(golden, ends[0]["physicalOffset"]), decompress=False, batch_bytes=20_000)

    assert len(rows) == len(wanted)
    for row, record in zip(rows, wanted, strict=True):
        found = as_dumped(row)
        record["bornHost"], record["storeHost"] = java_host(record["bornHost"]), java_host(record["storeHost"])
        assert found == {key: record[key] for key in found}
        assert row["tags"] == record["properties"].get("TAGS")
        assert row["keys"] == record["properties"].get("KEYS", "").split()


@pytest.mark.parametrize("name", ["v4-compressed", "v5-compressed"])
def test_compressed_bodies_are_returned_as_the_producer_sent_them(name: str, tmp_path: Path) -> None:
    pytest.importorskip("lz4.frame")
    pytest.importorskip("zstandard")
    golden = GoldenStore(name, tmp_path)
    end = golden.expected("end")[0]["physicalOffset"]

    stored = scanned(*golden_stretches(golden, end), decompress=False)
    inflated = scanned(*golden_stretches(golden, end))

    compressed = [row["sys_flag"] & 1 for row in stored]
    assert any(compressed)
    assert not all(compressed)
    for before, after in zip(stored, inflated, strict=True):
        if before["sys_flag"] & 1:
            assert b"compressed/1" in after["body"]
            assert len(after["body"]) > len(before["body"])
        else:
            assert after == before


@settings(max_examples=60)
@given(st.data(), st.lists(PARTS, min_size=1, max_size=8))
def test_a_scan_that_skips_damage_yields_valid_batches_whatever_the_bytes(
    data: st.DataObject, parts: list[Parts]
) -> None:
    log = data.draw(damaged(stretch_of(parts, 0)))
    moved: list[int] = []
    logging.disable(logging.WARNING)
    try:
        for _ in valid_batches(
            stretch(log), on_damage="skip", decompress=False, batch_bytes=400, progress=moved.append
        ):
            pass
    finally:
        logging.disable(logging.NOTSET)
    assert sum(moved) == len(log)


def test_damage_raises_after_the_batch_of_whole_records_before_it() -> None:
    log = bytearray(stretch_of([Parts(b"t", b"%d" % i, b"") for i in range(4)], 65536))
    size = len(log) // 4
    log[2 * size + 88] ^= 1

    batches = record_batches([stretch(bytes(log), 65536)])

    assert next(batches).num_rows == 2
    with pytest.raises(CorruptRecord, match=rf"00000000000000065536: record at {65536 + 2 * size}: .*CRC"):
        next(batches)


def test_zeroes_before_the_end_of_a_stretch_are_damage() -> None:
    good = stretch_of([Parts(b"t", b"body", b"")], 0)
    with pytest.raises(CorruptRecord, match="no record"):
        scanned(stretch(good + bytes(100)))


def test_an_end_of_file_marker_ends_its_stretch_and_the_scan_continues_with_the_next() -> None:
    first = stretch_of([Parts(b"t", b"one", b"")], 0) + blank_marker(40)
    second = stretch_of([Parts(b"t", b"two", b"")], len(first))
    assert bodies(scanned(stretch(first), stretch(second, len(first)))) == [b"one", b"two"]


def test_skipping_damage_loses_only_the_damaged_records(caplog: pytest.LogCaptureFixture) -> None:
    log = bytearray(stretch_of([Parts(b"t", b"%d" % i, b"") for i in range(6)], 0))
    size = len(log) // 6
    log[1 * size + 88] ^= 1  # a body
    log[3 * size + 4] ^= 1  # a magic number
    log[5 * size + 31] ^= 1  # the last record's offset: nothing whole follows

    assert bodies(scanned(stretch(bytes(log)), on_damage="skip")) == [b"0", b"2", b"4"]
    assert [record.getMessage().endswith(f"; {size} bytes skipped") for record in caplog.records] == [True] * 3


def test_a_record_quoted_in_a_damaged_body_is_not_taken_for_a_record() -> None:
    inner = Parts(b"t", b"inner", b"").record(88 + 4)  # with the offset at which the outer body holds it
    log = bytearray(stretch_of([Parts(b"t", b"----" + inner, b""), Parts(b"t", b"next", b"")], 0))
    log[88] ^= 1
    assert bodies(scanned(stretch(bytes(log)), on_damage="skip")) == [b"next"]


def test_only_the_requested_topics_are_scanned() -> None:
    log = stretch_of([Parts(topic, topic, b"") for topic in (b"a", b"b", b"c", b"a")], 0)
    assert bodies(scanned(stretch(log), topics=["a", "c"])) == [b"a", b"c", b"a"]
    assert scanned(stretch(log), topics=[]) == []


def test_columns_have_the_requested_order_and_unknown_ones_are_refused() -> None:
    log = stretch_of([Parts(b"t", zlib.compress(b"body"), b"", sys_flag=1)], 0)
    (row,) = scanned(stretch(log), columns=["size", "body", "topic"])
    assert list(row) == ["size", "body", "topic"]
    with pytest.raises(InvalidConfig, match="one of topic, queue_id"):
        list(record_batches([], columns=["topics"]))
    with pytest.raises(InvalidConfig, match="none twice"):
        list(record_batches([], columns=["size", "size"]))


def test_a_body_that_does_not_decompress_is_damage_and_skipping_it_drops_only_its_row() -> None:
    parts = [
        Parts(b"t", body, b"", sys_flag=1) for body in (zlib.compress(b"one"), b"liar", b"liar", zlib.compress(b"two"))
    ]
    log = stretch_of([Parts(b"t", b"plain", b""), *parts, Parts(b"t", b"plain", b"")], 0)
    with pytest.raises(CorruptRecord, match="cannot be decompressed"):
        scanned(stretch(log))
    rows = scanned(stretch(log), on_damage="skip")
    assert bodies(rows) == [b"plain", b"one", b"two", b"plain"]
    assert [row["size"] for row in rows] == [97, 103, 103, 97]


def test_batches_are_split_when_decompressed_bodies_grow_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan.Scan, "max_inflated", 2500)
    log = stretch_of([Parts(b"t", zlib.compress(bytes([i]) * 1000), b"", sys_flag=1) for i in range(5)], 0)
    batches = list(record_batches([stretch(log)], columns=["body"]))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert [row for batch in batches for row in batch["body"].to_pylist()] == [bytes([i]) * 1000 for i in range(5)]


def test_a_batch_outlives_the_file_it_came_from() -> None:
    one = stretch(stretch_of([Parts(b"t", b"body", b"TAGS\x01x\x02")], 0))
    (batch,) = record_batches([one])
    one.data.close()  # raises BufferError if anything still references the map
    assert batch.to_pylist()[0]["body"] == b"body"


def test_the_schema_lists_the_kernels_columns_in_order() -> None:
    assert tuple(COLUMNS) == COLUMN_NAMES == tuple(schema().names)
    assert schema(["tags"]).field("tags").type == pa.string()


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"mqlake\[arrow\]"):
        next(record_batches([]))
