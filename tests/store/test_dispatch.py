"""Dispatch from the log into queues and index: what is written, when, and who can see it."""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path

import pytest

from mqlake import FlushConfig, IndexConfig, Message
from mqlake.codec.queue_entry import FILLER
from mqlake.kernel import java_hash
from mqlake.logs.consume_queue import ConsumeQueue
from tests.helpers import QUEUE_FILE, bodies, covers, eventually, message, open_small, sync_in_python, writer_of


def entries_of(path: Path, topic: str, queue_id: int, count: int) -> list[tuple[int, int, int]]:
    files = sorted((path / "consumequeue" / topic / str(queue_id)).iterdir())
    data = b"".join(file.read_bytes() for file in files)[: count * 20]
    return [*struct.iter_unpack(">qiq", data)]


@covers("A6", "I1", "I2", "I4", "K1")
def test_each_message_gets_the_20_byte_entry_of_its_queue(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(message(i, queue_id=i % 2)) for i in range(10)]
        store.wait_dispatched()
        for queue_id in (0, 1):
            mine = [r for r in receipts if r.queue_id == queue_id]
            tags = [java_hash(f"tag{i % 3}") for i in range(10) if i % 2 == queue_id]
            expected = [(r.physical_offset, r.size, code) for r, code in zip(mine, tags, strict=True)]
            assert entries_of(tmp_path / "s", "orders", queue_id, 5) == expected


@covers("I3")
def test_a_queue_spans_many_files_and_any_entry_is_found_by_its_queue_offset(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for start in range(0, 1000, 50):
            store.put_many([message(i, queue_id=0) for i in range(start, start + 50)])
        store.wait_dispatched()
        files = sorted((tmp_path / "s" / "consumequeue" / "orders" / "0").iterdir())
        assert [int(file.name) for file in files] == [n * QUEUE_FILE for n in range(10)]
        for number in (0, 99, 100, 101, 555, 999):
            assert store.read("orders", queue_id=0, start=number, limit=1)[0].body == b"body %d" % number


@covers("I5", "B17")
def test_a_read_crosses_file_boundaries_of_queue_and_log(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(300):
            store.put(message(number, queue_id=0, body=b"%06d" % number * 100))
        store.wait_dispatched()
        assert store.stats().log_file_count > 2
        found = store.read("orders", queue_id=0, start=10, limit=280)
        assert [m.body[:6] for m in found] == [b"%06d" % number for number in range(10, 290)]


@covers("K1", "P5")
@pytest.mark.parametrize(("kind", "in_queue", "in_index"), [(0, 1, 1), (0x4, 0, 1), (0x8, 1, 1), (0xC, 0, 0)])
def test_only_ordinary_and_committed_messages_are_queued_and_rolled_back_ones_are_not_indexed(
    tmp_path: Path, kind: int, in_queue: int, in_index: int
) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(message(0, queue_id=0))
        special = store.put(message(1, queue_id=0, sys_flag=kind))
        store.put(message(2, queue_id=0))
        assert special.queue_offset == in_queue
        assert len(bodies(store)) == 2 + in_queue
        assert len(store.find("orders", "key-1")) == in_index
        assert store.get(special.physical_offset).body == b"body 1"


@covers("J1", "J2")
def test_each_key_the_client_id_and_the_tag_find_the_message(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(Message("orders", b"x", keys=["one", "two", "标签"], tags="created", properties={"UNIQ_KEY": "C0A8"}))
        store.put(Message("orders", b"other", keys="three"))
        store.wait_dispatched()
        for key in ("one", "two", "标签", "C0A8"):
            assert [m.body for m in store.find("orders", key)] == [b"x"]
        assert [m.body for m in store.find("orders", "created", tag=True)] == [b"x"]
        assert store.find("orders", "created") == []
        assert store.find("payments", "one") == []


@covers("J1")
def test_a_look_up_compares_the_key_and_not_only_its_hash(tmp_path: Path) -> None:
    assert java_hash("orders#Aa") == java_hash("orders#BB")
    with open_small(tmp_path / "s") as store:
        for number in range(30):
            store.put(Message("orders", b"%d" % number, keys="Aa" if number % 10 else "BB"))
        store.wait_dispatched()
        assert [m.body for m in store.find("orders", "BB")] == [b"0", b"10", b"20"]
        assert [m.body for m in store.find("orders", "BB", limit=2)] == [b"10", b"20"], "the newest, in log order"


@covers("J3")
def test_a_message_dispatched_twice_is_indexed_and_queued_once(tmp_path: Path) -> None:
    from mqlake.kernel import dispatch_records

    with open_small(tmp_path / "s") as store:
        for number in range(5):
            store.put(message(number, queue_id=0))
        store.wait_dispatched()
        before = {
            path: path.read_bytes()
            for path in (tmp_path / "s").rglob("*")
            if "mqlake" not in str(path) and path.is_file()
        }
        side = writer_of(store)
        assert side.index is not None
        stretch = side.log.stretch(0, store.end_offset)
        assert stretch is not None
        _, _, runs, keys, *_ = dispatch_records(stretch.data, 0, stretch.end, 0, 1 << 20, (), True, True)
        for topic, queue_id, first, entries in runs:
            side.queues.get(topic, queue_id).write(first, entries)
        assert side.queues.get("orders", 0).end == 5
        side.index.put(keys[:-40])  # all but the last message's, which may be entered again
        assert {path: path.read_bytes() for path in before} == before


@covers("J4", "J7")
def test_a_full_index_file_is_followed_by_another_and_look_ups_search_them_all(tmp_path: Path) -> None:
    with open_small(tmp_path / "s", index=IndexConfig(slot_count=10, entry_count=50)) as store:
        for number in range(120):
            store.put(message(number))
        store.wait_dispatched()
        files = sorted((tmp_path / "s" / "index").iterdir())
        assert len(files) == 5, "49 of 50 entries can be used; a key and a tag each"
        assert {file.stat().st_size for file in files} == {40 + 10 * 4 + 50 * 20}
        for number in range(120):
            assert [m.body for m in store.find("orders", f"key-{number}")] == [b"body %d" % number]


def test_an_index_that_is_turned_off_makes_no_file_and_finds_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path / "s", index=IndexConfig(enabled=False)) as store:
        store.put(message(1))
        store.wait_dispatched()
        assert store.find("orders", "key-1") == []
        assert not [*(tmp_path / "s" / "index").iterdir()]


@covers("J5")
def test_the_index_is_synced_with_the_checkpoint_and_not_with_every_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    with open_small(tmp_path / "s") as store:
        for number in range(20):
            store.put(message(number))
        store.wait_dispatched()
        assert not [path for path in synced if "/index/" in path]
    assert [path for path in synced if "/index/" in path]
    assert [path for path in synced if "/consumequeue/" in path]


@covers("L1")
def test_with_sync_flush_readers_never_see_what_a_power_cut_could_undo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, release = os.fdatasync, threading.Event()
    sync_in_python(monkeypatch)
    with open_small(tmp_path / "s", flush=FlushConfig(sync=True)) as store:
        store.put(message(0, queue_id=0))
        assert bodies(store) == [b"body 0"]

        def waiting(descriptor: int) -> None:
            release.wait(30)
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", waiting)
        putting = threading.Thread(target=store.put, args=(message(1, queue_id=0),))
        putting.start()
        assert eventually(lambda: store.stats().appended_end > store.stats().durable_end)
        assert bodies(store) == [b"body 0"]
        assert store.find("orders", "key-1") == []
        end = store.end_offset
        assert end == store.stats().durable_end
        release.set()
        putting.join()
        assert bodies(store) == [b"body 0", b"body 1"]


@covers("K3", "K4")
def test_a_waiting_read_wakes_when_its_message_is_dispatched(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(message(0, queue_id=0))
        store.wait_dispatched()
        time.sleep(0.1)  # long enough for the dispatcher to sleep
        found: list[tuple[float, list[bytes]]] = []

        def wait() -> None:
            messages = store.read("orders", queue_id=0, start=1, wait_s=10)
            found.append((time.monotonic(), [m.body for m in messages]))

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        put_at = time.monotonic()
        store.put(message(1, queue_id=0))
        waiting.join()
        assert found[0][1] == [b"body 1"]
        assert found[0][0] - put_at < 5


@covers("P7")
def test_a_waiting_read_returns_empty_after_its_timeout(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(message(0, queue_id=0))
        store.wait_dispatched()
        began = time.monotonic()
        assert store.read("orders", queue_id=0, start=1, wait_s=0.2) == []
        assert 0.15 < time.monotonic() - began < 10


@covers("P2")
def test_the_entry_of_a_delayed_message_holds_its_due_time_instead_of_its_tag(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipt = store.put(
            Message("SCHEDULE_TOPIC_XXXX", b"later", tags="TagB", queue_id=2, properties={"DELAY": "3"})
        )
        capped = store.put(Message("SCHEDULE_TOPIC_XXXX", b"much later", queue_id=17, properties={"DELAY": "99"}))
        store.wait_dispatched()
        assert entries_of(tmp_path / "s", "SCHEDULE_TOPIC_XXXX", 2, 1)[0][2] == receipt.store_timestamp + 10_000
        assert entries_of(tmp_path / "s", "SCHEDULE_TOPIC_XXXX", 17, 1)[0][2] == capped.store_timestamp + 7_200_000


def test_light_queues_get_entries_for_messages_that_name_them(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(6):
            names = "%LMQ%even,%LMQ%all" if number % 2 == 0 else "%LMQ%all"
            store.put(message(number, queue_id=0, properties={"INNER_MULTI_DISPATCH": names}))
        assert bodies(store, "%LMQ%all") == [b"body %d" % i for i in range(6)]
        assert bodies(store, "%LMQ%even") == [b"body 0", b"body 2", b"body 4"]
        assert bodies(store) == [b"body %d" % i for i in range(6)]
        last = store.read("orders", queue_id=0, start=4, limit=1)[0]
        assert last.properties["INNER_MULTI_QUEUE_OFFSET"] == "2,4"
    with open_small(tmp_path / "s") as store:
        store.put(message(6, queue_id=0, properties={"INNER_MULTI_DISPATCH": "%LMQ%all"}))
        assert len(bodies(store, "%LMQ%all")) == 7


@covers("I6")
def test_a_queue_that_begins_above_zero_is_filled_with_fillers(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path / "0", QUEUE_FILE, writable=True)
    queue.load(1 << 40)
    queue.write(105, struct.pack(">qiq", 5000, 200, 7))
    file = tmp_path / "0" / f"{QUEUE_FILE:020d}"
    assert file.read_bytes()[:100] == FILLER * 5
    assert (queue.first_offset(0), queue.end) == (105, 106)
    again = ConsumeQueue(tmp_path / "0", QUEUE_FILE, writable=False)
    again.load(1 << 40)
    assert (again.first_offset(0), again.end) == (105, 106)


@covers("I6")
def test_entries_that_point_past_the_log_are_dropped_when_a_queue_is_opened(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path / "0", QUEUE_FILE, writable=True)
    queue.load(1 << 40)
    queue.write(0, b"".join(struct.pack(">qiq", i * 100, 100, 0) for i in range(250)))
    for log_end, entries in ((25_000, 250), (24_999, 249), (10_000, 100), (9_999, 99), (0, 0)):
        again = ConsumeQueue(tmp_path / "0", QUEUE_FILE, writable=True)
        again.load(log_end)
        assert again.end == entries


def test_a_failed_dispatcher_is_reported_and_the_next_opening_repairs_the_queues(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(message(0, queue_id=0))
        store.wait_dispatched()
        side = writer_of(store)

        def broken(limit: int) -> bool:
            raise OSError(28, "No space left on device")

        side.dispatcher.step = broken  # type: ignore[method-assign, assignment]
        store.put(message(1, queue_id=0))
        assert eventually(lambda: store.stats().failure is not None)
        assert "No space left" in str(store.stats().failure)
    assert (tmp_path / "s" / "abort").exists()
    with open_small(tmp_path / "s") as store:
        assert bodies(store) == [b"body 0", b"body 1"]
