"""When a put returns, its message is as durable as its receipt says; a failed sync is never acknowledged."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake import (
    CommitLogConfig,
    DiskFull,
    Durability,
    FlushConfig,
    FlushTimeout,
    InvalidConfig,
    Message,
    PoolConfig,
    StoreError,
    StoreFailed,
)
from mqlake.logs.log_writer import LogWriter
from mqlake.store.checkpoint import read_checkpoint
from tests.helpers import LOG_FILE, bodies, covers, eventually, message, open_small, sync_in_python, writer_of

SYNC = FlushConfig(sync=True)
POOL = PoolConfig(enabled=True, buffer_count=3)
Sync = Callable[[int], None]


@pytest.fixture(autouse=True)
def _sync_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_in_python(monkeypatch)  # the kernel's own syncs: test_kernel_sync.py


@pytest.fixture
def log_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect every sync of a log file, by the file's name."""
    seen: list[str] = []
    real = os.fdatasync

    def counted(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        real(descriptor)
        if "/commitlog/" in path:
            seen.append(path)

    monkeypatch.setattr(os, "fdatasync", counted)
    return seen


def fail_syncs(monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> None:
    real, left = os.fdatasync, [after]

    def failing(descriptor: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", failing)


@covers("L1", "L2", "L3", "B13")
def test_with_sync_flush_a_put_returns_after_a_sync_that_covers_it(tmp_path: Path, log_syncs: list[str]) -> None:
    with open_small(tmp_path / "s", flush=SYNC) as store:
        for number in range(5):
            before = len(log_syncs)
            receipt = store.put(message(number))
            assert receipt.durability is Durability.DISK
            assert len(log_syncs) == before + 1
            assert store.stats().durable_end >= receipt.end


@covers("L1", "L2")
def test_without_sync_flush_a_put_does_not_wait_and_the_receipt_says_so(tmp_path: Path, log_syncs: list[str]) -> None:
    settings = FlushConfig(interval_ms=60_000, thorough_interval_ms=60_000)
    with open_small(tmp_path / "s", flush=settings) as store:
        receipt = store.put(message(1))
        assert receipt.durability is Durability.PAGE_CACHE
        assert not log_syncs


@covers("L3")
def test_durability_can_be_chosen_for_one_put(tmp_path: Path, log_syncs: list[str]) -> None:
    settings = FlushConfig(interval_ms=60_000, thorough_interval_ms=60_000)
    with open_small(tmp_path / "s", flush=settings) as store:
        store.put(message(1))
        receipt = store.put(message(2), durability=Durability.DISK)
        assert receipt.durability is Durability.DISK
        assert store.stats().durable_end >= receipt.end
        assert len(log_syncs) == 1
        with pytest.raises(InvalidConfig, match="REPLICA"):
            store.put(message(3), durability=Durability.REPLICA)
    with open_small(tmp_path / "sync", flush=SYNC) as store:
        syncs = len(log_syncs)
        assert store.put(message(1), durability=Durability.MEMORY).durability is Durability.PAGE_CACHE
        assert len(log_syncs) == syncs, "a put that need not wait does not"


@covers("L4")
def test_one_sync_serves_every_waiting_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_syncs: list[str]
) -> None:
    counted, all_there = os.fdatasync, threading.Event()

    def slow(descriptor: int) -> None:
        all_there.wait(10)
        counted(descriptor)

    with open_small(tmp_path / "s", flush=SYNC) as store:
        first = store.put(message(0, queue_id=0))
        size = first.end - first.physical_offset
        monkeypatch.setattr(os, "fdatasync", slow)
        syncs = len(log_syncs)
        threads = [threading.Thread(target=store.put, args=(message(0, queue_id=0),)) for _ in range(20)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: store.stats().appended_end == first.end + 20 * size)
        all_there.set()
        for thread in threads:
            thread.join()
        assert store.stats().durable_end == store.stats().appended_end
        assert len(log_syncs) <= syncs + 3


@covers("L5", "L6")
def test_the_background_thread_syncs_the_log(tmp_path: Path, log_syncs: list[str]) -> None:
    settings = FlushConfig(interval_ms=10, least_pages=1, thorough_interval_ms=100)
    with open_small(tmp_path / "s", flush=settings) as store:
        store.put(Message("t", bytes(10_000)))
        assert eventually(lambda: store.stats().durable_end == store.stats().appended_end)
        store.put(Message("t", b"less than a page"))
        assert eventually(lambda: store.stats().durable_end == store.stats().appended_end)


@covers("L5", "B14")
def test_fewer_dirty_pages_than_configured_wait_for_the_thorough_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced_at = os.fdatasync, list[float]()

    def timed(descriptor: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            synced_at.append(time.monotonic())
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", timed)
    settings = FlushConfig(interval_ms=5, least_pages=4, thorough_interval_ms=1_500)
    began = time.monotonic()
    with open_small(tmp_path / "s", flush=settings) as store:
        store.put(Message("t", bytes(4_000)))
        assert eventually(lambda: store.stats().durable_end == store.stats().appended_end)
        assert synced_at[0] - began >= 1.5


@covers("L3")
def test_a_failed_sync_latches_the_store_and_nothing_is_acknowledged_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_small(tmp_path / "s", flush=SYNC)
    first = store.put(message(1, queue_id=0))
    real = os.fdatasync
    fail_syncs(monkeypatch)
    with pytest.raises(StoreFailed, match=r"Input/output error.*close and reopen the store"):
        store.put(message(2, queue_id=0))
    monkeypatch.setattr(os, "fdatasync", real)  # the disk recovers, too late: the pages may be gone
    for _ in range(3):
        with pytest.raises(StoreFailed):
            store.put(message(3, queue_id=0))
        with pytest.raises(StoreFailed):
            store.put_many([message(3, queue_id=0)])
    assert store.stats().durable_end == first.end
    assert "Input/output error" in str(store.stats().failure)
    assert bodies(store) == [b"body 1"], "reads still work, and show only what is durable"
    store.close()
    assert (tmp_path / "s" / "abort").exists(), "this was not a clean close"


@covers("L3")
@pytest.mark.parametrize("pooled", [False, True])
def test_an_interrupted_sync_fails_only_its_own_put_and_the_store_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    """Ctrl-C while a thread leads a sync: that put raises, and the next one leads the sync for both."""
    pool = PoolConfig(enabled=pooled, buffer_count=3, commit_interval_ms=10_000)
    flush = FlushConfig(interval_ms=60_000, thorough_interval_ms=60_000)
    with open_small(tmp_path / "s", flush=flush, pool=pool) as store:
        store.put(message(1, queue_id=0), durability=Durability.DISK)
        real = os.fdatasync

        def interrupted(descriptor: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fdatasync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put(message(2, queue_id=0), durability=Durability.DISK)
        monkeypatch.setattr(os, "fdatasync", real)
        began = time.monotonic()
        third = store.put(message(3, queue_id=0), durability=Durability.DISK)
        assert time.monotonic() - began < 4
        assert store.stats().durable_end >= third.end
        assert bodies(store) == [b"body 1", b"body 2", b"body 3"]


@covers("L3")
def test_no_thread_is_told_of_a_failed_sync_before_puts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thread to learn of it may be held up before it closes the log; async puts need no sync to return."""
    with open_small(tmp_path / "s") as store:
        log, flusher = writer_of(store).log, writer_of(store).flusher
        refuse, asked, go_on = log.refuse, threading.Event(), threading.Event()

        def late_once(why: str, make_error: Callable[[], StoreError]) -> None:
            if not asked.is_set():
                asked.set()
                assert go_on.wait(30)
            refuse(why, make_error)

        monkeypatch.setattr(log, "refuse", late_once)
        first = threading.Thread(target=flusher.fail, args=(OSError(5, "Input/output error"),))
        first.start()
        assert asked.wait(30)
        flusher.fail(OSError(5, "Input/output error"))
        try:
            with pytest.raises(StoreFailed):
                store.put(message(0))
        finally:
            go_on.set()
            first.join()


def test_every_waiter_of_a_failed_sync_gets_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_small(tmp_path / "s", flush=SYNC)
    store.put(message(0))
    fail_syncs(monkeypatch, after=3)
    outcomes: list[str] = []

    def put(number: int) -> None:
        try:
            while True:
                receipt = store.put(message(number))
                outcomes.append("acknowledged" if store.stats().durable_end >= receipt.end else "lied")
        except StoreFailed:
            outcomes.append("refused")

    threads = [threading.Thread(target=put, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "lied" not in outcomes
    assert outcomes.count("refused") == 40

    async def refused() -> None:
        with pytest.raises(StoreFailed):
            await store.put_async(message(99))

    asyncio.run(refused())
    store.close()


@covers("L3", "Q")
def test_a_sync_that_hangs_is_a_timeout_and_not_an_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_small(tmp_path / "s", flush=FlushConfig(sync=True, timeout_ms=100))
    store.put(message(0))
    real, entered, release = os.fdatasync, threading.Event(), threading.Event()

    def hanging(descriptor: int) -> None:
        entered.set()
        release.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", hanging)
    leader = threading.Thread(target=store.put, args=(message(1),))
    leader.start()
    assert entered.wait(30)
    with pytest.raises(FlushTimeout, match="100 ms"):
        store.put(message(2))

    async def also_late() -> None:
        with pytest.raises(FlushTimeout):
            await store.put_async(message(3))

    asyncio.run(also_late())
    release.set()
    leader.join()
    store.close()


def test_asyncio_programs_put_without_blocking_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_syncs: list[str]
) -> None:
    counted, all_there = os.fdatasync, threading.Event()

    def slow(descriptor: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            assert all_there.wait(10), "the loop was blocked by a sync"
        counted(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)

    async def main() -> None:
        with open_small(tmp_path / "s", flush=SYNC) as store:
            puts = asyncio.gather(*[store.put_async(message(i)) for i in range(200)])
            asyncio.get_running_loop().call_soon(all_there.set)  # after each of them has started
            receipts = await puts
            assert all(r.durability is Durability.DISK for r in receipts)
            assert store.stats().durable_end >= max(r.end for r in receipts)
            assert len(log_syncs) <= 3
            with pytest.raises(Exception, match="topic"):
                await store.put_async(message(1, topic=""))

    asyncio.run(main())


def test_a_store_closed_under_a_running_loop_answers_its_waiters_and_leaves_nothing_in_the_loop(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        store = open_small(tmp_path / "s", flush=SYNC)
        puts = [asyncio.create_task(store.put_async(message(i))) for i in range(50)]
        await asyncio.sleep(0)
        store.close()
        began = time.monotonic()
        receipts = await asyncio.gather(*puts)
        assert time.monotonic() - began < 4
        assert all(receipt.durability is Durability.DISK for receipt in receipts)
        heard = asyncio.Event()
        ends = os.pipe()  # gets the descriptor that the store's event had
        asyncio.get_running_loop().add_reader(ends[0], heard.set)
        os.write(ends[1], b"x")
        await asyncio.wait_for(heard.wait(), 20)
        asyncio.get_running_loop().remove_reader(ends[0])
        for end in ends:
            os.close(end)

    asyncio.run(main())


@covers("A7", "E1", "E4", "B4", "B6", "B11", "B12", "B15", "B16", "L2", "L6")
def test_with_the_pool_a_message_is_visible_only_after_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = PoolConfig(enabled=True, buffer_count=3, commit_interval_ms=10, commit_thorough_interval_ms=10)
    commit, looked = LogWriter.commit, threading.Event()

    def held(log: LogWriter) -> int:
        looked.wait(30)
        return commit(log)

    monkeypatch.setattr(LogWriter, "commit", held)
    with open_small(tmp_path / "s", pool=pool) as store:
        first = store.put(message(1, queue_id=0))
        assert first.durability is Durability.MEMORY
        before = store.stats()
        assert before.appended_end == first.end
        assert (tmp_path / "s" / "commitlog" / f"{0:020d}").read_bytes()[:100] == bytes(100)
        looked.set()
        assert eventually(lambda: store.stats().committed_end == first.end)
        after = store.stats()
        assert after.appended_end >= after.committed_end >= after.durable_end
        assert (tmp_path / "s" / "commitlog" / f"{0:020d}").read_bytes()[:4] != bytes(4)
        assert bodies(store) == [b"body 1"]


@covers("B11", "E2", "E4")
def test_the_pool_writes_the_same_files_as_the_mapping(tmp_path: Path) -> None:
    for name, pool in (("plain", PoolConfig()), ("pool", POOL)):
        with open_small(tmp_path / name, pool=pool) as store:
            for number in range(300):
                store.put(message(number, body=bytes([number % 251]) * 700, born_timestamp=1))
    files = [sorted((tmp_path / name / "commitlog").iterdir()) for name in ("plain", "pool")]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert len(files[0]) > 3
    with open_small(tmp_path / "plain") as plain, open_small(tmp_path / "pool") as pooled:
        for queue_id in range(4):
            assert bodies(plain, queue_id=queue_id) == bodies(pooled, queue_id=queue_id)
        markers = [path.read_bytes()[-100:] for path in files[1][:-1]]
    assert all(marker == bytes(100) for marker in markers if marker.count(0) > 92)


@covers("E1", "L3")
def test_with_the_pool_a_put_can_request_page_cache_or_disk(tmp_path: Path, log_syncs: list[str]) -> None:
    pool = PoolConfig(enabled=True, buffer_count=3, commit_interval_ms=60_000, commit_thorough_interval_ms=60_000)
    flush = FlushConfig(interval_ms=60_000, thorough_interval_ms=60_000)
    with open_small(tmp_path / "s", pool=pool, flush=flush) as store:
        receipt = store.put(message(1), durability=Durability.PAGE_CACHE)
        assert store.stats().committed_end == receipt.end
        assert not log_syncs
        receipt = store.put(message(2), durability=Durability.DISK)
        assert store.stats().durable_end == receipt.end


@covers("D4")
def test_a_pool_without_a_free_buffer_refuses_at_once_if_set_to_fail_fast(tmp_path: Path) -> None:
    pool = PoolConfig(
        enabled=True, buffer_count=2, fail_fast=True, commit_interval_ms=60_000, commit_thorough_interval_ms=60_000
    )
    flush = FlushConfig(interval_ms=60_000, thorough_interval_ms=60_000)
    with open_small(tmp_path / "s", pool=pool, flush=flush) as store:
        began = time.monotonic()
        with pytest.raises(DiskFull, match="no buffer of the transient pool is free"):
            for _ in range(4):
                store.put(Message("t", bytes(40_000), queue_id=0))
        assert time.monotonic() - began < 4
        store.flush()
        store.put(Message("t", bytes(40_000), queue_id=0))


@covers("L7", "L8", "M1")
def test_checkpoints_never_claim_more_than_was_synced(tmp_path: Path) -> None:
    from mqlake.codec.checkpoint import RocketCheckpoint

    settings = FlushConfig(queue_interval_ms=10, queue_thorough_interval_ms=50)
    with open_small(tmp_path / "s", flush=settings) as store:
        receipt = store.put(message(1))
        assert eventually(lambda: (tmp_path / "s" / "mqlake" / "checkpoint").exists())
        assert eventually(lambda: _dispatched(tmp_path) == receipt.end)
        assert store.stats().durable_end >= receipt.end
    latest = read_checkpoint(tmp_path / "s" / "mqlake" / "checkpoint")
    assert latest is not None
    assert (latest.dispatched, latest.last_record, latest.clean) == (receipt.end, receipt.physical_offset, True)
    assert latest.queue_ends["orders"][receipt.queue_id] == 1
    rocket = RocketCheckpoint.decode((tmp_path / "s" / "checkpoint").read_bytes())
    assert rocket.log_timestamp == rocket.queue_timestamp == receipt.store_timestamp
    assert (tmp_path / "s" / "checkpoint").stat().st_size == 4096


def _dispatched(tmp_path: Path) -> int:
    latest = read_checkpoint(tmp_path / "s" / "mqlake" / "checkpoint")
    return latest.dispatched if latest else -1


def test_queues_that_could_not_be_synced_get_no_checkpoint_and_are_rebuilt_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = os.fdatasync, [0]

    def fails_once(descriptor: int) -> None:
        if "/consumequeue/" in os.readlink(f"/proc/self/fd/{descriptor}") and not failed[0]:
            failed[0] += 1
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fails_once)
    settings = FlushConfig(queue_interval_ms=10, queue_thorough_interval_ms=30)
    with open_small(tmp_path / "s", flush=settings) as store:
        store.put(message(1, queue_id=0))
        assert eventually(lambda: store.stats().failure is not None)
        time.sleep(0.1)  # a later sync would succeed but prove nothing
        assert _dispatched(tmp_path) == 0, "the checkpoint of the opening"
        store.put(message(2, queue_id=0))
    assert (tmp_path / "s" / "abort").exists()
    with open_small(tmp_path / "s") as store:
        assert bodies(store) == [b"body 1", b"body 2"]


def test_the_largest_body_is_written_and_synced(tmp_path: Path) -> None:
    with open_small(tmp_path / "s", flush=SYNC, commit_log=CommitLogConfig(file_size_bytes=16 << 20)) as store:
        body = os.urandom(4 << 20)
        assert store.get(store.put(Message("t", body)).physical_offset).body == body
        assert len(body) > LOG_FILE


def test_threads_that_one_sync_served_all_return_although_none_of_them_waits_again(tmp_path: Path) -> None:
    """Served threads wake each other as they come back. If none comes, the flush worker wakes the rest."""
    with open_small(tmp_path / "s", flush=FlushConfig(sync=True)) as store:
        for _ in range(20):
            together, done = threading.Barrier(16), threading.Event()
            returned: list[float] = []

            def put_once(together: threading.Barrier = together, done: threading.Event = done) -> None:
                together.wait()
                began = time.monotonic()
                store.put(message(0))
                returned.append(time.monotonic() - began)  # noqa: B023 the threads end before the next round
                done.wait(30)

            threads = [threading.Thread(target=put_once) for _ in range(16)]
            for thread in threads:
                thread.start()
            assert eventually(lambda: len(returned) == 16)  # noqa: B023
            done.set()
            for thread in threads:
                thread.join()
            assert max(returned) < 4, (
                "a wake-up was lost: the flush worker looks every 500 ms, a put gives up after 5 s"
            )
