"""Opening and closing: clean, unclean, locked, and followed by other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mqlake import (
    CorruptRecord,
    FlushConfig,
    Message,
    MessageStore,
    NoSuchMessage,
    PoolConfig,
    StoreConfig,
    StoreLocked,
)
from mqlake.files.lock import writer_of
from tests.helpers import LOG_FILE, bodies, covers, eventually, message, open_small

CHILD = """
import sys, time
from pathlib import Path
from tests.helpers import message, open_small
store = open_small(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    receipt = store.put(message(number, queue_id=0, body=b"%06d" % number * 50))
    print(receipt.queue_offset, flush=True)
    if len(sys.argv) > 3:
        time.sleep(float(sys.argv[3]))
print("ready", flush=True)
time.sleep(60)
"""


def start_writer(path: Path, count: int, *pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(path), str(count), *map(str, pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def wait_until_ready(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == "ready":
            return
    raise AssertionError("the writer ended early")


@covers("M2", "N1", "C2")
def test_a_clean_close_leaves_no_abort_file_and_opens_without_walking_the_log(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(200):
            store.put(message(number, queue_id=0, body=bytes(700)))
    assert not (tmp_path / "s" / "abort").exists()
    with open_small(tmp_path / "s") as store:
        recovery = store.stats().recovery
        assert recovery is not None
        assert (recovery.reason, recovery.walked_count) == ("checkpoint", 0)
        assert len(bodies(store)) == 200
        assert store.put(message(200, queue_id=0)).queue_offset == 200


def test_a_store_that_was_never_written_opens_closes_and_reopens(tmp_path: Path) -> None:
    for _ in range(2):
        with open_small(tmp_path / "s") as store:
            assert store.topics() == []
            assert store.end_offset == 0
    with MessageStore.open(tmp_path / "s", read_only=True) as reader:
        assert reader.topics() == []


@covers("N1", "N5", "N6", "K2", "M2")
def test_a_killed_writer_loses_nothing_that_was_in_the_page_cache(tmp_path: Path) -> None:
    child = start_writer(tmp_path / "s", 500)
    wait_until_ready(child)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert (tmp_path / "s" / "abort").exists()
    expected = [b"%06d" % number * 50 for number in range(500)]
    with MessageStore.open(tmp_path / "s", read_only=True, config=small_config()) as reader:
        assert bodies(reader) == expected
    with open_small(tmp_path / "s") as store:
        recovery = store.stats().recovery
        assert recovery is not None
        assert (recovery.reason, recovery.walked_count) == ("checkpoint", 500)
        assert bodies(store) == expected
        assert [m.body for m in store.find("orders", "key-77")] == [expected[77]]
        assert store.put(message(500, queue_id=0)).queue_offset == 500


@covers("N4", "N5")
def test_a_torn_tail_is_cut_and_zeroed_and_its_space_is_reused(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(message(i, queue_id=0)) for i in range(10)]
    log = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    torn = receipts[9]
    data[torn.physical_offset + torn.size // 2 : torn.end] = bytes(torn.size - torn.size // 2)
    log.write_bytes(bytes(data))
    (tmp_path / "s" / "abort").touch()
    with open_small(tmp_path / "s") as store:
        assert bodies(store) == [b"body %d" % i for i in range(9)]
        assert store.find("orders", "key-9") == []
        assert log.read_bytes()[torn.physical_offset :] == bytes(LOG_FILE - torn.physical_offset)
        again = store.put(message(9, queue_id=0))
        assert (again.queue_offset, again.physical_offset) == (9, torn.physical_offset)


@pytest.mark.parametrize(
    "at",
    [90, 0, 5, 30, 87],
    ids=["body", "size", "magic", "physical offset", "body length"],
)
def test_one_bad_bit_inside_the_log_costs_one_record(tmp_path: Path, at: int) -> None:
    with open_small(tmp_path / "s") as store:
        receipts = [store.put(message(i, queue_id=0)) for i in range(10)]
    log = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[receipts[4].physical_offset + at] ^= 1
    log.write_bytes(bytes(data))
    (tmp_path / "s" / "abort").touch()
    others = [b"body %d" % i for i in range(10) if i != 4]
    for read_only in (True, False):
        with open_small(tmp_path / "s", read_only=read_only) as store:
            assert [m.body for m in store.read("orders", queue_id=0, start=0)] == others
            assert store.read("orders", queue_id=0, start=4, limit=1)[0].body == b"body 5"
            with pytest.raises((CorruptRecord, NoSuchMessage)):
                store.get(receipts[4].physical_offset)
            assert store.stats().damage == ((receipts[4].physical_offset, receipts[5].physical_offset),)
            if not read_only:
                assert store.put(message(10, queue_id=0)).queue_offset == 10
    assert log.read_bytes()[: receipts[9].end] == bytes(data)[: receipts[9].end], "the damage cuts nothing"


@covers("J6")
def test_lost_queues_and_a_lost_index_are_rebuilt_from_the_log(tmp_path: Path) -> None:
    import shutil

    with open_small(tmp_path / "s") as store:
        for number in range(300):
            store.put(message(number))
    before = {path: path.read_bytes() for path in (tmp_path / "s" / "consumequeue").rglob("*") if path.is_file()}
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    shutil.rmtree(tmp_path / "s" / "index")
    (tmp_path / "s" / "abort").touch()
    with open_small(tmp_path / "s") as store:
        assert [m.body for m in store.find("orders", "key-123")] == [b"body 123"]
    assert {path: path.read_bytes() for path in before} == before


def test_only_one_process_writes_and_the_other_gets_its_pid(tmp_path: Path) -> None:
    child = start_writer(tmp_path / "s", 1)
    wait_until_ready(child)
    try:
        assert writer_of(tmp_path / "s" / "lock") == child.pid
        with pytest.raises(StoreLocked, match=f"process {child.pid} writes this store.*read_only=True"):
            open_small(tmp_path / "s")
    finally:
        child.kill()
        child.wait()
    with open_small(tmp_path / "s") as store, pytest.raises(StoreLocked, match=str(os.getpid())):
        assert store.topics() == ["orders"]
        open_small(tmp_path / "s")


def test_a_reader_in_another_process_follows_a_live_store(tmp_path: Path) -> None:
    child = start_writer(tmp_path / "s", 300, 0.002)
    try:
        assert eventually(lambda: (tmp_path / "s" / "consumequeue" / "orders" / "0").exists(), 30)
        with MessageStore.open(tmp_path / "s", read_only=True, config=small_config()) as reader:
            found: list[bytes] = []
            deadline = time.monotonic() + 30
            while len(found) < 300 and time.monotonic() < deadline:
                found += [m.body for m in reader.read("orders", queue_id=0, start=len(found), limit=50, wait_s=1)]
            assert found == [b"%06d" % number * 50 for number in range(300)]
            assert [m.body for m in reader.find("orders", "key-250")] == [found[250]]
            assert reader.queues("orders")[0].end_offset == 300
    finally:
        child.kill()
        child.wait()


def test_a_reader_follows_a_writer_started_after_it_and_the_next_one_too(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(message(0, queue_id=0))
    with MessageStore.open(tmp_path / "s", read_only=True, config=small_config()) as reader:
        assert bodies(reader) == [b"body 0"]
        for number in (1, 2):
            with open_small(tmp_path / "s") as store:
                store.put(message(number, queue_id=0))
                store.put(message(number, topic=f"new{number}", queue_id=0))
                store.wait_dispatched()
                assert len(reader.read("orders", queue_id=0, start=number, wait_s=10)) == 1
                assert f"new{number}" in reader.topics()
        assert bodies(reader) == [b"body 0", b"body 1", b"body 2"]


def test_with_the_pool_a_clean_close_loses_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path / "s", pool=PoolConfig(enabled=True, buffer_count=2)) as store:
        for number in range(500):
            store.put(message(number, queue_id=0, body=bytes(300)))
    with open_small(tmp_path / "s") as store:
        assert len(bodies(store)) == 500


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("pool", [False, True])
def test_a_closed_store_holds_no_files_so_its_volume_can_be_unmounted(
    tmp_path: Path, read_only: bool, pool: bool
) -> None:
    settings = PoolConfig(enabled=pool, buffer_count=2)
    with open_small(tmp_path / "s", pool=settings) as store:
        for number in range(300):
            store.put(message(number, body=bytes(500)))
        assert len(store.find("orders", "key-7")) == 1
    if read_only:
        with open_small(tmp_path / "s", read_only=True) as store:
            assert len(store.find("orders", "key-7")) == 1
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    open_files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink() and path.exists()]
    assert not [path for path in open_files if path.startswith(str(tmp_path))]


def test_a_program_that_exits_without_closing_its_store_still_closes_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.helpers import message, open_small\n"
        "open_small(Path(sys.argv[1])).put(message(1, queue_id=0))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "s")], check=True, cwd=Path(__file__).parents[2])
    assert not (tmp_path / "s" / "abort").exists()
    with open_small(tmp_path / "s") as store:
        assert bodies(store) == [b"body 1"]


def test_closing_twice_is_the_same_as_once(tmp_path: Path) -> None:
    store = open_small(tmp_path / "s", flush=FlushConfig(sync=True))
    store.put(Message("t", b"x"))
    store.close()
    store.close()


def small_config() -> StoreConfig:
    return StoreConfig.from_properties({"maxHashSlotNum": "100", "maxIndexNum": "400"})


def test_a_deleted_lock_file_lets_no_second_writer_in(tmp_path: Path) -> None:
    program = "import sys; from mqlake import MessageStore; MessageStore.open(sys.argv[1]).close()"
    with open_small(tmp_path):
        (tmp_path / "lock").unlink()
        tried = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
        assert "another process writes this store" in tried.stderr
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == 0
