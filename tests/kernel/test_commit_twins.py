"""Group commit, both kernels: one sync serves all threads that waited when it began; a failed one serves none."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.kernel.types import APPENDED, COMMITTED, COVERED, DURABLE, FAILED, LEAD, STOPPED, TIMED_OUT
from tests.helpers import covers, eventually
from tests.kernel.twins import both

SECOND = 1_000_000_000
pytestmark = pytest.mark.parametrize("kernel", both(), ids=lambda kernel: kernel.__name__.rsplit(".", 1)[1])


class Log:
    """A file, an appender that writes to it, and the group commit for both."""

    def __init__(self, kernel: Any, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.words = memoryview(bytearray(24)).cast("q")
        self.ends = kernel.Ends(0, 0, COMMITTED, False, self.words)
        self.group = kernel.GroupCommit(self.ends)

    def grow_to(self, end: int) -> None:
        self.ends.advance(APPENDED, end)

    def begin(self, durable: int) -> None:
        self.ends.advance(DURABLE, durable)

    def finish(self, end: int) -> None:
        """What the leader of a sync of more than one call does."""
        assert self.group.sync_files(end, [self.descriptor], [])

    def fail(self) -> None:
        """The same, with a file that cannot be synced: a pipe."""
        for end in (pipe := os.pipe()):
            if end == pipe[0]:
                assert not self.group.sync_files(0, [end], [])
            os.close(end)


@pytest.fixture
def log(kernel: Any, tmp_path: Path) -> Iterator[Log]:
    made = Log(kernel, tmp_path / "log")
    yield made
    made.group.stop()
    os.close(made.descriptor)


def start(call: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def signals_of(event: int) -> int:
    """Return how often the event was signalled since the last call."""
    try:
        return os.eventfd_read(event)
    except BlockingIOError:
        return 0


def test_a_lone_thread_syncs_everything_appended_itself(log: Log) -> None:
    log.begin(10)
    log.group.write_to(log.descriptor, 0)
    log.grow_to(300)
    assert log.group.wait(200, SECOND) == COVERED
    assert (log.ends.durable, log.words[1], log.group.sync_count) == (300, 300, 1)
    assert log.group.wait(300, SECOND) == COVERED
    assert log.group.sync_count == 1, "what is durable needs no sync"


def test_the_caller_makes_the_first_sync_of_a_file_and_every_sync_with_the_pool(log: Log) -> None:
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD, "no file yet"
    log.group.lead()
    log.finish(100)
    assert log.ends.durable == 100
    log.group.write_to(log.descriptor, 100)
    log.grow_to(200)
    assert log.group.wait(200, SECOND) == LEAD, "everything before the file is durable, but not the file's name"
    log.group.lead()
    log.finish(200)
    log.grow_to(300)
    assert log.group.wait(300, SECOND) == COVERED
    assert log.group.sync_count == 3


@covers("L4")
def test_a_thread_that_arrives_during_a_sync_waits_for_the_next_one(log: Log) -> None:
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD
    early, early_answers = start(lambda: log.group.wait(100, 30 * SECOND))
    log.group.lead()
    log.grow_to(200)
    late, late_answers = start(lambda: log.group.wait(200, 30 * SECOND))
    assert not early_answers
    assert not late_answers
    log.finish(100)
    early.join(30)
    assert early_answers == [COVERED]
    late.join(30)
    assert late_answers == [LEAD], "the first of the remaining threads leads the next sync"
    log.group.lead()
    log.finish(200)
    assert log.words[1] == 200


def test_a_thread_that_waits_too_long_times_out(log: Log) -> None:
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD
    assert log.group.wait(100, SECOND // 100) == TIMED_OUT
    log.finish(100)
    assert log.group.wait(100, SECOND) == COVERED


@covers("L3")
def test_a_failed_sync_fails_all_waiting_and_later_threads_and_the_durable_end_stays(log: Log) -> None:
    log.begin(10)
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD
    waiters = [start(lambda: log.group.wait(100, 30 * SECOND)) for _ in range(4)]
    server, served = start(lambda: log.group.serve(30 * SECOND))
    log.fail()
    for thread, answers in waiters:
        thread.join(30)
        assert answers == [FAILED]
    server.join(30)
    assert served == [FAILED]
    assert (log.ends.durable, log.words[1], log.group.failure) == (10, 10, 22)
    log.finish(100)
    assert log.ends.durable == 10, "no later success proves anything"
    assert log.group.wait(10, SECOND) == COVERED
    assert log.group.wait(11, SECOND) == FAILED


def test_a_sync_that_the_kernel_makes_itself_fails_with_its_errno(log: Log) -> None:
    read_end, write_end = os.pipe()
    try:
        log.begin(10)
        log.group.write_to(read_end, 0)  # a pipe cannot be synced
        log.grow_to(100)
        assert log.group.wait(100, SECOND) == FAILED
        assert log.group.failure == 22
        assert log.ends.durable == 10
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_failure_of_another_kind_ends_every_wait(log: Log) -> None:
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD
    waiter, answers = start(lambda: log.group.wait(100, 30 * SECOND))
    log.group.fail(28)
    waiter.join(30)
    assert answers == [FAILED]
    log.group.fail(5)
    assert log.group.failure == 28, "the first reason counts"


def test_the_server_syncs_what_was_requested_and_signals_the_events(log: Log) -> None:
    log.begin(10)
    log.group.write_to(log.descriptor, 0)
    event, silent = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
    try:
        log.ends.watch(DURABLE, silent)
        log.ends.watch(DURABLE, event)
        log.ends.unwatch(silent)
        server, served = start(lambda: log.group.serve(30 * SECOND))
        log.grow_to(100)
        log.group.request(100)
        assert eventually(lambda: log.ends.durable == 100)
        assert eventually(lambda: signals_of(event) == 1)
        assert signals_of(silent) == 0
        log.group.stop()
        server.join(30)
        assert served == [STOPPED]
    finally:
        os.close(event)
        os.close(silent)


@pytest.mark.parametrize("which", [APPENDED, COMMITTED])
def test_who_watches_the_committed_end_is_told_of_every_append(log: Log, which: int) -> None:
    """Without the pool, what is appended is committed."""
    event = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        log.ends.watch(which, event)
        log.grow_to(50)
        assert signals_of(event) == 1
        log.ends.unwatch(event)
        log.grow_to(60)
        assert signals_of(event) == 0
    finally:
        os.close(event)


def test_a_server_without_requests_returns_after_its_timeout(log: Log) -> None:
    assert log.group.serve(SECOND // 100) == TIMED_OUT
    log.grow_to(50)
    log.group.request(50)
    assert log.group.serve(SECOND) == LEAD, "no file can be synced with one call"


def test_many_waiters_are_all_covered(log: Log) -> None:
    log.begin(1)
    log.group.write_to(log.descriptor, 0)
    server, _ = start(lambda: log.group.serve(30 * SECOND))
    lock = threading.Lock()
    end = [1]
    wrong: list[int] = []

    def put_often() -> None:
        for _ in range(50):
            with lock:
                end[0] += 1
                mine = end[0]
                log.grow_to(mine)
            if log.group.wait(mine, 10 * SECOND) != COVERED or log.ends.durable < mine:
                wrong.append(mine)

    threads = [threading.Thread(target=put_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.group.stop()
    server.join(30)
    assert not wrong
    assert log.ends.durable == end[0] == 401
    assert log.group.sync_count <= 400


def test_an_interrupted_leader_gives_the_lead_back_and_the_next_one_syncs(log: Log) -> None:
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD
    waiter, answers = start(lambda: log.group.wait(100, 30 * SECOND))
    other, _ = start(log.group.abandon)
    other.join(30)
    assert log.group.wait(100, SECOND // 100) == TIMED_OUT, "only the leader itself can give the lead back"
    log.group.abandon()
    waiter.join(30)
    assert answers == [LEAD]
    log.group.lead()
    log.finish(100)
    assert log.ends.durable == 100


def test_a_folder_that_cannot_be_synced_latches(log: Log) -> None:
    read_end, write_end = os.pipe()
    try:
        log.grow_to(100)
        assert not log.group.sync_folder(read_end)
        assert log.group.wait(100, SECOND) == FAILED
        assert log.group.failure == 22
    finally:
        os.close(read_end)
        os.close(write_end)


class Producers:
    """Threads that append and wait, again and again, and note every answer that is not what was promised."""

    def __init__(self, log: Log, first: int, count: int, rounds: int) -> None:
        self.log = log
        self.end = first
        self.answers: list[int] = []
        self.lies: list[int] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(seed, rounds)) for seed in range(count)]

    def _run(self, seed: int, rounds: int) -> None:
        chance = random.Random(seed)
        for _ in range(rounds):
            with self._lock:
                self.end += 1
                mine = self.end
                self.log.grow_to(mine)
            answer = self._wait(mine, SECOND // 10_000 if chance.random() < 0.2 else 30 * SECOND)
            if chance.random() < 0.1:
                time.sleep(chance.random() / 500)
            if answer == COVERED and self.log.ends.durable < mine:
                self.lies.append(mine)
            self.answers.append(answer)
            if answer == FAILED:
                return

    def _wait(self, end: int, timeout_ns: int) -> int:
        answer: int = self.log.group.wait(end, timeout_ns)
        while answer == LEAD or (answer == TIMED_OUT and timeout_ns < SECOND):
            if answer == LEAD:
                self.lead()
            timeout_ns = 30 * SECOND  # who gives up after this slept through the end of its sync
            answer = self.log.group.wait(end, timeout_ns)
        return answer

    def lead(self) -> None:
        """Sync as the owner of a log does that needs more than one call; it takes a while."""
        self.log.group.lead()
        end = self.log.ends.appended
        time.sleep(random.random() / 2000)
        self.log.finish(end)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def serve(log: Log, producers: Producers) -> Any:
    """Serve as the flusher does: often away for a moment."""

    def run() -> Any:
        while (answer := log.group.serve(SECOND // 500)) in (TIMED_OUT, LEAD):
            if answer == LEAD:
                producers.lead()
        return answer

    return run


@covers("L4")
@pytest.mark.parametrize("served", [False, True], ids=["alone", "served"])
@pytest.mark.parametrize("one_call", [False, True], ids=["callers", "one call"])
def test_nobody_sleeps_through_its_sync_whoever_leads_gives_up_or_comes_late(
    log: Log, served: bool, one_call: bool
) -> None:
    log.begin(1)
    log.group.write_to(log.descriptor if one_call else -1, 0, 1 << 16)
    producers = Producers(log, 1, 12, 100)
    server, _ = start(serve(log, producers) if served else lambda: None)
    producers.start()
    producers.join()
    log.group.stop()
    server.join(30)
    assert producers.lies == []
    assert producers.answers == [COVERED] * 1200
    assert log.ends.durable == producers.end == 1201


@covers("L3")
@pytest.mark.parametrize("one_call", [False, True], ids=["callers", "one call"])
def test_a_failure_amid_many_waiters_reaches_each_of_them_and_durable_stays(log: Log, one_call: bool) -> None:
    log.begin(1)
    log.group.write_to(log.descriptor if one_call else -1, 0, 1 << 16)
    producers = Producers(log, 1, 12, 2000)
    server, served = start(serve(log, producers))
    producers.start()
    assert eventually(lambda: log.group.sync_count > 20)
    log.group.fail(5)
    durable = log.ends.durable
    producers.join()
    server.join(30)
    assert served == [FAILED]
    assert producers.lies == []
    assert producers.answers.count(FAILED) == 12
    assert set(producers.answers) == {COVERED, FAILED}
    assert log.ends.durable == durable == log.words[1]


def test_blocks_that_a_sync_writes_ahead_keep_what_they_hold(log: Log) -> None:
    size = 4 << 20
    os.posix_fallocate(log.descriptor, 0, size)
    os.pwrite(log.descriptor, b"record", 100)
    os.pwrite(log.descriptor, b"of another", 8192)
    log.begin(10)
    log.group.write_to(log.descriptor, 0, size)
    log.grow_to(300)
    assert log.group.wait(300, SECOND) == COVERED
    held = os.pread(log.descriptor, size + 1, 0)
    assert len(held) == size
    assert held.replace(b"record", b"").replace(b"of another", b"").strip(b"\0") == b""
