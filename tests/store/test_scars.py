"""Damage inside of the log costs the record it hit: listed, passed over by every reader; all else is there."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from mqlake import CorruptRecord, MessageStore, NoSuchMessage, PutReceipt
from mqlake.files.layout import Layout
from mqlake.logs.scars import Scar, Scars
from tests.helpers import LOG_FILE, message, open_small

LOG = f"commitlog/{0:020d}"
QUEUE = f"consumequeue/orders/0/{0:020d}"
WHERE = {"body": 92, "size": 1, "magic": 5, "physical offset": 30, "body length": 86}


def flip(file: Path, at: int, bit: int = 1) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ bit]))


def put(store: MessageStore, count: int) -> list[PutReceipt]:
    return [store.put(message(number, queue_id=0)) for number in range(count)]


def numbers(store: MessageStore) -> list[int]:
    return [m.queue_offset for m in store.read("orders", queue_id=0, limit=1000)]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_every_reader_passes_over_a_scar_and_lists_it(tmp_path: Path, where: str, read_only: bool) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = put(store, 10)
    flip(tmp_path / "s" / LOG, receipts[4].physical_offset + WHERE[where])
    with open_small(tmp_path / "s", read_only=read_only) as store:
        others = [number for number in range(10) if number != 4]
        assert numbers(store) == others
        assert store.stats().damage == ((receipts[4].physical_offset, receipts[4].end),)
        assert (store.stats().scar_count, store.stats().damaged_entry_count) == (1, 0)
        assert [row for batch in store.scan(columns=["queue_offset"]) for row in batch[0].to_pylist()] == others
        assert store.find("orders", "key-4") == []
        assert [m.queue_offset for number in others for m in store.find("orders", f"key-{number}")] == others
        lines = list(store.dump({}, walk=True, keys=True))
        assert [line["queueOffset"] for line in lines if line["kind"] == "record"] == others
        with pytest.raises((CorruptRecord, NoSuchMessage)):
            store.get(receipts[4].physical_offset)
        assert store.stats().scar_count == 1, "found once, listed once"
    assert Layout(tmp_path / "s").scars.exists() == (not read_only)


def test_a_scan_comes_upon_a_scar_by_itself(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = put(store, 10)
        flip(tmp_path / "s" / LOG, receipts[4].physical_offset + 92)
        assert sum(batch.num_rows for batch in store.scan(columns=["body"])) == 9
        assert store.stats().damage == ((receipts[4].physical_offset, receipts[4].end),)


def test_a_scan_that_begins_or_ends_inside_of_a_record_makes_no_scar(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = put(store, 10)
        with pytest.raises(CorruptRecord):
            list(store.scan(start=receipts[3].physical_offset + 7))
        list(store.scan(end=receipts[3].physical_offset + 7))
        assert store.stats().damage == ()


def test_scars_outlive_the_store_that_found_them_and_a_damaged_list_is_no_harm(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = put(store, 10)
        flip(tmp_path / "s" / LOG, receipts[4].physical_offset + 92)
        assert len(numbers(store)) == 9
    file = Layout(tmp_path / "s").scars
    (line,) = file.read_text().splitlines()
    assert json.loads(line) == {
        "start": receipts[4].physical_offset,
        "end": receipts[4].end,
        "reason": "the body's CRC differs from the one in its header",
    }
    with open_small(tmp_path / "s") as store:
        assert store.stats().scar_count == 1
    file.write_text(line + '\nnonsense\n{"start": 5}\n{"start": 9, "end": 3, "reason": ""}\n')
    with open_small(tmp_path / "s") as store:
        assert store.stats().damage == ((receipts[4].physical_offset, receipts[4].end),)
        assert len(numbers(store)) == 9


def test_scars_that_touch_become_one_and_those_of_deleted_files_go(tmp_path: Path) -> None:
    scars = Scars(tmp_path / "scars", tmp_path)
    assert scars.add(100, 200, "a")
    assert scars.add(300, 400, "b")
    assert not scars.add(120, 180, "c")
    assert scars.add(200, 250, "d")
    assert [(scar.start, scar.end) for scar in scars.ranges] == [(100, 250), (300, 400)]
    assert [scars.end_of(at) for at in (99, 100, 249, 250, 300, 399, 400)] == [-1, 250, 250, -1, 400, 400, -1]
    again = Scars(tmp_path / "scars")
    again.load(first_offset=260)
    assert again.ranges == (Scar(300, 400, "b"),)


def test_numbers_of_lost_records_are_entries_of_no_message_when_queues_are_built_again(tmp_path: Path) -> None:
    import shutil

    with open_small(tmp_path / "s") as store:
        receipts = put(store, 10)
    flip(tmp_path / "s" / LOG, receipts[4].physical_offset + 5)
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    with open_small(tmp_path / "s") as store:
        assert store.recovery is not None
        assert store.recovery.reason == "rebuild"
        assert [(scar.start, scar.end) for scar in store.recovery.scars] == [
            (receipts[4].physical_offset, receipts[4].end)
        ]
        assert numbers(store) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert store.put(message(10, queue_id=0)).queue_offset == 10


def test_an_entry_with_any_bit_flipped_costs_at_most_its_own_message(tmp_path: Path) -> None:
    """Records of 128 bytes: a flipped bit of an offset names a whole record, of another number."""
    with open_small(tmp_path / "s") as store:
        size = store.put(message(0, topic="probe", queue_id=0, body=b"", keys="", tags=None)).size
        while store.end_offset % 128:
            store.put(message(0, topic="probe", queue_id=0, body=bytes(128 - (store.end_offset + size) % 128), keys=""))
        empty = store.put(message(0, queue_id=0, body=b"", keys="", tags=None)).size
        store.put(message(0, topic="probe", queue_id=0, body=bytes(128 * 4 - size - empty), keys="", tags=None))
    with open_small(tmp_path / "s") as store:
        body = bytes(128 - empty)
        receipts = [store.put(message(n, queue_id=0, body=body, keys="", tags=None)) for n in range(1, 16)]
        assert {receipt.size for receipt in receipts} == {128}
        assert store.wait_dispatched()
        for bit in range(160):
            flip(tmp_path / "s" / QUEUE, 7 * 20 + bit // 8, 1 << bit % 8)
            found = numbers(store)
            assert found in ([*range(16)], [*range(7), *range(8, 16)]), bit
            for m in store.read("orders", queue_id=0, limit=1000):
                assert m.physical_offset == (m.queue_offset and receipts[m.queue_offset - 1].physical_offset) or not (
                    m.queue_offset
                )
            flip(tmp_path / "s" / QUEUE, 7 * 20 + bit // 8, 1 << bit % 8)
        assert store.stats().damaged_entry_count == 1
        assert store.stats().damage == ()


def test_an_entry_that_points_past_the_log_does_not_end_the_queue_for_readers(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        put(store, 10)
    flip(tmp_path / "s" / QUEUE, 4 * 20 + 2)
    others = [number for number in range(10) if number != 4]
    with open_small(tmp_path / "s", read_only=True) as reader:
        assert numbers(reader) == others
    with open_small(tmp_path / "s") as store:
        assert numbers(store) == others
        with open_small(tmp_path / "s", read_only=True) as reader:
            assert numbers(reader) == others
            store.put(message(10, queue_id=0))
            assert store.wait_dispatched()
            assert numbers(reader) == [*others, 10]


def test_dispatch_passes_over_damage_that_it_comes_upon(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        put(store, 3)
        assert store.wait_dispatched()
        assert store._writer is not None
        dispatcher = store._writer.dispatcher
        with dispatcher._stepping:  # it waits here, until the damage is done
            receipts = put(store, 3)
            flip(tmp_path / "s" / LOG, receipts[1].physical_offset + 4)
        assert store.wait_dispatched()
        assert numbers(store) == [0, 1, 2, 3, 5]
        assert store.stats().damage == ((receipts[1].physical_offset, receipts[1].end),)
        assert store.stats().failure is None


def test_a_scar_over_the_end_of_a_file_lets_the_log_go_on_in_the_next(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = put(store, 800)
    last = max((r for r in receipts if r.physical_offset < LOG_FILE), key=lambda r: r.physical_offset)
    flip(tmp_path / "s" / LOG, last.end + 4)  # the marker
    with open_small(tmp_path / "s") as store:
        assert sum(batch.num_rows for batch in store.scan(columns=["size"])) == 800
        assert store.stats().damage == ((last.end, LOG_FILE),)
        assert (
            struct.unpack(">i", (tmp_path / "s" / LOG).read_bytes()[last.end : last.end + 4])[0] == LOG_FILE - last.end
        )
