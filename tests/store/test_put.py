"""Appending: order, queue offsets, physical offsets, files, refusals."""

from __future__ import annotations

import logging
import os
import pickle
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mqlake import (
    CommitLogConfig,
    ConsumeQueueConfig,
    InvalidConfig,
    InvalidMessage,
    MemoryConfig,
    Message,
    MessageStore,
    ReadOnlyStore,
    StoreClosed,
)
from mqlake.kernel import check_record
from tests.helpers import LOG_FILE, bodies, covers, message, open_small, writer_of
from tests.interrupting import Interrupted, interrupted_once


@covers("A1", "A3", "G4", "G10")
def test_messages_of_all_topics_follow_one_another_in_one_log(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(message(i, f"topic{i % 3}", queue_id=i % 2)) for i in range(12)]
    assert [r.physical_offset for r in receipts[1:]] == [r.end for r in receipts[:-1]]
    numbers: dict[tuple[str, int], int] = {}
    for receipt in receipts:
        queue = receipt.topic, receipt.queue_id
        assert receipt.queue_offset == numbers.get(queue, 0)
        numbers[queue] = receipt.queue_offset + 1


@covers("A2", "A4", "A5", "M2")
def test_the_files_of_a_store_are_where_rocketmq_has_them(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(message(1, queue_id=2))
        assert (tmp_path / "s" / "abort").exists()
    found = {str(path.relative_to(tmp_path / "s")) for path in (tmp_path / "s").rglob("*") if path.is_file()}
    index = {name for name in found if name.startswith("index/")}
    assert {name for name in found if not name.startswith("mqlake/")} == {
        "checkpoint",
        "commitlog/00000000000000000000",
        "config/topics.json",
        "config/topics.json.bak",
        "consumequeue/orders/2/00000000000000000000",
        "lock",
        *index,
    }
    assert len(index) == 1
    assert len(index.pop().removeprefix("index/")) == 17
    assert (tmp_path / "s" / "lock").read_bytes() == b"lock"


@covers("G3", "H3", "H11", "B5")
def test_a_record_has_the_time_of_its_append_and_never_one_before_its_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.time_ns() // 1_000_000
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(message(i)) for i in range(100)]
        stored = [store.get(r.physical_offset) for r in receipts]
    after = time.time_ns() // 1_000_000
    times = [m.store_timestamp for m in stored]
    assert times == [r.store_timestamp for r in receipts]
    assert before <= times[0]
    assert times[-1] <= after
    assert times == sorted(times)


@covers("G5", "G6", "H19", "B9", "B10", "C4", "C7")
def test_a_record_that_does_not_fit_closes_the_file_with_a_marker_and_begins_the_next(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        first = store.put(Message("t", bytes(40_000), queue_id=0))
        second = store.put(Message("t", bytes(40_000), queue_id=0))
        assert first.physical_offset == 0
        assert second.physical_offset == LOG_FILE
        assert store.stats().log_file_count == 2
    log = (tmp_path / "s" / "commitlog" / f"{0:020d}").read_bytes()
    assert struct.unpack_from(">iI", log, first.end) == (LOG_FILE - first.end, 0xCBD43194)
    assert log[first.end + 8 :] == bytes(LOG_FILE - first.end - 8)


@covers("H19")
@pytest.mark.parametrize(("spare", "file_number"), [(8, 0), (9, 0), (7, 1), (0, 1)])
def test_every_file_keeps_at_least_eight_bytes_for_its_marker(tmp_path: Path, spare: int, file_number: int) -> None:
    """A record that leaves exactly eight bytes fits; one that leaves seven goes to the next file."""
    with open_small(tmp_path / "s") as store:
        first = store.put(Message("t", bytes(30_000), queue_id=0))
        overhead = first.size - 30_000
        second = store.put(Message("t", bytes(LOG_FILE - first.size - overhead - spare), queue_id=0))
        third = store.put(Message("t", b"third", queue_id=0))
        assert second.physical_offset // LOG_FILE == file_number
        assert bodies(store, "t")[2] == b"third"
    with open_small(tmp_path / "s") as store:
        assert bodies(store, "t")[2] == b"third"
        assert store.get(third.physical_offset).body == b"third"


@covers("B8", "H20")
def test_a_batch_is_in_one_file_in_order_with_consecutive_queue_offsets_and_one_time(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(Message("t", bytes(40_000), queue_id=0))
        receipts = store.put_many([Message("t", bytes(3_000), queue_id=0) for _ in range(10)])
        assert {r.physical_offset // LOG_FILE for r in receipts} == {1}, "the whole batch moves to the next file"
        assert [r.queue_offset for r in receipts] == list(range(1, 11))
        assert len({r.store_timestamp for r in receipts}) == 1
        assert [r.physical_offset for r in receipts[1:]] == [r.end for r in receipts[:-1]]


@covers("B8")
def test_a_refused_batch_writes_none_of_its_messages(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(message(0))
        end = store.stats().appended_end
        with pytest.raises(InvalidMessage):
            store.put_many([message(1), message(2, topic="no good topic")])
        assert store.stats().appended_end == end
        assert store.put(message(3, queue_id=0)).queue_offset == 1


def test_messages_without_a_queue_take_the_topics_queues_in_turn(tmp_path: Path) -> None:
    settings = ConsumeQueueConfig(file_size_bytes=2000, queues_per_topic=3)
    with open_small(tmp_path / "s", consume_queue=settings) as store:
        assert [store.put(message(i)).queue_id for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
        assert [r.queue_id for r in store.put_many([message(i) for i in range(4)])] == [1, 2, 0, 1]


@covers("G11")
def test_the_message_id_is_host_and_offset_in_hexadecimal_and_finds_the_message(tmp_path: Path) -> None:
    with open_small(
        tmp_path / "s", commit_log=CommitLogConfig(file_size_bytes=LOG_FILE, store_host="10.0.0.1:10911")
    ) as store:
        store.put(message(1))
        receipt = store.put(message(2))
        assert receipt.message_id == f"0A00000100002A9F{receipt.physical_offset:016X}"
        assert store.get(receipt.message_id).message_id == receipt.message_id
        assert store.get(receipt.message_id).body == b"body 2"


@covers("G8")
def test_puts_are_counted_by_topic(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(message(i, f"topic{i % 2}")) for i in range(10)]
        receipts += store.put_many([message(i, "topic0") for i in range(5)])
        counted = store.stats().topics
    assert counted["topic0"].put_count == 10
    assert counted["topic1"].put_count == 5
    assert counted["topic0"].put_bytes == sum(r.size for r in receipts if r.topic == "topic0")


@covers("G7")
def test_a_slow_append_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a limit of 0, every append that crosses a millisecond boundary logs a warning."""
    settings = CommitLogConfig(file_size_bytes=64 << 20, slow_append_ms=0)
    with caplog.at_level(logging.WARNING), open_small(tmp_path / "s", commit_log=settings) as store:
        for _ in range(100):
            store.put(Message("t", bytes(4 << 20)))
            if "appending" in caplog.text:
                break
    assert "appending" in caplog.text


@covers("G13", "Q")
def test_defaults_are_rocketmqs() -> None:
    from mqlake import FlushConfig, PoolConfig
    from mqlake.codec.index_entry import DEFAULT_ENTRIES, DEFAULT_SLOTS, index_file_size
    from mqlake.config import DEFAULT_LOG_FILE_SIZE, DEFAULT_QUEUE_FILE_SIZE

    assert DEFAULT_LOG_FILE_SIZE == 1024**3
    assert DEFAULT_QUEUE_FILE_SIZE == 300_000 * 20
    assert index_file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES) == 420_000_040
    assert CommitLogConfig().max_message_bytes == 4 << 20
    flush, pool = FlushConfig(), PoolConfig()
    assert (flush.sync, flush.interval_ms, flush.least_pages, flush.thorough_interval_ms) == (False, 500, 4, 10_000)
    assert (flush.timeout_ms, flush.queue_interval_ms, flush.queue_thorough_interval_ms) == (5_000, 1_000, 60_000)
    assert (pool.enabled, pool.buffer_count, pool.commit_interval_ms, pool.commit_least_pages) == (False, 5, 200, 4)


@covers("G4")
def test_many_threads_put_without_losing_repeating_or_reordering_anything(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:

        def put_all(thread: int) -> None:
            for number in range(300):
                store.put(Message("t", b"%d/%d" % (thread, number), queue_id=thread % 2))

        threads = [threading.Thread(target=put_all, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = bodies(store, "t", 0) + bodies(store, "t", 1)
    assert len(found) == len(set(found)) == 8 * 300
    for writer in range(8):
        mine = [body for body in found if body.startswith(b"%d/" % writer)]
        assert mine == [b"%d/%d" % (writer, number) for number in range(300)]


@covers("G1")
def test_a_closed_store_and_a_read_only_store_take_no_messages(tmp_path: Path) -> None:
    store = open_small(tmp_path / "s")
    store.put(message(1))
    store.close()
    with pytest.raises(StoreClosed):
        store.put(message(2))
    with MessageStore.open(tmp_path / "s", read_only=True) as reader, pytest.raises(ReadOnlyStore):
        reader.put(message(2))


@covers("G12")
def test_every_record_is_found_by_its_offset_alone(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(message(i, body=os.urandom(i * 37))) for i in range(60)]
        for receipt in receipts:
            found = store.get(receipt.physical_offset)
            assert (found.size, found.queue_offset) == (receipt.size, receipt.queue_offset)
            assert check_record(found.record, 0, found.size, receipt.physical_offset, True) == receipt.size


@covers("B24")
def test_files_stay_below_two_gibibytes_as_rocketmqs_positions_require() -> None:
    assert CommitLogConfig(file_size_bytes=2**31 - 1).file_size_bytes == 2**31 - 1
    with pytest.raises(InvalidConfig, match="2147483648"):
        CommitLogConfig(file_size_bytes=2**31)


@covers("G9", "F4")
def test_a_full_file_is_released_and_the_dispatcher_woken_after_the_append(tmp_path: Path) -> None:
    with open_small(tmp_path / "s", memory=MemoryConfig(lock_files=True)) as store:
        for number in range(4):
            store.put(Message("t", bytes(40_000), queue_id=0))
            assert store.read("t", queue_id=0, start=number, wait_s=20)
        locked = [
            line
            for line in Path("/proc/self/smaps").read_text().split("VmFlags:")
            if f"{tmp_path}/s/commitlog/" in line
        ]
        sizes = [int(part.split("Locked:")[1].split()[0]) for part in locked]
    assert sorted(sizes) == [0, 0, 0, LOG_FILE // 1024], "only the file being written stays locked"


def test_receipts_and_stored_messages_pickle(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipt = store.put(message(1))
        assert pickle.loads(pickle.dumps(receipt)) == receipt
        stored = store.get(receipt.physical_offset)
        assert pickle.loads(pickle.dumps(stored)) == stored


@covers("H1", "H16")
def test_retry_topics_longer_than_127_bytes_are_stored_as_version_2(tmp_path: Path) -> None:
    topic = "%RETRY%" + "g" * 248
    with open_small(tmp_path / "s") as store:
        stored = store.get(store.put(Message(topic, b"v2")).physical_offset)
        assert stored.topic == topic
        assert stored.record[4:8] == bytes.fromhex("DAA320AB")


def test_a_put_to_light_queues_that_a_signal_interrupts_lets_others_go_on(tmp_path: Path) -> None:
    class Interrupting:
        """An appender whose `close` is interrupted as it returns."""

        def __init__(self, appender: Any) -> None:
            self._appender = appender
            self.close = interrupted_once(appender.close)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._appender, name)

    with open_small(tmp_path) as store:
        store.put(message(0))
        log: Any = writer_of(store).log
        appender, log._appender = log._appender, Interrupting(log._appender)
        with pytest.raises(Interrupted):
            store.put(message(1, properties={"INNER_MULTI_DISPATCH": "%LMQ%123"}))
        log._appender = appender
        other = threading.Thread(target=store.put, args=(message(2),), daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive(), "it waits for ever"
