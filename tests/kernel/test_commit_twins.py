"""Group commit, both kernels: one sync serves all who waited when it began, and a failed one serves nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.kernel.types import COVERED, FAILED, LEAD, STOPPED, TIMED_OUT
from tests.helpers import covers, eventually
from tests.kernel.strategies import STORE_HOST
from tests.kernel.twins import both

SECOND = 1_000_000_000
pytestmark = pytest.mark.parametrize("kernel", both(), ids=lambda kernel: kernel.__name__.rsplit(".", 1)[1])


class Log:
    """A file, an appender that writes it, and the group commit over both."""

    def __init__(self, kernel: Any, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.word = memoryview(bytearray(8)).cast("q")
        self.appender = kernel.Appender(0, STORE_HOST, 1000, False, SECOND, None)
        self.group = kernel.GroupCommit(self.appender, self.word)

    def grow_to(self, end: int) -> None:
        self.appender.open(bytearray(4096), 0, end)


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


def rings_of(bell: int) -> int:
    """How often it rang since this was asked last."""
    try:
        return os.eventfd_read(bell)
    except BlockingIOError:
        return 0


def test_a_lone_waiter_syncs_all_that_is_appended_by_itself(log: Log) -> None:
    log.group.begin(10)
    log.group.write_to(log.descriptor, 0)
    log.grow_to(300)
    assert log.group.wait(200, SECOND) == COVERED
    assert (log.group.durable, log.word[0], log.group.sync_count) == (300, 300, 1)
    assert log.group.wait(300, SECOND) == COVERED
    assert log.group.sync_count == 1, "what is durable needs no sync"


def test_the_first_sync_of_a_file_and_every_sync_with_the_pool_are_the_callers(log: Log) -> None:
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD, "no file yet"
    log.group.lead()
    log.group.finish(100, 0)
    assert log.group.durable == 100
    log.group.write_to(log.descriptor, 100)
    log.grow_to(200)
    assert log.group.wait(200, SECOND) == LEAD, "all before the file is durable, but not the file's name"
    log.group.lead()
    log.group.finish(200, 0)
    log.grow_to(300)
    assert log.group.wait(300, SECOND) == COVERED
    assert log.group.sync_count == 3


@covers("L4")
def test_who_comes_while_a_sync_runs_waits_for_the_next_one(log: Log) -> None:
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD
    early, early_answers = start(lambda: log.group.wait(100, 30 * SECOND))
    log.group.lead()
    log.grow_to(200)
    late, late_answers = start(lambda: log.group.wait(200, 30 * SECOND))
    assert not early_answers
    assert not late_answers
    log.group.finish(100, 0)
    early.join(30)
    assert early_answers == [COVERED]
    late.join(30)
    assert late_answers == [LEAD], "the next sync is for the first of those who are left"
    log.group.lead()
    log.group.finish(200, 0)
    assert log.word[0] == 200


def test_one_who_waits_too_long_is_told_so(log: Log) -> None:
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD
    assert log.group.wait(100, SECOND // 100) == TIMED_OUT
    log.group.finish(100, 0)
    assert log.group.wait(100, SECOND) == COVERED


@covers("L3")
def test_a_failed_sync_fails_all_who_wait_and_all_who_come_and_durable_stays(log: Log) -> None:
    log.group.begin(10)
    log.grow_to(100)
    assert log.group.wait(100, SECOND) == LEAD
    waiters = [start(lambda: log.group.wait(100, 30 * SECOND)) for _ in range(4)]
    server, served = start(lambda: log.group.serve(30 * SECOND))
    log.group.finish(0, 5)
    for thread, answers in waiters:
        thread.join(30)
        assert answers == [FAILED]
    server.join(30)
    assert served == [FAILED]
    assert (log.group.durable, log.word[0], log.group.failure) == (10, 0, 5)
    log.group.finish(100, 0)
    assert log.group.durable == 10, "no later success proves anything"
    assert log.group.wait(10, SECOND) == COVERED
    assert log.group.wait(11, SECOND) == FAILED


def test_a_sync_that_the_kernel_makes_itself_fails_with_its_errno(log: Log) -> None:
    read_end, write_end = os.pipe()
    try:
        log.group.begin(10)
        log.group.write_to(read_end, 0)  # a pipe cannot be synced
        log.grow_to(100)
        assert log.group.wait(100, SECOND) == FAILED
        assert log.group.failure == 22
        assert log.group.durable == 10
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
    assert log.group.failure == 28, "the first reason is the one that counts"


def test_the_server_syncs_what_was_requested_and_rings_the_bells(log: Log) -> None:
    log.group.begin(10)
    log.group.write_to(log.descriptor, 0)
    bell, silent = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
    try:
        log.group.watch(silent)
        log.group.watch(bell)
        log.group.unwatch(silent)
        server, served = start(lambda: log.group.serve(30 * SECOND))
        log.grow_to(100)
        log.group.request(100)
        assert eventually(lambda: log.group.durable == 100)
        assert eventually(lambda: rings_of(bell) == 1)
        assert rings_of(silent) == 0
        log.group.stop()
        server.join(30)
        assert served == [STOPPED]
    finally:
        os.close(bell)
        os.close(silent)


def test_a_server_whom_nobody_asks_comes_back(log: Log) -> None:
    assert log.group.serve(SECOND // 100) == TIMED_OUT
    log.grow_to(50)
    log.group.request(50)
    assert log.group.serve(SECOND) == LEAD, "there is no file that one call could sync"


def test_many_waiters_are_all_covered(log: Log) -> None:
    log.group.begin(1)
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
            if log.group.wait(mine, 10 * SECOND) != COVERED or log.group.durable < mine:
                wrong.append(mine)

    threads = [threading.Thread(target=put_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.group.stop()
    server.join(30)
    assert not wrong
    assert log.group.durable == end[0] == 401
    assert log.group.sync_count <= 400
