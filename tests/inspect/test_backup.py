"""A backup of a live store has all before its offset and nothing after it; it is checked, and whole or absent."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqlake import BackupFailed, Durability, FlushConfig, NotAStore, PoolConfig, RetentionConfig, StoreLocked
from mqlake.files.layout import Layout
from mqlake.files.positions import APPENDED, Positions
from mqlake.inspect import backup as module
from mqlake.inspect.backup import Backup, backup
from mqlake.inspect.check import check
from mqlake.inspect.findings import Severity
from mqlake.store.gates import Gates
from tests.golden.stores import NAMES, GoldenStore
from tests.helpers import LOG_FILE, bodies, eventually, message, open_small, writer_of
from tests.interrupting import Interrupted, interrupt_at, interrupted_once

WRITER = """
import sys
from pathlib import Path
from mqlake import FlushConfig, PoolConfig
from tests.helpers import message, open_small, writer_of
mode = sys.argv[2]
flush = FlushConfig(sync=mode == "sync", interval_ms=20, queue_interval_ms=10, queue_thorough_interval_ms=50)
pool = PoolConfig(enabled=mode == "pool", buffer_count=2, commit_interval_ms=5)
with open_small(Path(sys.argv[1]), flush=flush, pool=pool) as store:
    with store.consumer("group", "orders") as consumer:
        number = 0
        while True:
            receipt = store.put(message(number, queue_id=number % 3, body=b"%06d" % number * (number % 60)))
            print(number, receipt.end, flush=True)
            if number % 50 == 0:
                consumer.poll(timeout_s=1)
                consumer.commit()
            number += 1
"""


@contextmanager
def writing(path: Path, mode: str) -> Iterator[list[tuple[int, int]]]:
    """Run a process that puts all the time; the list grows with what it acknowledged."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), mode]
    acknowledged: list[tuple[int, int]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as writer:
        assert writer.stdout is not None

        def listen() -> None:
            for line in writer.stdout or ():
                if line.endswith("\n"):  # the last line of a killed writer may be incomplete
                    number, end = line.split()
                    acknowledged.append((int(number), int(end)))

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            assert eventually(lambda: len(acknowledged) > 600, 60)
            yield acknowledged
        finally:
            writer.kill()
            listener.join()


def numbers_in(path: Path) -> list[int]:
    """Return the numbers of all messages of a store, read through its queues."""
    with open_small(path, read_only=True) as store:
        keys = []
        for queue in store.queues("orders"):
            start = queue.first_offset
            while batch := store.read("orders", queue_id=queue.queue_id, start=start, limit=500):
                assert [m.queue_offset for m in batch] == [*range(start, start + len(batch))]
                keys += [int(m.keys[0].removeprefix("key-")) for m in batch]
                start += len(batch)
        return sorted(keys)


def require_whole(made: Backup, source: Path) -> None:
    assert made.report.findings == ()
    assert check(made.path).findings == ()
    layout = Layout(made.path)
    assert not layout.abort.exists()
    assert [path.name for path in made.path.parent.glob(".*.backup")] == []
    assert not any(name.startswith("backup-") for name in Gates(Layout(source).gates).offsets())
    assert not any(name.startswith("backup-") for name in Gates(layout.gates).offsets())


@pytest.mark.parametrize("mode", ["async", "sync", "pool"])
def test_a_backup_of_a_live_store_has_what_was_acknowledged_before_it_and_nothing_after_its_offset(
    tmp_path: Path, mode: str
) -> None:
    with writing(tmp_path / "s", mode) as acknowledged:
        for number in range(4):
            before = list(acknowledged)
            positions = Positions.open(Layout(tmp_path / "s").positions)
            assert positions is not None
            if mode == "pool":  # only its own process sees the pool
                before = [ack for ack in before if ack[1] <= positions.words[APPENDED]]
            made = backup(tmp_path / "s", tmp_path / f"backup-{number}")
            assert made.live
            require_whole(made, tmp_path / "s")
            found = numbers_in(made.path)
            assert found == [*range(len(found))]
            assert found[-1] >= before[-1][0]
            assert eventually(lambda end=made.end_offset: acknowledged[-1][1] > end)  # type: ignore[misc]
            assert all((key in range(len(found))) == (end <= made.end_offset) for key, end in list(acknowledged))
    with open_small(tmp_path / "backup-3") as store:
        assert store.recovery is not None and store.recovery.reason == "checkpoint"
        assert store.end_offset == made.end_offset
        with store.consumer("group", "orders") as consumer:  # progress is not ahead of the queues
            seen = [m for _ in range(60) for m in consumer.poll(timeout_s=0.01)]
            assert seen
        assert store.put(message(0, queue_id=0)).physical_offset >= made.end_offset


def test_a_backup_of_a_store_in_this_process_is_whole_and_restored_by_a_plain_copy(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(1500):
            store.put(message(number, queue_id=0))
        made = backup(tmp_path / "s", tmp_path / "b")
        assert store.put(message(0, topic="after")).physical_offset == made.end_offset
        require_whole(made, tmp_path / "s")
    subprocess.run(["cp", "-a", tmp_path / "b", tmp_path / "restored"], check=True)
    with open_small(tmp_path / "restored") as store:
        assert store.recovery is not None and store.recovery.walked_count == 0
        assert bodies(store) == [b"body %d" % number for number in range(1500)]
        assert store.topics() == ["orders"]
        assert [m.body for m in store.find("orders", "key-1499")] == [b"body 1499"]


def test_a_backup_of_a_closed_store_is_the_store(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(1500):
            store.put(message(number, queue_id=0))
        end = store.end_offset
    (tmp_path / "b").mkdir()
    made = backup(tmp_path / "s", tmp_path / "b")
    assert (made.first_offset, made.end_offset, made.live) == (0, end, False)
    assert made.reflinked_count + made.copied_count > 3
    require_whole(made, tmp_path / "s")
    for folder in ("commitlog", "consumequeue", "index"):
        for file in (tmp_path / "s" / folder).rglob("*"):
            if file.is_file():
                assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "s")).read_bytes()
                assert file.stat().st_ino != (tmp_path / "b" / file.relative_to(tmp_path / "s")).stat().st_ino


def test_a_backup_after_an_unclean_stop_holds_what_recovery_would_serve(tmp_path: Path) -> None:
    with open_small(tmp_path / "live", flush=FlushConfig(interval_ms=60_000, thorough_interval_ms=60_000)) as store:
        receipts = [store.put(message(number, queue_id=0)) for number in range(300)]
        assert store.wait_dispatched()
        shutil.copytree(tmp_path / "live", tmp_path / "s", ignore=shutil.ignore_patterns("scratch", "spare"))
    torn = receipts[280]
    with (tmp_path / "s" / f"commitlog/{0:020d}").open("r+b") as file:
        file.seek(torn.physical_offset + 92)
        file.write(b"\xff")
    made = backup(tmp_path / "s", tmp_path / "b")
    assert made.end_offset == torn.physical_offset
    assert made.report.holds
    assert numbers_in(tmp_path / "b") == [*range(280)]
    assert (tmp_path / "s" / "abort").exists(), "the store itself is not changed"


@pytest.mark.parametrize("damaged", [20, 59], ids=["in the middle", "at the end"])
def test_a_backup_of_a_live_store_with_a_damaged_record_has_all_the_others_and_names_it(
    tmp_path: Path, damaged: int
) -> None:
    with open_small(tmp_path / "s", flush=FlushConfig(interval_ms=20, queue_thorough_interval_ms=60_000)) as store:
        receipts = [store.put(message(number, queue_id=0)) for number in range(60)]
        store.flush()
        assert store.wait_dispatched()
        broken = receipts[damaged].physical_offset
        with (tmp_path / "s" / f"commitlog/{0:020d}").open("r+b") as file:
            file.seek(broken + 92)
            file.write(b"\xff")
        assert broken in [finding.offset for finding in check(tmp_path / "s").findings], "check of a live store sees it"
        made = store.backup(tmp_path / "b")
        assert made.end_offset == store.end_offset
    assert [finding.offset for finding in made.report.findings if finding.severity == Severity.ERROR] == [broken]
    with open_small(tmp_path / "b", read_only=True) as copy:
        whole = [number for number in range(60) if number != damaged]
        assert [held.body for held in copy.read("orders", limit=60)] == [b"body %d" % number for number in whole]


@pytest.mark.parametrize("name", [name for name in NAMES if "crash" not in name and "empty" not in name])
def test_stores_that_rocketmq_closed_are_backed_up(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in golden.path.rglob("*")}
    made = backup(golden.path, tmp_path / "b", config=golden.config)
    assert made.end_offset == golden.expected("store")[0]["maxPhyOffset"]
    assert made.report.holds
    assert {path: path.stat().st_mtime_ns for path in golden.path.rglob("*")} == before


def test_queue_offsets_continue_after_retention_deleted_all_messages_of_a_queue(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as store:
        for number in range(30):
            store.put(message(number, topic="old", queue_id=0))
        for number in range(1500):
            store.put(message(number, queue_id=0))
        assert store.wait_dispatched()
        assert store.retain(before_offset=LOG_FILE).file_count == 1
        made = backup(tmp_path / "s", tmp_path / "b")
        assert made.first_offset == LOG_FILE
        require_whole(made, tmp_path / "s")
    with open_small(tmp_path / "b") as store:
        assert store.put(message(30, topic="old", queue_id=0)).queue_offset == 30


def test_retention_waits_for_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[dict[str, int]] = []
    copy_log = module._Copier._copy_log

    def watched(copier: module._Copier, end: int) -> None:
        held.append(Gates(Layout(tmp_path / "s").gates).offsets())
        copy_log(copier, end)

    monkeypatch.setattr(module._Copier, "_copy_log", watched)
    with open_small(tmp_path / "s") as store:
        store.put(message(0))
        gates = Gates(Layout(tmp_path / "s").gates)
        gates.hold("backup-999999999-0", 0)
        gates.hold("archive", 7)
        (tmp_path / "s/mqlake/gates/backup-999999998-1.new").touch()
        backup(tmp_path / "s", tmp_path / "b")
        (offsets,) = held
        assert offsets.pop("archive") == 7
        assert list(offsets.values()) == [0], "the gate of a killed backup is gone"
        assert gates.offsets() == {"archive": 7}
        assert [path.name for path in (tmp_path / "s/mqlake/gates").iterdir()] == ["archive"], "nothing is left over"


@pytest.mark.parametrize("name", ["hold", "release"])
def test_a_backup_that_a_signal_interrupts_leaves_no_gate(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = interrupted_once(getattr(Gates, name)) if name == "hold" else interrupted_before(Gates.release)
    monkeypatch.setattr(Gates, name, interrupted)
    with open_small(tmp_path / "s") as store:
        store.put(message(0))
        with pytest.raises(Interrupted):
            backup(tmp_path / "s", tmp_path / "b")
        assert Gates(Layout(tmp_path / "s").gates).offsets() == {}
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_backup_that_a_signal_interrupts_as_the_copy_is_opened_leaves_no_thread_and_no_folder(tmp_path: Path) -> None:
    lines = ("runtime/whole.py", "store/writer.py")
    with open_small(tmp_path / "s") as store:
        store.put(message(0))
        backup(tmp_path / "s", tmp_path / "b")
        shutil.rmtree(tmp_path / "b")
        threads = set(threading.enumerate())
        for number in itertools.count():
            if not interrupt_at(number, lambda: backup(tmp_path / "s", tmp_path / "b"), lines):
                break
            assert [path.name for path in tmp_path.iterdir()] == ["s"]
            assert eventually(lambda: set(threading.enumerate()) <= threads), f"line {number} left a thread"
        assert number > 10
    assert check(tmp_path / "b").findings == ()


def interrupted_before(function: Any) -> Any:
    calls = itertools.count()

    def call(*args: Any) -> None:
        if next(calls) == 0:
            raise Interrupted
        function(*args)

    return call


@pytest.mark.parametrize("fault", ["a file is gone", "the copy is damaged", "the writer is stuck"])
def test_a_backup_that_fails_leaves_nothing(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_small(tmp_path / "s", retention=RetentionConfig(enabled=False)) as store:
        for number in range(2000):
            store.put(message(number, queue_id=0))
        assert store.wait_dispatched()
        copy = module._Files.copy
        victim = f"{LOG_FILE:020d}"

        def faulty(files: module._Files, source: Path, target: Path, *, stop: int | None = None) -> None:
            if source.name == victim and fault == "a file is gone" and source.parent.name == "commitlog":
                raise FileNotFoundError(source)
            copy(files, source, target, stop=stop)
            if source.name == victim and fault == "the copy is damaged" and source.parent.name == "commitlog":
                with target.open("r+b") as damaged:
                    damaged.seek(92)
                    damaged.write(b"\xff\xff\xff")

        monkeypatch.setattr(module._Files, "copy", faulty)
        if fault == "the writer is stuck":
            monkeypatch.setattr(module, "SETTLE_S", 0.05)
            released = threading.Event()
            holder = threading.Thread(target=writer_of(store).dispatcher.run, args=(lambda: released.wait(30),))
            holder.start()
            store.put(message(0))
        with pytest.raises(BackupFailed, match="no backup was made"):
            backup(tmp_path / "s", tmp_path / "b")
        if fault == "the writer is stuck":
            released.set()
            holder.join()
        assert {path.name for path in tmp_path.iterdir()} == {"s"}
        assert Gates(Layout(tmp_path / "s").gates).offsets() == {}


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    open_small(tmp_path / "s").close()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()
    with pytest.raises(NotAStore, match="name an empty or a new folder"):
        backup(tmp_path / "s", tmp_path / "b")
    with pytest.raises(NotAStore):
        backup(tmp_path / "none", tmp_path / "c")
    with pytest.raises(NotAStore, match="outside the store"):
        backup(tmp_path / "s", tmp_path / "s" / "backup")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine"]


HOLDER = """
import fcntl, sys
lock = open(sys.argv[1], "r+b")
fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_store_being_written_by_another_program_is_refused(tmp_path: Path) -> None:
    open_small(tmp_path / "s").close()
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "s" / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreLocked, match=str(holder.pid)):
            backup(tmp_path / "s", tmp_path / "b")
        holder.communicate()
    assert not (tmp_path / "b").exists()


def test_files_share_their_blocks_if_the_file_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy stands in for the request, which this file system may not support."""
    asked: list[tuple[int, int]] = []

    def clone(write: int, request: int, read: int) -> None:
        assert request == module.FICLONE
        asked.append((write, read))
        os.pwrite(write, os.pread(read, os.fstat(read).st_size, 0), 0)

    with open_small(tmp_path / "s") as store:
        for number in range(1500):
            store.put(message(number, queue_id=0))
    with monkeypatch.context() as patch:
        patch.setattr("mqlake.inspect.backup.fcntl.ioctl", clone)
        made = backup(tmp_path / "s", tmp_path / "b")
    assert made.reflinked_count == len(asked) > 3
    assert made.copied_count == 1, "the last log file, up to the offset"
    assert numbers_in(made.path) == [*range(1500)]


def test_a_backup_by_the_store_itself_includes_the_pool(tmp_path: Path) -> None:
    pool = PoolConfig(enabled=True, buffer_count=2, commit_interval_ms=60_000, commit_thorough_interval_ms=60_000)
    with open_small(tmp_path / "s", pool=pool) as store:
        for number in range(10):
            assert store.put(message(number, queue_id=0)).durability is Durability.MEMORY
        made = store.backup(tmp_path / "copy")
        assert made.report.holds
    with open_small(tmp_path / "copy", read_only=True) as copy:
        assert bodies(copy) == [b"body %d" % number for number in range(10)]


def test_a_backup_for_which_there_is_no_room_fails_by_name_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(tmp_path / "s") as store:
        store.put(message(1))

        def refuse(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("mqlake.inspect.backup.os.pwrite", refuse)
        monkeypatch.setattr("mqlake.inspect.backup.fcntl.ioctl", refuse)
        with pytest.raises(BackupFailed, match="No space left on device"):
            store.backup(tmp_path / "copies" / "b")
        assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.parametrize("name", ["file/below", "\0", "a" * 300], ids=["below a file", "zero byte", "too long"])
def test_a_backup_to_an_impossible_place_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with open_small(tmp_path / "s") as store, pytest.raises((BackupFailed, NotAStore)):
        store.backup(tmp_path / name)
