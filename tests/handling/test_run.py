"""The worker loop: each message is handled, failures are retried later, signals end it in order."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqlake
from mqlake import InvalidConfig, Message, MessageStore, RunCounts, StoredMessage
from mqlake.broker.in_thread import BrokerThread
from mqlake.client import Producer
from mqlake.handling.tracking import Taken
from tests.helpers import eventually, open_small
from tests.plain_locks import plain_locks

RETRIES = "%RETRY%workers"
DEAD = "%DLQ%workers"


def put(store: MessageStore, count: int) -> set[bytes]:
    store.create_topic("jobs", 4)
    wanted = {b"%d" % number for number in range(count)}
    store.put_many([Message("jobs", body) for body in wanted])
    return wanted


@pytest.fixture(params=["store", "path", "endpoint"])
def place(
    request: pytest.FixtureRequest, mq_store_factory: Callable[..., MessageStore], tmp_path: Path
) -> dict[str, Any]:
    """Forty jobs, and where to find them: the three ways to name the place of a worker."""
    if request.param == "endpoint":
        broker: BrokerThread = request.getfixturevalue("mq_broker")
        put(broker.store, 40)
        return {"endpoint": broker.name_server}
    store = mq_store_factory("jobs")
    put(store, 40)
    if request.param == "store":
        return {"store": store}
    store.close()
    return {"store": tmp_path / "jobs"}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_every_message_is_handled_and_committed(place: dict[str, Any], concurrency: int) -> None:
    seen: list[bytes] = []
    threads = set()

    def handle(message: StoredMessage) -> None:
        seen.append(message.body)
        threads.add(threading.current_thread())

    options: dict[str, Any] = {"group": "workers", "topic": "jobs", "concurrency": concurrency, "idle_s": 0.6}
    counts = mqlake.run(handle, **place, **options)
    assert sorted(seen) == sorted(b"%d" % number for number in range(40))
    assert (counts.taken, counts.processed, counts.failed, counts.running) == (40, 40, 0, 0)
    assert (threads == {threading.current_thread()}) == (concurrency == 1)
    assert mqlake.run(handle, **place, **options).taken == 0


def test_an_async_handler_is_awaited_many_at_a_time(place: dict[str, Any]) -> None:
    running = most = 0

    async def handle(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    counts = mqlake.run(handle, **place, group="workers", topic="jobs", concurrency=8, idle_s=1.0)
    assert counts.processed == 40 and 1 < most <= 8


def test_one_bad_message_is_retried_later_and_stops_nobody(place: dict[str, Any]) -> None:
    told: list[tuple[bytes, str]] = []

    def handle(message: StoredMessage) -> None:
        if message.body == b"7":
            raise ValueError("no such customer")

    counts = mqlake.run(
        handle,
        **place,
        group="workers",
        topic="jobs",
        idle_s=0.5,
        on_error=lambda message, error: told.append((message.body, str(error))),
    )
    assert (counts.processed, counts.failed) == (39, 1)
    assert told == [(b"7", "no such customer")]
    assert counts.last_error == "ValueError: no such customer"


def test_a_failed_message_comes_back_and_is_a_dead_letter_in_the_end(mq_store: MessageStore) -> None:
    mq_store.create_group("workers", max_retry_count=1)
    mq_store.put(Message("jobs", b"bad"))
    tries: list[int] = []

    def handle(message: StoredMessage) -> None:
        tries.append(message.reconsume_times)
        raise RuntimeError("never")

    counts = mq_store.run(handle, group="workers", topic="jobs", retry_level=1, idle_s=2)
    assert tries == [0, 1] and counts.failed == 2
    assert [dead.body for dead in mq_store.read(DEAD)] == [b"bad"]


async def cancelled(message: StoredMessage) -> None:
    helper = asyncio.ensure_future(asyncio.sleep(60))
    helper.cancel()
    await helper


async def awaited_exit(message: StoredMessage) -> None:
    sys.exit("the handler exits")


def plain_exit(message: StoredMessage) -> None:
    sys.exit("the handler exits")


def stop_iteration(message: StoredMessage) -> None:
    next(iter(()))


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("poison", [plain_exit, stop_iteration, awaited_exit, cancelled])
def test_whatever_a_handler_raises_fails_its_message_and_stops_nobody(
    mq_store: MessageStore, poison: Callable[[StoredMessage], Any], is_awaited: bool, concurrency: int
) -> None:
    put(mq_store, 20)
    seen: set[bytes] = set()

    async def awaits(message: StoredMessage) -> None:
        seen.add(message.body)
        if message.body == b"7":
            await poison(message)

    def calls(message: StoredMessage) -> None:
        seen.add(message.body)
        if message.body == b"7":
            poison(message)

    handler: Any = awaits if asyncio.iscoroutinefunction(poison) else calls
    options: dict[str, Any] = {"concurrency": concurrency, "retry_level": -1, "idle_s": 0.3}

    async def main() -> RunCounts:
        return await mq_store.run_async(handler, group="workers", topic="jobs", **options)

    counts = asyncio.run(main()) if is_awaited else mq_store.run(handler, group="workers", topic="jobs", **options)
    assert len(seen) == 20 and (counts.processed, counts.failed) == (19, 1)
    assert [dead.body for dead in mq_store.read(DEAD)] == [b"7"]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_interrupt_ends_the_worker_and_its_message_is_delivered_again(
    mq_store: MessageStore, concurrency: int
) -> None:
    mq_store.put(Message("jobs", b"1"))

    def handle(message: StoredMessage) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mq_store.run(handle, group="workers", topic="jobs", concurrency=concurrency)
    assert mq_store.lag("workers", "jobs")[0].message_count == 1
    assert mq_store.run(print, group="workers", topic="jobs", idle_s=0.2).processed == 1


def test_the_exit_of_a_second_signal_ends_a_handler_and_the_worker(mq_store: MessageStore) -> None:
    mq_store.put(Message("jobs", b"1"))

    def handle(message: StoredMessage) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("the program's own"))
    try:
        with pytest.raises(SystemExit, match="the program's own"):
            mq_store.run(handle, group="workers", topic="jobs")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert mq_store.lag("workers", "jobs")[0].message_count == 1


def test_a_retry_level_of_minus_one_makes_dead_letters_at_once(mq_store: MessageStore) -> None:
    mq_store.put(Message("jobs", b"bad"))
    mq_store.run(lambda message: 1 / 0, group="workers", topic="jobs", retry_level=-1, idle_s=0.2)
    assert [dead.body for dead in mq_store.read(DEAD)] == [b"bad"]


def test_run_async_of_a_store_awaits_handlers_and_runs_plain_functions_in_threads(mq_store: MessageStore) -> None:
    wanted = put(mq_store, 20)
    loop_thread = threading.current_thread()
    seen: set[bytes] = set()

    def handle(message: StoredMessage) -> None:
        assert threading.current_thread() is not loop_thread
        seen.add(message.body)

    async def main() -> RunCounts:
        return await mq_store.run_async(handle, group="workers", topic="jobs", concurrency=3, idle_s=0.2)

    assert asyncio.run(main()).processed == 20
    assert seen == wanted


def test_a_cancelled_run_async_commits_nothing_that_was_not_finished(mq_store: MessageStore) -> None:
    put(mq_store, 5)

    async def never(message: StoredMessage) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        running = asyncio.create_task(mq_store.run_async(never, group="workers", topic="jobs", concurrency=2))
        await asyncio.sleep(0.3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert sum(queue.message_count for queue in mq_store.lag("workers", "jobs")) == 5


def test_progress_never_passes_a_message_that_is_not_finished(mq_store: MessageStore) -> None:
    """One queue, two threads: the second message is finished long before the first."""
    mq_store.put_many([Message("jobs", b"slow"), Message("jobs", b"fast")])
    release, fast = threading.Event(), threading.Event()
    stop = threading.Event()

    def handle(message: StoredMessage) -> None:
        if message.body == b"slow":
            release.wait(10)
        else:
            fast.set()

    options: dict[str, Any] = {"group": "workers", "topic": "jobs", "concurrency": 2, "stop": stop}
    thread = threading.Thread(target=lambda: mq_store.run(handle, **options))
    thread.start()
    assert fast.wait(5)
    time.sleep(0.05)
    assert mq_store.lag("workers", "jobs")[0].message_count == 2
    release.set()
    assert eventually(lambda: mq_store.lag("workers", "jobs")[0].message_count == 0)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def test_finished_messages_are_committed_up_to_the_first_unfinished_one(mq_store: MessageStore) -> None:
    mq_store.put_many([Message("jobs", b"%d" % number) for number in range(4)])
    first, second, third, fourth = mq_store.read("jobs")
    taken = Taken()
    taken.take([first, second, third, fourth])
    assert taken.finish(third, None) == []
    assert taken.finish(second, ValueError("x")) == []
    assert taken.finish(first, None) == [third]
    assert taken.counts.running == 1
    assert taken.finish(fourth, None) == [fourth]


def test_a_queue_stays_in_order_if_asked_for(mq_store: MessageStore) -> None:
    mq_store.put_many([Message("jobs", b"%d" % number) for number in range(30)])
    seen: list[bytes] = []

    def handle(message: StoredMessage) -> None:
        time.sleep(0.002 if len(seen) % 2 else 0)
        seen.append(message.body)

    mq_store.run(handle, group="workers", topic="jobs", concurrency=4, ordered=True, idle_s=0.3)
    assert seen == [b"%d" % number for number in range(30)]


def test_closing_the_store_ends_its_workers(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    store.put(Message("jobs", b"1"))
    seen = threading.Event()
    options: dict[str, Any] = {"group": "workers", "topic": "jobs"}
    thread = threading.Thread(target=lambda: store.run(lambda message: seen.set(), **options))
    thread.start()
    assert seen.wait(5)
    assert eventually(lambda: store.lag("workers", "jobs")[0].message_count == 0)
    store.close()
    thread.join(5)
    assert not thread.is_alive()


def test_progress_is_reported_at_the_end_and_every_few_seconds(
    mq_store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqlake.handling.loop.PROGRESS_S", 0.1)
    put(mq_store, 3)
    told: list[RunCounts] = []
    counts = mq_store.run(lambda message: None, group="workers", topic="jobs", idle_s=0.5, on_progress=told.append)
    assert len(told) >= 3 and told[-1] == counts and counts.processed == 3


def test_a_plain_function_that_returns_an_awaitable_is_an_error(mq_store: MessageStore) -> None:
    mq_store.put(Message("jobs", b"1"))

    async def work(message: StoredMessage) -> None: ...

    with pytest.raises(TypeError, match="make it an `async def`"):
        mq_store.run(lambda message: work(message), group="workers", topic="jobs", idle_s=0.2)
    assert mq_store.lag("workers", "jobs")[0].message_count == 1


def test_a_worker_needs_one_place_and_known_options(mq_store: MessageStore) -> None:
    work: dict[str, Any] = {"group": "workers", "topic": "jobs"}
    with pytest.raises(InvalidConfig, match="neither"):
        mqlake.run(print, **work)
    with pytest.raises(InvalidConfig, match="both"):
        mqlake.run(print, store=mq_store, endpoint="127.0.0.1:1", **work)
    with pytest.raises(InvalidConfig, match="concurrency"):
        mq_store.run(print, concurrency=0, **work)
    with pytest.raises(InvalidConfig, match="store = 5: must be an open store"):
        mqlake.run(print, store=5, **work)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="name server = 5: must be HOST:PORT"):
        mqlake.run(print, endpoint=5, **work)  # type: ignore[arg-type]
    for pause in ("x", True, math.nan):
        with pytest.raises(InvalidConfig, match="idle_s"):
            mq_store.run(print, idle_s=pause, **work)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match=r"stop = 5: must be a threading\.Event"):
        mq_store.run(print, stop=5, **work)  # type: ignore[arg-type]
    for level in ("x", -2, True):
        with pytest.raises(InvalidConfig, match="retry_level"):
            mq_store.run(print, retry_level=level, **work)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="handler = None: must be a function"):
        mq_store.run(None, **work)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="on_error = 'log'"):
        mq_store.run(print, on_error="log", **work)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no option 'idle'; it has filter"):
        mq_store.run(print, idle=1, **work)  # type: ignore[call-arg]


WORKER = r"""
import os, sys, time, asyncio
import mqlake

def plain(message):
    os.write(1, b"began\n")  # one call: print of two threads mixes their lines
    time.sleep(0.5)
    os.write(1, b"ended\n")

async def awaited(message):
    os.write(1, b"began\n")
    await asyncio.sleep(0.5)
    os.write(1, b"ended\n")

handler = {"plain": plain, "awaited": awaited}[sys.argv[2]]
counts = mqlake.run(handler, store=sys.argv[1], group="workers", topic="jobs", concurrency=int(sys.argv[3]))
print(counts.processed, counts.running, flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "concurrency", "number"),
    [("plain", 1, signal.SIGTERM), ("plain", 2, signal.SIGINT), ("awaited", 2, signal.SIGTERM)],
)
def test_a_signal_lets_the_running_handlers_end(
    tmp_path: Path, kind: str, concurrency: int, number: signal.Signals
) -> None:
    with open_small(tmp_path / "store") as store:
        store.create_topic("jobs", 1)
        store.put_many([Message("jobs", b"%d" % each) for each in range(50)])
    command = [sys.executable, "-c", WORKER, str(tmp_path / "store"), kind, str(concurrency)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_locks())
    assert child.stdout is not None
    assert child.stdout.readline() == "began\n"
    child.send_signal(number)
    said = child.stdout.read().splitlines()
    assert child.wait(20) == 0
    began, ended = 1 + said.count("began"), said.count("ended")
    assert began == ended == int(said[-1].split()[0]) and said[-1].split()[1] == "0"
    assert ended <= concurrency
    with open_small(tmp_path / "store") as store:
        assert store.lag("workers", "jobs")[0].message_count == 50 - ended


def test_a_broker_that_is_away_keeps_a_failed_message_for_later(mq_broker: BrokerThread) -> None:
    """The handler fails, and giving the message back fails too, twice: it is neither lost nor committed before."""
    from mqlake.errors import NotConnected
    from mqlake.handling.loop import Loop
    from mqlake.handling.options import Options

    with Producer(mq_broker.name_server) as producer:
        producer.send(Message("jobs", b"1"))
    with MessageStoreConsumer(mq_broker.store) as consumer:
        consumer.refusals = [NotConnected("127.0.0.1:1", "down"), NotConnected("127.0.0.1:1", "down")]
        counts = Loop(consumer, lambda message: 1 / 0, Options(idle_s=0.3, retry_level=1)).run()
    assert counts.failed == 1 and not consumer.refusals
    assert consumer.calls == ["fail", "fail", "fail", "commit"]


class MessageStoreConsumer:
    """A consumer whose `fail` is refused a few times."""

    def __init__(self, store: MessageStore) -> None:
        self._consumer = store.consumer("workers", "jobs", auto_commit=False)
        self.refusals: list[Exception] = []
        self.calls: list[str] = []

    def __enter__(self) -> MessageStoreConsumer:
        return self

    def __exit__(self, *error: object) -> None:
        self._consumer.close()

    @property
    def is_closed(self) -> bool:
        return self._consumer.is_closed

    @property
    def is_ordered(self) -> bool:
        return False

    def poll(self, timeout_s: float = 0.0, limit: int = 32) -> list[StoredMessage]:
        return self._consumer.poll(timeout_s, limit)

    def commit(self, message: StoredMessage | None = None, *, durable: bool = False) -> None:
        self.calls.append("commit")
        self._consumer.commit(message, durable=durable)

    def fail(self, message: StoredMessage, level: int = 0) -> object:
        self.calls.append("fail")
        if self.refusals:
            raise self.refusals.pop()
        return self._consumer.fail(message, level)

    def close(self) -> None:
        self._consumer.close()
