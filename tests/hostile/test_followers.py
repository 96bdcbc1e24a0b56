"""A reader in another process sees what was acknowledged, and never less than before."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from mqlake import Durability, MessageStore, StoredMessage, UnknownTopic
from mqlake.logs.commit_log import CommitLog
from tests.helpers import eventually, message, open_small
from tests.hostile.programs import kill, line_of, start

ACKNOWLEDGES = """
store = open_small(path, flush=FlushConfig(sync=True))
store.put(message(0, "first"))
print("open", flush=True)
for line in sys.stdin:
    store.put(message(0, line.strip(), queue_id=0))
    print("acknowledged", flush=True)
"""


def test_a_new_topic_is_known_to_every_reader_right_after_its_first_acknowledgement(tmp_path: Path) -> None:
    writer = start(ACKNOWLEDGES, tmp_path)
    assert writer.stdin is not None
    try:
        assert line_of(writer) == "open"
        with MessageStore.open(tmp_path, read_only=True) as before:
            for number in range(50):
                topic = f"topic-{number}"
                writer.stdin.write(topic + "\n")
                writer.stdin.flush()
                assert line_of(writer) == "acknowledged"
                found: list[list[StoredMessage]] = [before.read(topic, wait_s=5)]
                with MessageStore.open(tmp_path, read_only=True) as after:
                    found.append(after.read(topic, wait_s=5))
                assert [[m.body for m in each] for each in found] == [[b"body 0"]] * 2, number
    finally:
        kill(writer)


def test_a_readers_end_never_steps_back_between_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, late, go_on = CommitLog.follow, threading.Event(), threading.Event()

    def follow(log: CommitLog, end: int) -> None:
        if not late.is_set():
            late.set()
            go_on.wait(5)
        whole(log, end)

    with open_small(tmp_path) as store, ThreadPoolExecutor(2) as threads:
        with MessageStore.open(tmp_path, read_only=True) as reader:
            monkeypatch.setattr(CommitLog, "follow", follow)
            store.put(message(1))
            assert store.wait_dispatched()
            first = threads.submit(lambda: reader.end_offset)
            assert late.wait(5)
            store.put(message(2))
            assert store.wait_dispatched()
            second = threads.submit(lambda: reader.end_offset)
            was_sooner = bool(wait([second], 0.3).done)  # unless it waits for the first
            go_on.set()
            assert second.result() == store.end_offset
            assert first.result() >= second.result() or not was_sooner


WRITER_ON_REQUEST = """
import sys
from pathlib import Path
from mqlake import Durability
from tests.helpers import message, open_small
store = open_small(Path(sys.argv[1]))
for line in sys.stdin:
    print(store.put(message(int(line), queue_id=0), durability=Durability.DISK).queue_offset, flush=True)
"""


def end_of(follower: MessageStore) -> int:
    """Return where the queue ends, once the follower has caught up with what is durable."""
    (queue,) = follower.queues("orders")
    return queue.end_offset


class WriterProcess:
    """A process that puts when it is asked to."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", WRITER_ON_REQUEST, str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )

    def put(self, number: int) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        assert int(self._process.stdout.readline()) == number

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def test_a_follower_continues_with_the_next_writer_after_the_first_was_killed(tmp_path: Path) -> None:
    writer = WriterProcess(tmp_path)
    for number in range(5):
        writer.put(number)
    with open_small(tmp_path, read_only=True) as follower:
        assert end_of(follower) == 5
        writer.kill()
        assert end_of(follower) == 5
        writer = WriterProcess(tmp_path)
        try:
            for number in range(5, 10):
                writer.put(number)
            assert end_of(follower) == 10
            assert [m.body for m in follower.read("orders", start=5)] == [b"body %d" % n for n in range(5, 10)]
            with follower.consumer("g", "orders", progress="memory", idle_s=0) as consumer:
                assert len(list(consumer)) == 10
        finally:
            writer.kill()


def test_a_follower_sees_what_a_killed_writer_had_acknowledged(tmp_path: Path) -> None:
    for round_number in range(5):
        path = tmp_path / str(round_number)
        writer = WriterProcess(path)
        writer.put(0)
        with open_small(path, read_only=True) as follower:
            assert end_of(follower) == 1
            for number in range(1, 40):
                writer.put(number)
            writer.kill()
            assert end_of(follower) == 40
            assert len(follower.read("orders", start=1, limit=64)) == 39
            assert follower.read("orders", start=40) == []


def test_a_waiting_consumer_of_a_follower_reads_a_topics_next_life_from_its_start(tmp_path: Path) -> None:
    with open_small(tmp_path) as store, open_small(tmp_path, read_only=True) as follower:
        for number in range(10):
            store.put(message(number, queue_id=0), durability=Durability.DISK)
        consumer = follower.consumer("g", "orders", progress="memory")
        assert len(consumer.poll(10, 64)) == 10
        store.delete_topic("orders")
        for number in range(30):
            store.put(message(number, queue_id=0), durability=Durability.DISK)
        found: list[int] = []

        def has_all() -> bool:
            with contextlib.suppress(UnknownTopic):  # between its two lives there is no such topic
                found.extend(m.queue_offset for m in consumer.poll(1, 64))
            return len(found) >= 30

        assert eventually(has_all, 30)
        assert found == list(range(30))
        consumer.close()
