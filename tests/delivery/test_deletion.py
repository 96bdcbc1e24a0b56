"""A deleted topic stays deleted: for readers, after a crash, for `check`, and when its name is used again."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqlake import (
    CommitLogConfig,
    Durability,
    MessageStore,
    NotPermitted,
    OffsetOutOfRange,
    Severity,
    Sql,
    UnknownGroup,
    UnknownTopic,
    check,
)
from mqlake.delivery.registry.config_file import decode
from mqlake.inspect.repair import repair
from tests.helpers import bodies, covers, eventually, message, open_small, writer_of
from tests.interrupting import interrupt_at


def fill(store: MessageStore, count: int, topic: str = "orders", first: int = 0) -> None:
    for number in range(first, first + count):
        store.put(message(number, topic, queue_id=0))


def crash(path: Path, copy: Path) -> Path:
    """Copy a store as a killed process leaves it."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("scratch", "spare"))  # these change all the time
    return copy


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_small(tmp_path / "s") as opened:
        fill(opened, 30)
        fill(opened, 5, "payments")
        yield opened


@covers("P1")
def test_a_deleted_topic_has_no_queues_no_settings_and_no_progress(store: MessageStore, tmp_path: Path) -> None:
    with store.consumer("g", ["orders", "payments"], idle_s=0) as consumer:
        assert len(list(consumer)) == 35
    store.delete_topic("orders")
    assert store.topics() == ["payments"] and "orders" not in store.delivery.topics
    assert {each.topic for each in store.lag("g")} == {"payments"}
    with pytest.raises(UnknownTopic):
        store.read("orders")
    with pytest.raises(UnknownTopic, match="'orders'"):
        store.delete_topic("orders")
    assert not (store.path / "consumequeue" / "orders").exists()
    assert store.find("orders", "key-7") and store.get(store.first_offset).topic == "orders"  # the log still has them
    assert check(store.path).findings == ()


def test_a_new_topic_of_the_same_name_starts_at_queue_offset_0_for_all_consumers(store: MessageStore) -> None:
    consumer = store.consumer("g", "orders")
    own = store.consumer("h", "orders", progress="memory")
    assert len(consumer.poll()) == len(own.poll()) == 30
    store.delete_topic("orders")
    for each in (consumer, own):
        with pytest.raises(UnknownTopic):
            each.poll()
    assert store.put(message(100, queue_id=0)).queue_offset == 0
    fill(store, 2, first=101)
    assert [each.body for each in consumer.poll()] == [each.body for each in own.poll()]
    assert bodies(store) == [b"body 100", b"body 101", b"body 102"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "queues"])
def test_a_deleted_topic_stays_deleted_after_a_crash(
    store: MessageStore, tmp_path: Path, again: bool, lost: str
) -> None:
    """Even if the queues must be rebuilt from the whole log, which still has the topic's records."""
    store.delete_topic("orders")
    if again:
        fill(store, 3, first=100)
    store.wait_dispatched()
    store.flush()
    copy = crash(store.path, tmp_path / "copy")
    if lost == "checkpoint":
        (copy / "mqlake" / "checkpoint").unlink()
    if lost == "queues":
        shutil.rmtree(copy / "consumequeue" / "payments")
    with open_small(copy, read_only=True) as reader:
        assert reader.topics() == (["orders", "payments"] if again else ["payments"])
    with open_small(copy) as opened:
        assert opened.topics() == (["orders", "payments"] if again else ["payments"])
        assert bodies(opened, "payments") == [b"body %d" % number for number in range(5)]
        if again:
            assert bodies(opened) == [b"body 100", b"body 101", b"body 102"]
        assert opened.put(message(1, queue_id=0)).queue_offset == (3 if again else 0)
    assert check(copy).findings == ()


def test_a_crash_before_the_next_checkpoint_does_not_undo_the_deletion(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        fill(store, 30)
        fill(store, 5, "payments")
        store.wait_dispatched()
        writer_of(store).checkpoint_now()
        before = (store.path / "mqlake" / "checkpoint").read_bytes()
        queues = crash(store.path / "consumequeue" / "orders", tmp_path / "orders")
        store.delete_topic("orders")
        without_checkpoint = crash(store.path, tmp_path / "a")
        half_way = crash(store.path, tmp_path / "b")
    shutil.copytree(queues, half_way / "consumequeue" / "orders")  # the marker is written, the queues are still there
    for copy in (without_checkpoint, half_way):
        (copy / "mqlake" / "checkpoint").write_bytes(before)
        with open_small(copy) as opened:
            assert opened.recovery is not None and opened.recovery.reason == "checkpoint"
            assert opened.topics() == ["payments"]
            assert opened.put(message(1, queue_id=0)).queue_offset == 0
            assert len(bodies(opened)) == 1
        assert check(copy).findings == ()


def test_threads_may_read_and_put_while_a_topic_is_deleted(tmp_path: Path) -> None:
    """A reader gets messages or an error that says the topic or the offset is gone. Queue offsets stay consecutive."""
    failures: list[BaseException] = []
    stop = threading.Event()
    with open_small(tmp_path, commit_log=CommitLogConfig(file_size_bytes=1 << 20)) as store:
        fill(store, 300)

        def read() -> None:
            while not stop.is_set():
                time.sleep(0.002)
                try:
                    for each in store.read("orders", limit=50):
                        assert each.topic == "orders"
                except (UnknownTopic, OffsetOutOfRange):
                    pass
                except BaseException as error:
                    failures.append(error)

        def put() -> None:
            try:
                while not stop.is_set():
                    for number in range(20):
                        store.put(message(number, queue_id=number % 3))
                    time.sleep(0.002)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=target) for target in (read, read, put)]
        for thread in threads:
            thread.start()
        for _ in range(6):
            assert eventually(lambda: "orders" in store.topics())
            store.delete_topic("orders")
            store.retain(keep_bytes=2_000_000)
        stop.set()
        for thread in threads:
            thread.join(20)
        assert not failures and store.stats().failure is None
        fill(store, 3)
        store.wait_dispatched()
        for queue in store.queues("orders"):
            found = store.read("orders", queue_id=queue.queue_id, start=queue.first_offset, limit=10**6)
            assert [each.queue_offset for each in found] == list(range(queue.first_offset, queue.end_offset))
    assert check(tmp_path).findings == ()


def test_a_reader_in_another_process_sees_the_new_topic_of_the_same_name(store: MessageStore) -> None:
    program = f"""if True:
        import sys
        from mqlake import MessageStore, UnknownTopic
        with MessageStore.open({str(store.path)!r}, read_only=True) as reader:
            print(len(reader.read("orders", limit=100)), flush=True)
            sys.stdin.readline()
            try:
                reader.read("orders")
            except UnknownTopic:
                print("gone", flush=True)
            sys.stdin.readline()
            print([m.body.decode() for m in reader.read("orders")], flush=True)
    """
    store.wait_dispatched()
    child = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "30\n"
    store.delete_topic("orders")
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "gone\n"
    fill(store, 2)
    store.wait_dispatched()
    assert child.communicate("\n", timeout=20)[0] == "['body 0', 'body 1']\n"


def test_a_topic_that_the_store_needs_cannot_be_deleted(store: MessageStore) -> None:
    store.put(message(1, "SCHEDULE_TOPIC_XXXX", queue_id=0))
    with pytest.raises(NotPermitted, match="the store itself needs it"):
        store.delete_topic("SCHEDULE_TOPIC_XXXX")


@pytest.mark.parametrize("name", ["deleted-topics", "deleted-topics.bak"])
def test_one_flipped_bit_in_the_list_of_deleted_topics_brings_none_back(
    name: str, store: MessageStore, tmp_path: Path
) -> None:
    store.delete_topic("orders")
    fill(store, 2)
    store.wait_dispatched()
    copy = crash(store.path, tmp_path / "copy")
    file = copy / "mqlake" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    (row,) = (row for row in check(copy).findings if row.what == "deleted-topics")
    assert row.file == f"mqlake/{name}"
    assert repair(copy).after.severity == Severity.NOTE
    assert file.read_bytes() != content
    with open_small(copy) as opened:
        assert bodies(opened, "orders") == [b"body 0", b"body 1"]


def test_a_list_of_deleted_topics_that_is_lost_is_reported_and_the_store_opens(
    store: MessageStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.delete_topic("orders")
    copy = crash(store.path, tmp_path / "copy")
    for name in ("deleted-topics", "deleted-topics.bak"):
        (copy / "mqlake" / name).write_bytes(b"[]")
    assert "deleted-topics-lost" in {row.what for row in check(copy).findings}
    with open_small(copy) as opened:
        assert bodies(opened, "payments") == [b"body %d" % number for number in range(5)]
    assert "deleted topics may come back" in caplog.text


def test_deleting_a_group_deletes_its_progress_and_filters(store: MessageStore) -> None:
    with store.consumer("g", "orders", filter=Sql("a > 5")) as consumer:
        consumer.poll()
        with pytest.raises(NotPermitted, match="it has 1 open consumers; close them first"):
            store.delete_group("g")
    store.delivery.persist()
    content = decode((store.path / "config" / "consumerFilter.json").read_bytes())
    noted = content["filterDataByTopic"]["orders"]["groupFilterData"]["g"]
    assert noted["expression"] == "a > 5" and noted["expressionType"] == "SQL92"
    store.delete_group("g")
    assert store.groups() == []
    assert decode((store.path / "config" / "consumerOffset.json").read_bytes())["offsetTable"] == {}
    assert decode((store.path / "config" / "consumerFilter.json").read_bytes())["filterDataByTopic"] == {}
    with pytest.raises(UnknownGroup):
        store.delete_group("g")


@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto", "by hand"])
def test_deleting_another_topic_delivers_nothing_again(store: MessageStore, auto_commit: bool) -> None:
    with store.consumer("g", "orders", auto_commit=auto_commit, idle_s=0) as consumer:
        found = [each.queue_offset for each in consumer.poll(5, 10)]
        store.delete_topic("payments")
        while more := consumer.poll(0, 10):
            found += [each.queue_offset for each in more]
        assert found == list(range(30))
        consumer.commit()
    assert sum(each.message_count for each in store.lag("g")) == 0


def test_a_topic_deleted_and_made_again_can_change_hands(store: MessageStore) -> None:
    with store.consumer("g", "orders", idle_s=0) as first:
        assert len(first.poll(5, 10)) == 10
        store.delete_topic("orders")
        store.create_topic("orders", 2)
        fill(store, 3)
        with store.consumer("g", "orders", idle_s=0) as second:
            found = [each.body for consumer in (first, second) for each in consumer.poll(5, 10)]
            assert sorted(found) == [b"body 0", b"body 1", b"body 2"]


def test_a_put_after_unknown_topic_is_in_the_new_life_of_a_topic_that_is_being_deleted(
    store: MessageStore, tmp_path: Path
) -> None:
    receipts = []

    def put_once_it_is_unknown() -> None:
        while "orders" in store.delivery.topics:
            time.sleep(0.001)
        with pytest.raises(UnknownTopic):
            store.delete_topic("orders")
        receipts.append(store.put(message(100, queue_id=0), durability=Durability.DISK))

    threads = [threading.Thread(target=work) for work in (lambda: store.delete_topic("orders"), put_once_it_is_unknown)]
    with writer_of(store)._checkpoint_lock:  # a checkpoint takes its time
        for thread in threads:
            thread.start()
        threads[1].join(0.5)  # the put must not be acknowledged meanwhile
    for thread in threads:
        thread.join()
    assert [receipt.queue_offset for receipt in receipts] == [0]
    assert "orders" in store.delivery.topics
    store.close()
    with open_small(tmp_path / "s") as again:
        assert bodies(again) == [b"body 100"]


def test_a_deletion_that_a_signal_interrupts_anywhere_takes_no_message_that_is_put_after_unknown_topic(
    tmp_path: Path,
) -> None:
    with open_small(tmp_path / "s") as store:
        for number in itertools.count():
            topic = f"topic{number}"
            store.put(message(1, topic, queue_id=0))
            was_interrupted = interrupt_at(number, partial(store.delete_topic, topic), ("consumers.py", "shield.py"))
            with contextlib.suppress(UnknownTopic):
                store.delete_topic(topic)
            assert store.put(message(2, topic, queue_id=0)).queue_offset == 0
            if not was_interrupted:
                assert number > 5, "at least some lines were interrupted"
                break
        store.create_topic("last")
        store.delete_topic("last")  # steps that are left would be done now
        for each in range(number + 1):
            assert bodies(store, f"topic{each}") == [b"body 2"], f"interrupted at line {each}"
