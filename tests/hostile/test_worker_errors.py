"""A background error is never silent: one that passes is waited out, one that stays refuses puts and wakes waiters."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mqlake.errors as errors
from mqlake import Durability, FlushConfig, MemoryConfig, MessageStore, PoolConfig
from mqlake.files import preallocation
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.logs.key_index import KeyIndex
from mqlake.store import checkpoint
from tests.helpers import bodies, eventually, message, open_small
from tests.hostile.programs import kill, line_of, start

DERIVED: list[tuple[type[Any], str]] = [(ConsumeQueue, "write"), (KeyIndex, "put")]
STAYS: list[Exception] = [OSError(errno.EIO, "input/output error"), TypeError("not that type")]
PASSES = [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM]


class Broken:
    """A method that raises while `error` is set."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.error: Exception | None = None
        self.raised = threading.Event()
        whole: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if self.error is not None:
                self.raised.set()
                raise self.error
            return whole(*arguments, **named)

        patch.setattr(owner, name, call)


def worker(store: MessageStore, name: str) -> Any:
    return next(each for each in store.health().workers if each.name == name)


@pytest.mark.parametrize("error", STAYS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("owner", "name"), DERIVED, ids=["queue", "index"])
def test_once_dispatch_has_failed_puts_are_refused_and_waiting_readers_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, error: Exception
) -> None:
    broken = Broken(monkeypatch, owner, name)
    with open_small(tmp_path) as store, ThreadPoolExecutor(4) as threads:
        store.put(message(0, queue_id=0))
        store.put(message(0, "others", queue_id=0))
        assert bodies(store) == bodies(store, "others") == [b"body 0"]
        consumer = store.consumer("group", "others", start="last")
        broken.error = error
        waits: list[Future[Any]] = [
            threads.submit(lambda: store.read("others", start=1, wait_s=10)),
            threads.submit(lambda: consumer.poll(10)),
            threads.submit(lambda: next(iter(store.consumer("another", "others", start="last")))),
            threads.submit(lambda: asyncio.run(store.consumer("third", "others", start="last").poll_async(10))),
        ]
        store.put(message(1, queue_id=0))
        assert broken.raised.wait(5)
        for wait in waits:
            assert isinstance(wait.exception(5), errors.DispatchFailed)
        for put in (
            lambda: store.put(message(2)),
            lambda: store.put(message(2, "new")),
            lambda: store.put_many([message(2)]),
            lambda: store.put(message(2), durability=Durability.DISK),
        ):
            with pytest.raises(errors.DispatchFailed, match=type(error).__name__):
                put()
        dispatch = worker(store, "dispatch")
        assert dispatch.state == "failed" and str(error) in dispatch.error and dispatch.behind_bytes > 0
        assert not store.health().ok
        assert worker(store, "dispatch") in store.stats().workers
        broken.error = None
    assert (tmp_path / "abort").exists(), "what was not dispatched must be dispatched at the next opening"
    with open_small(tmp_path) as store:
        assert bodies(store) == [b"body 0", b"body 1"]
        assert len(store.find("orders", "key-1")) == 1


@pytest.mark.parametrize("code", PASSES, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize(("owner", "name"), DERIVED, ids=["queue", "index"])
def test_dispatch_continues_when_an_error_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, code: int
) -> None:
    broken = Broken(monkeypatch, owner, name)
    with open_small(tmp_path) as store:
        store.put(message(0, queue_id=0))
        assert bodies(store) == [b"body 0"]
        broken.error = OSError(code, os.strerror(code))
        store.put(message(1, queue_id=0))
        assert eventually(lambda: worker(store, "dispatch").state == "retrying")
        assert os.strerror(code) in worker(store, "dispatch").error
        store.put(message(2, queue_id=0))  # acknowledged: it will be seen
        broken.error = None
        assert store.wait_dispatched(5)
        assert bodies(store) == [b"body 0", b"body 1", b"body 2"]
        assert eventually(lambda: store.health().ok)
        assert worker(store, "dispatch").error_count > 0


def test_checkpoints_continue_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch, checkpoint, "replace_file")
    flush = FlushConfig(queue_interval_ms=10, queue_thorough_interval_ms=10)
    with open_small(tmp_path, flush=flush) as store:
        store.put(message(0))
        broken.error = OSError(errno.EIO, "input/output error")
        assert broken.raised.wait(5)
        assert eventually(lambda: worker(store, "checkpoint").state == "retrying")
        store.put(message(1), durability=Durability.DISK)
        written = (tmp_path / "mqlake" / "checkpoint").read_bytes()
        broken.error = None
        assert eventually(lambda: (tmp_path / "mqlake" / "checkpoint").read_bytes() != written, 5)
        assert eventually(lambda: store.health().ok, 5)


def test_a_page_that_cannot_be_locked_in_memory_stops_no_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch, preallocation, "lock_memory")
    broken.error = OSError(errno.ENOMEM, "cannot allocate memory")
    with open_small(tmp_path, memory=MemoryConfig(lock_files=True)) as store:
        for number in range(300):  # several log files
            store.put(message(number, queue_id=0, body=bytes(1000)))
        assert broken.raised.is_set()
        assert len(bodies(store)) == 300
        assert store.health().ok


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO], ids=lambda code: errno.errorcode[code])
def test_puts_are_taken_again_when_the_next_log_file_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    broken = Broken(monkeypatch, preallocation.Preallocator, "_make")
    with open_small(tmp_path) as store:
        store.put(message(0, queue_id=0))
        broken.error = OSError(code, os.strerror(code))
        with pytest.raises(errors.FileFailed, match=os.strerror(code)):
            for number in range(1, 300):
                store.put(message(number, queue_id=0, body=bytes(1000)))
        broken.error = None
        store.put(message(300, queue_id=0, body=bytes(60_000)))
        assert bodies(store)[-1] == bytes(60_000)


@pytest.mark.parametrize("pool", [None, PoolConfig(enabled=True, buffer_count=3)], ids=["plain", "pool"])
def test_every_worker_is_listed(tmp_path: Path, pool: PoolConfig | None) -> None:
    with open_small(tmp_path, pool=pool) as store:
        store.put(message(0, delay_level=1))
        names = {each.name for each in store.stats().workers}
        assert {"dispatch", "flush", "checkpoint", "preallocation", "scheduler"} <= names
        assert ("commit" in names) == (pool is not None)
        assert all(each.error is None for each in store.stats().workers)


A_WRITER_WHOSE_DISPATCH_FAILS = """
import errno
from mqlake.logs.consume_queue import ConsumeQueue
store = open_small(path)
store.put(message(1))
assert store.wait_dispatched()
print("runs", flush=True)
sys.stdin.readline()

def fail(*_, **__):
    raise OSError(errno.EIO, "the disk is broken")

ConsumeQueue.write = fail
store.put(message(2), durability=Durability.DISK)
assert eventually(lambda: not store.health().ok)
print("failed", flush=True)
sys.stdin.readline()
"""


def info(path: Path, *options: str) -> str:
    command = [sys.executable, "-m", "mqlake", "info", str(path), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout


def test_other_processes_see_how_the_workers_are(tmp_path: Path) -> None:
    process = start(A_WRITER_WHOSE_DISPATCH_FAILS, tmp_path)
    assert process.stdin is not None
    try:
        assert line_of(process) == "runs"
        workers = {each["name"]: each for each in json.loads(info(tmp_path, "--json"))["workers"]}
        assert {"dispatch", "flush", "checkpoint", "preallocation"} <= workers.keys()
        dispatch = workers["dispatch"]
        assert (dispatch["state"], dispatch["error"], dispatch["behindBytes"]) == ("running", None, 0)
        process.stdin.write("\n")
        process.stdin.flush()
        assert line_of(process) == "failed"
        told = json.loads(info(tmp_path, "--json"))
        dispatch = next(each for each in told["workers"] if each["name"] == "dispatch")
        assert dispatch["state"] == "failed" and dispatch["since"] > workers["dispatch"]["since"]
        assert "the disk is broken" in dispatch["error"] and "the disk is broken" in told["failure"]
        assert dispatch["behindBytes"] == told["durableEnd"] - told["dispatchedEnd"] > 0
        row = next(line for line in info(tmp_path).splitlines() if line.startswith("dispatch "))
        assert "failed" in row and "[Errno 5] the disk is" in row
    finally:
        kill(process)
    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert reader.health().workers == (), "nobody writes any more"
