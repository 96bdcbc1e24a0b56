"""Reads and look-ups: by offset, id, key and time, and scans of the whole log."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake import CorruptRecord, Message, MessageStore, NoSuchMessage, OffsetOutOfRange
from tests.helpers import covers, message, open_small


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    opened = open_small(tmp_path / "s")
    for number in range(200):
        opened.put(message(number, queue_id=number % 2, body=b"%d" % number * 20))
    opened.wait_dispatched()
    return opened


@covers("P8")
def test_a_batch_holds_what_was_requested_and_no_more(store: MessageStore) -> None:
    assert [m.queue_offset for m in store.read("orders", queue_id=1, start=40, limit=7)] == list(range(40, 47))
    assert [m.queue_offset for m in store.read("orders", queue_id=1, start=97, limit=32)] == [97, 98, 99]
    assert store.read("orders", queue_id=1, start=100) == []
    assert store.read("orders", queue_id=1, start=0, limit=0) == []
    store.close()


def test_a_message_can_be_read_and_found_as_soon_as_its_put_returns(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(200):
            topic = f"topic{number % 7}"
            receipt = store.put(message(number, topic))
            found = store.read(topic, queue_id=receipt.queue_id, start=receipt.queue_offset)
            assert [m.body for m in found] == [b"body %d" % number]
            assert store.find(topic, f"key-{number}") == found
            assert topic in store.topics()


def test_a_batch_stays_within_its_byte_limit_but_holds_at_least_one_message(store: MessageStore) -> None:
    one = store.read("orders", queue_id=0, start=0, limit=1)[0].size
    assert len(store.read("orders", queue_id=0, start=0, limit=10, max_bytes=3 * one)) == 3
    assert len(store.read("orders", queue_id=0, start=0, limit=10, max_bytes=4 * one - 1)) == 3
    assert len(store.read("orders", queue_id=0, start=0, limit=10, max_bytes=1)) == 1
    store.close()


def test_a_read_outside_a_queue_names_both_of_its_ends(store: MessageStore) -> None:
    for start in (-1, 101):
        with pytest.raises(OffsetOutOfRange, match=rf"orders, queue 1: offset {start} is outside of \[0, 100\)"):
            store.read("orders", queue_id=1, start=start)
    store.close()


def test_a_damaged_body_is_skipped_and_never_returned(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(message(i, queue_id=0)) for i in range(5)]
        store.wait_dispatched()
        store.flush()
        log = tmp_path / "s" / "commitlog" / f"{0:020d}"
        with log.open("r+b") as file:
            file.seek(receipts[2].physical_offset + 89)
            file.write(b"X")
        assert [m.queue_offset for m in store.read("orders", queue_id=0, start=0)] == [0, 1, 3, 4]
        assert [m.queue_offset for m in store.read("orders", queue_id=0, start=2)] == [3, 4]
        with pytest.raises(CorruptRecord, match=f"{receipts[2].physical_offset}: the body's CRC"):
            store.get(receipts[2].physical_offset)
        assert store.stats().damage == ((receipts[2].physical_offset, receipts[2].end),)


@covers("G12")
def test_an_offset_inside_a_record_is_no_message(store: MessageStore) -> None:
    first = store.read("orders", queue_id=0, start=0, limit=1)[0]
    for inside in (1, 8, first.size - 1):
        with pytest.raises(NoSuchMessage, match="no record begins here"):
            store.get(inside)
    for outside in (-1, store.end_offset, 1 << 50):
        with pytest.raises(OffsetOutOfRange):
            store.get(outside)
    for bad in ("", "xyz", "00" * 15, "0A00000100002A9F" + "0" * 16, "7F00000100002A9F" + "7" * 16):
        with pytest.raises(NoSuchMessage):
            store.get(bad)
    store.close()


@covers("C6", "P8")
def test_a_time_finds_the_first_message_stored_at_or_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(300):
            store.put(message(number, queue_id=0, born_host="[::1]:1" if number % 2 else None))
        store.wait_dispatched()
        times = [m.store_timestamp for m in store.read("orders", queue_id=0, limit=300)]
        for wanted in (0, times[0], times[0] + 1, times[150], times[150] - 1, times[-1], times[-1] + 1):
            expected = next((i for i, t in enumerate(times) if t >= wanted), 300)
            assert store.seek_time("orders", wanted, queue_id=0) == expected


@covers("P8")
def test_a_look_up_can_be_limited_to_a_time_range(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(Message("orders", b"%d" % i, keys="same")) for i in range(10)]
        store.wait_dispatched()
        first, last = receipts[0].store_timestamp, receipts[-1].store_timestamp
        assert len(store.find("orders", "same", begin_ms=first, end_ms=last)) == 10
        assert store.find("orders", "same", end_ms=first - 1) == []
        assert store.find("orders", "same", begin_ms=last + 1) == []


def test_a_scan_returns_the_whole_log_or_a_part_of_it_as_arrow(store: MessageStore) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_batches(store.scan())
    assert table.num_rows == 200
    assert table["body"].to_pylist() == [b"%d" % number * 20 for number in range(200)]
    assert table["keys"].to_pylist()[7] == ["key-7"]
    offsets = table["physical_offset"].to_pylist()
    part = pyarrow.Table.from_batches(store.scan(start=offsets[10], end=offsets[20], columns=["queue_offset"]))
    assert part.column_names == ["queue_offset"]
    assert part.num_rows == 10
    with pytest.raises(OffsetOutOfRange):
        store.scan(start=store.end_offset + 1)
    store.close()


def test_every_field_of_a_message_is_read_back(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipt = store.put(
            Message(
                "orders",
                b"body",
                tags="t",
                keys=["a", "b"],
                queue_id=3,
                properties={"colour": "grün"},
                flag=-7,
                born_timestamp=123456,
                born_host="[fd00::1]:99",
                reconsume_times=2,
                prepared_offset=77,
            )
        )
        stored = store.get(receipt.physical_offset)
    assert (stored.topic, stored.body, stored.tags, stored.keys, stored.queue_id) == (
        "orders",
        b"body",
        "t",
        ["a", "b"],
        3,
    )
    assert stored.properties == {"colour": "grün", "KEYS": "a b", "TAGS": "t"}
    assert (stored.flag, stored.born_timestamp, stored.born_host) == (-7, 123456, "[fd00::1]:99")
    assert (stored.reconsume_times, stored.prepared_offset, stored.store_host) == (2, 77, "127.0.0.1:10911")
