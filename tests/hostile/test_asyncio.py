"""asyncio programs: a put that is cancelled is stored all the same, and no event loop misses its wake-up."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mqlake import Durability, FlushConfig
from tests.helpers import message, open_small


def test_a_waiting_reader_gets_the_message_of_a_cancelled_put_at_once(tmp_path: Path) -> None:
    async def cancelled_put(number: int) -> None:
        put = asyncio.ensure_future(store.put_async(message(number, queue_id=0)))
        await asyncio.sleep(0)  # it is appended, and waits for the disk
        put.cancel()
        await asyncio.wait([put])

    with open_small(tmp_path, flush=FlushConfig(sync=True, interval_ms=10_000, thorough_interval_ms=60_000)) as store:
        store.put(message(0, queue_id=0))
        for number in range(1, 4):
            with ThreadPoolExecutor(1) as threads:
                reader = threads.submit(store.read, "orders", start=number, wait_s=5)
                time.sleep(0.3)  # dispatch has nothing to do, and sleeps
                asyncio.run(cancelled_put(number))
                began = time.monotonic()
                assert [m.body for m in reader.result()] == [b"body %d" % number]
                assert time.monotonic() - began < 2


def test_the_first_put_of_an_event_loop_never_misses_a_sync_that_ends_before_the_loop_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.eventfd

    def after_a_sync(*arguments: int) -> int:
        # Another thread syncs at the worst moment: the message is durable before the loop can hear of it.
        other = threading.Thread(target=store.flush)
        other.start()
        other.join()
        return whole(*arguments)

    with open_small(tmp_path, flush=FlushConfig(timeout_ms=3_000, interval_ms=10_000)) as store:
        monkeypatch.setattr(os, "eventfd", after_a_sync)
        for number in range(10):
            asyncio.run(store.put_async(message(number), durability=Durability.DISK))  # FlushTimeout if it misses it


def test_the_first_puts_of_many_event_loops_never_miss_their_wake_up_beside_other_threads(tmp_path: Path) -> None:
    with open_small(tmp_path, flush=FlushConfig(timeout_ms=3_000, interval_ms=10_000)) as store:
        store.put(message(0))
        for number in range(100):
            together = threading.Barrier(3)

            def put(together: threading.Barrier = together) -> None:
                together.wait()
                store.put(message(0), durability=Durability.DISK)

            async def put_async(number: int = number, together: threading.Barrier = together) -> None:
                together.wait()
                await store.put_async(message(number), durability=Durability.DISK)

            with ThreadPoolExecutor(2) as threads:
                others = [threads.submit(put) for _ in range(2)]
                asyncio.run(put_async())
                for other in others:
                    other.result()
