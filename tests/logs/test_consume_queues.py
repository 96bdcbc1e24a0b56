"""Very many queues need few descriptors and little memory, and closing and reopening a queue loses nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from mqlake import FileFailed, UnknownTopic
from mqlake.codec.queue_entry import ENTRY
from mqlake.files import unsynced
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.kernel import count_valid_entries
from mqlake.logs import consume_queue, consume_queues
from mqlake.logs.consume_queues import ConsumeQueues

FILE_SIZE = 100
LOG_END = 1 << 40


def entries(first: int, count: int = 1) -> bytes:
    return b"".join(ENTRY.pack(100 * number, 50, number) for number in range(first, first + count))


def log(tmp_path: Path) -> MappedFileQueue:
    return MappedFileQueue(tmp_path / "log", 1 << 20, writable=False)


def writer(tmp_path: Path, file_size: int = FILE_SIZE) -> ConsumeQueues:
    (tmp_path / "queues").mkdir(exist_ok=True)
    queues = ConsumeQueues(tmp_path / "queues", file_size, log(tmp_path), writable=True, scratch=tmp_path / "scratch")
    queues.load()
    queues.log_end = LOG_END
    return queues


def reader(tmp_path: Path) -> ConsumeQueues:
    queues = ConsumeQueues(tmp_path / "queues", FILE_SIZE, log(tmp_path), writable=False)
    queues.load()
    queues.trust_up_to(LOG_END)
    return queues


def held(queues: ConsumeQueues, topic: str, queue_id: int) -> bytes:
    queue = queues.get(topic, queue_id)
    return b"".join(bytes(queue.entries(number, number + 1)) for number in range(queue.end))


def fill(queues: ConsumeQueues, count: int) -> None:
    for number in range(count):
        assert not queues.write([(f"t{number // 4}", number % 4, 0, entries(0))])


@pytest.fixture
def few_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queues, "MAX_OPEN", 3)


LIMITED = """
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
from tests.logs.test_consume_queues import entries, fill, held, reader, writer
store = Path(sys.argv[1])
queues = writer(store)
for turn in range(3):
    for number in range(600):
        assert not queues.write([(f"t{number // 4}", number % 4, 4 * turn, entries(4 * turn, 4))])
queues.sync()
for one in (queues, reader(store)):
    for number in range(600):
        assert held(one, f"t{number // 4}", number % 4) == entries(0, 12)
assert len(os.listdir("/proc/self/fd")) < 80
"""


def test_hundreds_of_queues_are_written_synced_and_read_with_a_hundred_descriptors(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", range(10))
def test_queues_that_are_closed_and_reopened_hold_what_was_written(tmp_path: Path, seed: int, few_open: None) -> None:
    """Write runs of all lengths, across the ends of files, to queues that are open, closed, or being read."""
    draw = random.Random(seed)
    queues, follower = writer(tmp_path), reader(tmp_path)
    ends: dict[tuple[str, int], int] = {}
    for _ in range(300):
        key = f"t{draw.randrange(5)}", draw.randrange(2)
        end, count = ends.get(key, 0), draw.randrange(1, 9)
        again = draw.randrange(min(end, 3) + 1) if draw.random() < 0.2 else 0  # a step that is repeated
        assert not queues.write([(*key, end - again, entries(end - again, again + count))])
        ends[key] = end + count
        look = draw.choice([*ends])
        assert held(draw.choice([queues, follower]), *look) == entries(0, ends[look])
        if draw.random() < 0.02:
            queues.sync()
            queues.close()
            table = queues.snapshot()
            queues = writer(tmp_path)
            queues.know_ends(table if draw.random() < 0.5 else {})
    queues.log_end = LOG_END
    assert {(topic, i): queues.end_of(topic, i) for topic, i in ends} == ends
    assert {(topic, i): follower.end_of(topic, i) for topic, i in ends} == ends


def test_a_holder_of_a_queue_sees_what_is_written_after_the_queue_was_closed(tmp_path: Path, few_open: None) -> None:
    queues = writer(tmp_path)
    fill(queues, 8)
    queue = queues.get("t0", 0)
    view = queue.entries(0, 1)
    fill_others = [(f"t{number}", 0) for number in range(10, 30)]
    for topic, queue_id in fill_others:
        queues.write([(topic, queue_id, 0, entries(0))])
    assert ("t0", 0) not in queues._open
    assert not queues.write([("t0", 0, 1, entries(1, 7))])
    assert (queue.end, bytes(view)) == (8, entries(0))
    assert queues.get("t0", 0) is queue
    assert held(queues, "t0", 0) == entries(0, 8)


def test_a_closed_queue_takes_little_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    queues = writer(tmp_path)
    fill(queues, 600)
    queues.sync()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2000):
        assert not queues.write([(f"u{number // 4}", number % 4, 0, entries(0))])
    queues.sync()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown / 2000 < 400, f"{grown / 2000:.0f} bytes a queue"


# ---- syncs


def synced_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def note(descriptor: int, real: object = real) -> None:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            real(descriptor)  # type: ignore[operator]

        monkeypatch.setattr(os, name, note)
    return found


@pytest.mark.parametrize("many", [1, 1000], ids=["at once", "one by one"])
def test_entries_are_synced_even_if_their_queue_was_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_open: None, many: int
) -> None:
    monkeypatch.setattr(unsynced, "MANY", many)
    asked: list[int] = []

    def refuse(descriptor: int) -> bool:
        asked.append(descriptor)
        return False

    monkeypatch.setattr(unsynced, "sync_file_system", refuse)
    queues = writer(tmp_path)
    fill(queues, 40)
    found = synced_paths(monkeypatch)
    queues.sync()
    files = {str(path) for path in (tmp_path / "queues").rglob("*")}
    assert files | {str(tmp_path / "queues")} == set(found), "every file, and every folder that got a new name"
    assert bool(asked) == (many == 1)
    found.clear()
    assert not queues.write([("t3", 1, 1, entries(1))])
    queues.sync()
    assert found == [str(tmp_path / "queues" / "t3" / "1" / f"{0:020d}")]


def test_many_files_are_synced_by_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsynced, "MANY", 10)
    monkeypatch.setattr(unsynced, "sync_file_system", lambda descriptor: True)
    queues = writer(tmp_path)
    fill(queues, 40)
    found = synced_paths(monkeypatch)
    queues.sync()
    assert found == []


def test_a_file_that_cannot_be_opened_for_its_sync_is_synced_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without free descriptors has lost nothing: this is not a failed sync."""
    queues = writer(tmp_path)
    fill(queues, 3)
    real = os.open

    def refuse(path: object, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            return real(path, flags, mode)  # type: ignore[arg-type]
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileFailed, match="opened for a sync"):
        queues.sync()
    monkeypatch.undo()
    found = synced_paths(monkeypatch)
    queues.sync()
    assert {str(path) for path in (tmp_path / "queues").rglob(f"{0:020d}")} <= set(found)


def test_a_failed_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    queues = writer(tmp_path)
    fill(queues, 3)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        queues.sync()


def test_a_deleted_topic_is_not_synced_and_restarts_at_zero(tmp_path: Path) -> None:
    queues = writer(tmp_path)
    fill(queues, 8)
    queue = queues.get("t0", 1)
    queues.remove("t0", tmp_path / "trash")
    assert (queue.end, queues.end_of("t0", 1), queues.topics()) == (0, 0, ["t1"])
    queues.sync()
    assert not queues.write([("t0", 1, 0, entries(7))])
    assert held(queues, "t0", 1) == entries(7)


# ---- readers


def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    real = os.scandir

    def note(path: object) -> object:
        found.append(str(path))
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", note)
    return found


def test_a_reader_that_lacks_a_topic_lists_only_that_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = writer(tmp_path)
    fill(queues, 40)
    follower = reader(tmp_path)
    queues.write([("new", 0, 0, entries(0, 3))])
    queues.write([("t0", 7, 0, entries(0, 2))])
    found = listed(monkeypatch)
    assert (follower.get("new", 0).end, follower.end_of("t0", 7)) == (3, 2)
    assert follower.queue_ids("new") == [0]
    assert {Path(path).relative_to(tmp_path / "queues").parts[0] for path in found} == {"new", "t0"}
    with pytest.raises(UnknownTopic):
        follower.get("../queues/t0", 0)


def test_reading_every_queue_lists_each_folder_a_fixed_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(writer(tmp_path), 400)
    follower = reader(tmp_path)
    found = listed(monkeypatch)
    for topic in follower.topics():
        for queue_id in follower.queue_ids(topic):
            assert follower.get(topic, queue_id).end == 1
    assert len(found) <= 1 + 100 + 2 * 400


def test_a_reader_sees_topics_created_and_deleted(tmp_path: Path) -> None:
    queues = writer(tmp_path)
    fill(queues, 8)
    follower = reader(tmp_path)
    assert follower.topics() == ["t0", "t1"]
    queues.write([("t5", 2, 0, entries(0))])
    queues.remove("t0", tmp_path / "trash")
    assert follower.topics() == ["t1", "t5"]
    assert follower.end_of("t0", 0) == 0


def test_a_slow_thread_never_moves_a_readers_end_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = writer(tmp_path)
    queues.write([("t", 0, 0, entries(0, 2))])
    follower = reader(tmp_path)
    assert follower.get("t", 0).end == 2
    real, counted, go_on = count_valid_entries, threading.Event(), threading.Event()

    def slow(pages: object, log_end: int) -> int:
        count = real(pages, log_end)  # type: ignore[arg-type]
        if threading.current_thread() is thread:
            counted.set()
            go_on.wait(10)
        return count

    monkeypatch.setattr(consume_queue, "count_valid_entries", slow)
    thread = threading.Thread(target=follower.get, args=("t", 0))
    thread.start()
    assert counted.wait(10)
    queues.write([("t", 0, 2, entries(2, 9))])
    assert follower.get("t", 0).end == 11
    go_on.set()
    thread.join()
    assert follower.peek("t", 0).end == 11


def test_a_reader_that_opens_a_queue_does_not_undo_what_dispatch_appends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(writer(tmp_path), 1)
    queues = writer(tmp_path)
    queues.know_ends({"t0": {0: 1}})
    load = MappedFileQueue.load

    def slow(self: MappedFileQueue) -> None:
        load(self)
        assert not queues.write([("t0", 0, 1, entries(1))])

    with monkeypatch.context() as patch:
        patch.setattr(MappedFileQueue, "load", slow)
        assert queues.peek("t0", 0).end == 2
    assert held(queues, "t0", 0) == entries(0, 2)
