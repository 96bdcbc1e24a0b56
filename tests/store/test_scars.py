"""Damage inside the log costs only the record it hit: it is listed, every reader skips it, and all else is there."""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake import CorruptRecord, MessageStore, NoSuchMessage, PutReceipt
from mqlake.files.layout import Layout
from mqlake.inspect.check import check
from mqlake.inspect.findings import Severity
from mqlake.logs.scars import Scar, Scars
from tests.helpers import LOG_FILE, message, open_small, writer_of

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
def test_every_reader_skips_a_scar_and_lists_it(tmp_path: Path, where: str, read_only: bool) -> None:
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


def test_a_scan_finds_a_scar_by_itself(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = put(store, 10)
        flip(tmp_path / "s" / LOG, receipts[4].physical_offset + 92)
        assert sum(batch.num_rows for batch in store.scan(columns=["body"])) == 9
        assert store.stats().damage == ((receipts[4].physical_offset, receipts[4].end),)


def test_a_scan_that_begins_or_ends_inside_a_record_makes_no_scar(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = put(store, 10)
        with pytest.raises(CorruptRecord):
            list(store.scan(start=receipts[3].physical_offset + 7))
        list(store.scan(end=receipts[3].physical_offset + 7))
        assert store.stats().damage == ()


def test_scars_survive_reopening_and_a_damaged_list_does_no_harm(tmp_path: Path) -> None:
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


def test_adjacent_scars_are_merged_and_those_of_deleted_files_removed(tmp_path: Path) -> None:
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


def test_queue_offsets_of_lost_records_are_fillers_in_rebuilt_queues(tmp_path: Path) -> None:
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
    """With records of 128 bytes, a flipped bit in an offset names a whole record of another queue offset."""
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


def test_dispatch_skips_damage_that_it_finds(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        put(store, 3)
        assert store.wait_dispatched()
        held, damaged = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            assert damaged.wait(30)

        holder = threading.Thread(target=writer_of(store).dispatcher.run, args=(hold,))
        holder.start()
        assert held.wait(30)  # dispatch waits here until the damage is done
        receipts = put(store, 3)
        flip(tmp_path / "s" / LOG, receipts[1].physical_offset + 4)
        damaged.set()
        holder.join()
        assert store.wait_dispatched()
        assert numbers(store) == [0, 1, 2, 3, 5]
        assert store.stats().damage == ((receipts[1].physical_offset, receipts[1].end),)
        assert store.stats().failure is None


def test_the_log_continues_in_the_next_file_after_a_scar_over_the_end_of_one(tmp_path: Path) -> None:
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


# ---- the last record of a closed store


def _zero(file: Path, start: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(bytes(LOG_FILE - start))


TAIL_DAMAGE: dict[str, Callable[[Path, int], None]] = {
    "a bit of its body": lambda file, last: flip(file, last + 92),
    "a bit of its size": lambda file, last: flip(file, last + 1),
    "a bit of its magic": lambda file, last: flip(file, last + 5),
    "the whole page": lambda file, last: _zero(file, last - last % 4096),
    "the end of the file": lambda file, last: os.truncate(file, last + 7),
    "a file without a byte": lambda file, last: os.truncate(file, 0),
    "the file": lambda file, last: file.unlink(),
}


@pytest.mark.parametrize("damage", TAIL_DAMAGE)
@pytest.mark.parametrize("count", [1, 10, 1000], ids=["one record", "one file", "several files"])
@pytest.mark.parametrize("derived", ["kept", "lost"])
def test_a_lost_tail_of_a_closed_store_is_a_scar_and_its_queue_offsets_are_not_reused(
    tmp_path: Path, damage: str, count: int, derived: str
) -> None:
    path = tmp_path / "s"
    with open_small(path) as store:
        receipts = put(store, count)
        with store.consumer("group", "orders") as consumer:
            consumed = 0
            while consumed < count:
                consumed += len(consumer.poll(timeout_s=10))
                consumer.commit()
    last, end = receipts[-1].physical_offset, receipts[-1].end
    file = path / f"commitlog/{last - last % LOG_FILE:020d}"
    TAIL_DAMAGE[damage](file, last % LOG_FILE)
    if derived == "lost":
        shutil.rmtree(path / "consumequeue")
        shutil.rmtree(path / "index")
    for again in range(2):
        with open_small(path) as store:
            assert any(start <= last and end <= stop for start, stop in store.stats().damage), store.recovery
            receipt = store.put(message(5000 + again, queue_id=0))
            assert receipt.queue_offset == count + again
            assert receipt.physical_offset >= end
            with store.consumer("group", "orders") as consumer:
                (got,) = consumer.poll(timeout_s=10)
                assert got.body == b"body %d" % (5000 + again)
                consumer.commit()
        report = check(path)
        found = {row.what[:7] for row in report.findings if row.severity == Severity.ERROR}
        assert {"record-"} <= found <= {"record-", "seal-br"}
    with open_small(path, read_only=True) as store:
        first = store.queues("orders")[0].first_offset
        left = [m.queue_offset for m in store.read("orders", queue_id=0, start=first) if m.queue_offset < count]
        assert left == list(range(len(left)))


def test_a_reader_of_a_store_whose_last_file_is_gone_reads_the_rest(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = put(store, 1000)
    files = sorted((tmp_path / "s" / "commitlog").iterdir())
    files[-1].unlink()
    with open_small(tmp_path / "s", read_only=True) as store:
        kept = [r.queue_offset for r in receipts if r.end <= int(files[-1].name)]
        assert numbers(store) == kept
        assert sum(batch.num_rows for batch in store.scan(columns=["body"])) == len(kept)
    assert len(list((tmp_path / "s" / "commitlog").iterdir())) == len(files) - 1


def test_a_log_replaced_by_that_of_another_store_is_noticed(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        put(store, 20)
    with open_small(tmp_path / "other") as store:
        for number in range(12):
            store.put(message(number, topic="orders", queue_id=0, body=b"another, longer body"))
    shutil.rmtree(tmp_path / "s" / "commitlog")
    shutil.copytree(tmp_path / "other" / "commitlog", tmp_path / "s" / "commitlog")
    with open_small(tmp_path / "s") as store:
        assert store.recovery is not None
        assert store.recovery.reason == "rebuild"
        assert numbers(store) == list(range(12))
        assert store.stats().damage == ()
