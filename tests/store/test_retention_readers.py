"""Retention with readers, kill -9 and power cuts: readers get valid bytes or a typed error, and never a gap."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mqlake import OffsetOutOfRange
from mqlake.torture.faults import powercut
from tests.helpers import LOG_FILE, contents_of, covers, message, open_small
from tests.store.retention import BODY, fill, open_filled, queue_files, read_all

FOLLOWER = """
import sys
from mqlake import MessageStore, OffsetOutOfRange
from pathlib import Path
def mapped():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("/commitlog/" in line and line.endswith("(deleted)") for line in lines)
with MessageStore.open(sys.argv[1], read_only=True) as store:
    scan = store.scan(columns=["queue_offset"], batch_bytes=4096)
    numbers = next(scan)["queue_offset"].to_pylist()
    first = store.read("orders", start=0, limit=1)[0]
    print("ready", flush=True)
    sys.stdin.readline()
    size = store.stats().file_size_bytes
    try:
        for batch in scan:
            numbers += batch["queue_offset"].to_pylist()
    except OffsetOutOfRange as error:
        print("scan", numbers == list(range(len(numbers))), error.first_offset, flush=True)
    del scan, batch
    (queue,) = store.queues("orders")
    try:
        store.read("orders", start=0)
    except OffsetOutOfRange as error:
        print("read", (error.first_offset, error.end_offset) == (queue.first_offset, queue.end_offset), flush=True)
    oldest = store.read("orders", start=queue.first_offset, limit=1)[0]
    print("first", store.first_offset, oldest.physical_offset, store.seek_time("orders", 0) == queue.first_offset)
    print("find", len(store.find("orders", "key-0")), len(store.find("orders", f"key-{queue.first_offset}")))
    print("held", mapped(), flush=True)
"""


@covers("O4", "B17")
def test_a_follower_keeps_the_file_it_scans_and_notices_that_the_others_are_deleted(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 8) as store:
        reader = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        store.retain(before_offset=5 * LOG_FILE)
        answers, _ = reader.communicate("\n", timeout=30)
        assert answers.splitlines() == [
            f"scan True {5 * LOG_FILE}",
            "read True",
            f"first {5 * LOG_FILE} {5 * LOG_FILE} True",
            "find 0 1",
            "held 0",
        ]


@covers("O4")
def test_a_view_of_a_deleted_file_stays_valid_until_it_is_released(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 4) as store:
        file = contents_of(store).log_files.file_at(0)
        assert file is not None
        view, copy = file.view(0, LOG_FILE), bytes(file.pages)
        del file
        store.retain(before_offset=3 * LOG_FILE)
        fill(store, 3)
        assert view == copy
        assert _deleted_maps(store.path) == 1  # the other two are unmapped: their blocks are free
        view.release()
        assert _deleted_maps(store.path) == 0


@covers("O4")
def test_a_scan_finishes_a_file_that_is_deleted_under_it_and_raises_after_it(tmp_path: Path) -> None:
    with open_filled(tmp_path / "store", 4) as store:
        scan = store.scan(columns=["queue_offset"], batch_bytes=4096)
        numbers = next(scan)["queue_offset"].to_pylist()
        in_first = sum(m.physical_offset < LOG_FILE for m in store.read("orders", start=0, limit=200))
        store.retain(before_offset=2 * LOG_FILE)
        with pytest.raises(OffsetOutOfRange) as caught:
            for batch in scan:
                numbers += batch["queue_offset"].to_pylist()
        assert numbers == list(range(in_first))
        assert (caught.value.offset, caught.value.first_offset) == (LOG_FILE, 2 * LOG_FILE)


def _deleted_maps(store: Path) -> int:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(f"{store}/commitlog/" in line and line.endswith("(deleted)") for line in maps)


def test_a_follower_opens_and_reads_while_files_are_deleted(tmp_path: Path) -> None:
    """Every message it gets has the requested queue offset; deleted ones are out of range; nothing else happens."""
    program = """
import sys, time
from mqlake import MessageStore, OffsetOutOfRange
until = time.monotonic() + 2
seen = opened = first = 0
while time.monotonic() < until or opened <= 3 or seen <= 1000 or first <= 5 * 65536:
    opened += 1
    with MessageStore.open(sys.argv[1], read_only=True) as store:
        first = store.first_offset
        for _ in range(20):
            (queue,) = store.queues("orders")
            try:
                for number, message in enumerate(store.read("orders", start=queue.first_offset, limit=64)):
                    assert message.queue_offset == queue.first_offset + number, (message, queue)
                    seen += 1
            except OffsetOutOfRange:
                pass
print("done")
"""
    with open_filled(tmp_path / "store", 4) as store:
        reader = subprocess.Popen([sys.executable, "-c", program, str(store.path)], stdout=subprocess.PIPE, text=True)
        while reader.poll() is None:
            for _ in range(50):
                store.put(message(0, queue_id=0, body=BODY))
            store.retain(keep_bytes=3 * LOG_FILE)
        assert reader.communicate()[0] == "done\n"


CLEANS = """
import sys
from pathlib import Path
from tests.helpers import LOG_FILE, message
from tests.store.retention import BODY, open_filled
with open_filled(Path(sys.argv[1]), 0) as store:
    print("idle", store.put(message(0, "idle", queue_id=0)).queue_offset, flush=True)
    while True:
        for _ in range(300):
            receipt = store.put(message(0, queue_id=0, body=BODY))
        print("put", receipt.queue_offset, flush=True)
        print("first", store.retain(keep_bytes=2 * LOG_FILE).first_offset, flush=True)
"""
DIES_CLEANING = """
import os, signal, sys
from pathlib import Path
from tests.helpers import LOG_FILE, message
from tests.store.retention import fill, open_filled
path, deletions = sys.argv[1], int(sys.argv[2])
def rule(start):
    if start == deletions * LOG_FILE:
        print("first", start, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return "it is the next"
with open_filled(Path(path), 0) as store:
    print("idle", store.put(message(0, "idle", queue_id=0)).queue_offset)
    fill(store, 8)
    store.flush()
    print("put", store.queues("orders")[0].end_offset - 1)
    if deletions == 7:
        store.retain(before_offset=store.end_offset)
        print("first", store.first_offset, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    store.retention.retain(rule)
"""


def _check(path: Path, answers: list[list[str]]) -> None:
    """Require that reported deletions hold: the log starts no earlier, has no gap, and queue offsets continue."""
    told = {kind: max(int(number) for name, number in answers if name == kind) for kind in ("idle", "put", "first")}
    with open_small(path) as store:
        assert store.first_offset >= told["first"]
        (queue,) = store.queues("orders")
        kept = [m.queue_offset for m in read_all(store, queue.first_offset, told["put"] + 1)]
        assert kept == list(range(queue.first_offset, told["put"] + 1))
        assert store.put(message(0, queue_id=0)).queue_offset == queue.end_offset
        assert store.put(message(0, "idle", queue_id=0)).queue_offset == told["idle"] + 1
        assert int(queue_files(store)[0]) <= queue.first_offset * 20


@covers("O4", "N6")
def test_a_kill_during_cleaning_leaves_a_whole_store(tmp_path: Path) -> None:
    draw = random.Random(7)
    answers: list[list[str]] = []
    for _ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", CLEANS, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        answers += [child.stdout.readline().split() for _ in range(draw.randrange(3, 8))]
        time.sleep(draw.random() * 0.02)
        child.kill()
        answers += [line.split() for line in child.communicate()[0].splitlines() if len(line.split()) == 2]
        _check(tmp_path / "store", answers)
        answers.append(["idle", str(max(int(number) for kind, number in answers if kind == "idle") + 1)])
    assert max(int(number) for kind, number in answers if kind == "first") > 5 * LOG_FILE


@covers("O4")
@pytest.mark.parametrize("deletions", [1, 2, 6, 7])
def test_a_power_cut_after_any_deletion_leaves_a_log_without_a_gap(tmp_path: Path, deletions: int) -> None:
    """Whatever reached the disk, deleted files stay deleted, and an emptied queue keeps its next queue offset."""
    live, shadow, state = tmp_path / "live", tmp_path / "shadow", tmp_path / "state"
    live.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", DIES_CLEANING, str(live), str(deletions)],
        env=powercut.watch_env(live, shadow),
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == -9
    answers = [line.split() for line in done.stdout.splitlines()]
    assert answers[-1] == ["first", str(deletions * LOG_FILE)]
    for seed in range(12):
        powercut.crash_state(live, shadow, state, seed, tear=512)
        _check(state, answers)
