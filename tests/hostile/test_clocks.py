"""A wrong wall clock stops nothing, deletes nothing, and its mark on store times ends with the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.torture.faults.shim import NoShim
from mqlake.torture.faults.wrongclock import WrongClock
from tests.hostile.programs import kill, line_of, run, start

BEGIN = """
from mqlake.torture.faults.wrongclock import WrongClock
DAYS = 10 * 86_400
clock = WrongClock(path.with_name("clock"))
settings = dict(
    delivery=DeliveryConfig(persist_interval_ms=100),
    consume_queue=ConsumeQueueConfig(file_size_bytes=2000, queues_per_topic=1),
)

def off(receipt):
    '''By how many seconds a store time is wrong while the clock is right.'''
    return abs(receipt.store_timestamp / 1000 - time.time())
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of programs whose clock can be set."""
    try:
        return WrongClock(tmp_path / "clock").env()
    except NoShim as missing:
        pytest.skip(str(missing))


def test_a_clock_that_steps_back_stops_neither_timers_nor_the_writing_of_progress(
    tmp_path: Path, env: dict[str, str]
) -> None:
    run(
        BEGIN
        + """
store = open_small(path, **settings)
progress = path / "config" / "consumerOffset.json"
consumer = store.consumer("group", "orders")

def arrives(body, **when):
    store.put(Message("orders", body, **when))
    assert [m.body for m in consumer.poll(4)] == [body], body
    consumer.commit()
    written = progress.read_bytes() if progress.exists() else b""
    assert eventually(lambda: progress.exists() and progress.read_bytes() != written, 3), "progress is not written"

clock.set(3600)
arrives(b"timed, ahead", delay_s=0.3)
arrives(b"by level, ahead", delay_level=1)
clock.set(0)
arrives(b"timed, back", delay_s=0.3)
arrives(b"by level, back", delay_level=1)
arrives(b"at once")
store.close()
""",
        tmp_path / "store",
        env=env,
    )


def test_a_delay_level_never_waits_longer_than_its_delay_after_the_clock_is_corrected(
    tmp_path: Path, env: dict[str, str]
) -> None:
    run(
        BEGIN
        + """
store = open_small(path, **settings)
clock.set(DAYS)
store.put(Message("orders", b"first", delay_level=1))
assert store.wait_dispatched()
clock.set(0)
store.put(Message("orders", b"second", delay_level=1))
assert eventually(lambda: "orders" in store.topics() and len(store.read("orders")) == 2, 5)
assert [m.body for m in store.read("orders")] == [b"first", b"second"]
clock.set(DAYS)
store.put(Message("orders", b"third", delay_level=1))
store.close()
clock.set(0)
store = open_small(path, **settings)
assert [m.body for m in store.read("orders", start=2, wait_s=5)] == [b"third"], "after opening again too"
store.close()
""",
        tmp_path / "store",
        env=env,
    )


def test_store_times_are_right_again_as_soon_as_the_clock_is(tmp_path: Path, env: dict[str, str]) -> None:
    run(
        BEGIN
        + """
store = open_small(path, **settings)
for number in range(10):
    store.put(message(number))
clock.set(DAYS)
for number in range(10, 20):
    store.put(message(number))
clock.set(0)
assert off(store.put(message(20))) < 60
store.close()
for number in range(21, 24):  # over reopenings too
    store = open_small(path, **settings)
    assert off(store.put(message(number))) < 60, number
    store.close()
store = open_small(path, **settings)
clock.set(DAYS)
store.put(message(24))
store.close()
clock.set(0)
store = open_small(path, **settings)
assert off(store.put(message(25))) < 60
for number in range(26, 80):
    wanted = store.put(message(number))
    time.sleep(0.002)
store.wait_dispatched()
found = store.read("orders", start=store.seek_time("orders", wanted.store_timestamp))
assert [m.body for m in found][-1] == b"body 79" and len(found) < 5, len(found)
assert store.seek_time("orders", wanted.store_timestamp + 60_000) == 80
store.close()
""",
        tmp_path / "store",
        env=env,
    )


RETENTION = """
import mqlake.errors
settings["retention"] = RetentionConfig(
    interval_ms=50, delete_hours=";".join(map(str, range(24))), force=False, full_percent=100, pause_ms=0
)
"""


def test_a_clock_that_is_ahead_for_a_moment_deletes_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    run(
        BEGIN
        + RETENTION
        + """
store = open_small(path, **settings)
for number in range(300):
    store.put(message(number, body=bytes(1000)))
clock.set(DAYS)
store.put(message(300))
time.sleep(1.5)  # many rounds of the cleaner
try:
    store.retain(older_than_ms=3_600_000)
    raise AssertionError("it was not refused")
except StoreError:
    pass
clock.set(0)
assert store.first_offset == 0
store.close()
clock.set(DAYS)  # and while it was closed
store = open_small(path, **settings)
time.sleep(0.5)
assert store.first_offset == 0
assert len(store.read("orders", limit=400)) == 301
store.close()
""",
        tmp_path / "store",
        env=env,
    )


def test_a_store_that_was_killed_and_opened_with_the_clock_ahead_deletes_nothing(
    tmp_path: Path, env: dict[str, str]
) -> None:
    writer = start(
        BEGIN
        + RETENTION
        + """
store = open_small(path, **settings)
for number in range(300):
    store.put(message(number, body=bytes(1000)))
store.flush()
print("done", flush=True)
signal.pause()
""",
        tmp_path / "store",
        env=env,
    )
    assert line_of(writer) == "done"
    kill(writer)
    run(
        BEGIN
        + RETENTION
        + """
clock.set(DAYS)
store = open_small(path, **settings)
time.sleep(0.5)
assert store.first_offset == 0
store.close()
""",
        tmp_path / "store",
        env=env,
    )
