"""A path where no store can be opened: the error says why, and what to do."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake import (
    CommitLogConfig,
    ConsumeQueueConfig,
    DiskFull,
    FileFailed,
    MessageStore,
    NotAStore,
    StoreError,
    StoreLocked,
)
from mqlake.inspect.repair import repair
from mqlake.torture.faults.smalldisk import NotPermitted, mount, unmount
from tests.helpers import bodies, eventually, message, open_small

REMEDIES = (
    "name a folder",
    "name another folder",
    "name an empty or a new folder",
    "change its permissions",
    "check the path",
)


def refused(path: Path, **how: bool) -> str:
    with pytest.raises(NotAStore) as caught:
        open_small(path, **how)
    assert caught.value.path == path
    assert any(remedy in str(caught.value) for remedy in REMEDIES)
    return str(caught.value)


def test_a_store_cannot_be_opened_at_the_path_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert refused(tmp_path / "file").startswith(f"{tmp_path / 'file'}: it is a file; name a folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_path_below_a_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "Not a directory" in refused(tmp_path / "file" / "store")


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "it holds something that is not a store (notes.txt)" in refused(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("how", [{"read_only": True}, {"create": False}], ids=str)
def test_a_store_that_must_exist_is_not_created(tmp_path: Path, how: dict[str, bool]) -> None:
    assert "there is no such folder" in refused(tmp_path / "none", **how)
    assert not (tmp_path / "none").exists()
    assert "it holds no store" in refused(tmp_path, **how)
    assert os.listdir(tmp_path) == []


def test_a_store_that_cannot_be_written_opens_for_reading_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_small(tmp_path) as store:
        store.put(message(0, queue_id=0))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everywhere
    text = refused(tmp_path)
    assert text.endswith("it cannot be written; change its permissions, or open it with read_only=True")
    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert bodies(reader) == [b"body 0"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_cannot_be_created_in_a_folder_without_write_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    assert "it cannot be created: Permission denied" in refused(tmp_path / "store")


def test_a_store_with_rocksdb_queues_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "consumequeue" / "CURRENT").write_text("MANIFEST-000001")
    with pytest.raises(
        NotAStore, match=r"storeType=defaultRocksDB.*not supported; start RocketMQ on it with storeType"
    ):
        open_small(tmp_path)


def test_a_store_with_tiered_storage_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "tieredStoreMetadata.json").write_text("{}")
    with pytest.raises(NotAStore, match=r"tiered storage, which is not supported; copy commitlog"):
        open_small(tmp_path)


@pytest.mark.parametrize("name", ["n" * 300, "a\0b"], ids=["too long", "with a null byte"])
def test_a_store_cannot_be_opened_at_a_path_that_the_system_refuses(tmp_path: Path, name: str) -> None:
    assert refused(tmp_path / name).startswith(f"{tmp_path / name}: ")


@pytest.mark.parametrize("kind", ["file", "FIFO", "link to itself", "link to nothing"])
def test_something_else_instead_of_a_queue_is_refused_with_a_remedy_that_helps(tmp_path: Path, kind: str) -> None:
    with open_small(tmp_path) as store:
        store.put(message(0, queue_id=0))
    queue = tmp_path / "consumequeue" / "orders" / "0"
    shutil.rmtree(queue)
    if kind == "file":
        queue.write_text("x")
    elif kind == "FIFO":
        os.mkfifo(queue)
    else:
        queue.symlink_to("0" if kind == "link to itself" else "nowhere")
    with pytest.raises(FileFailed, match="mqlake repair"):
        open_small(tmp_path)
    repair(tmp_path)
    with open_small(tmp_path) as store:
        assert bodies(store) == [b"body 0"]


# ---- locked

HOLD = """
import sys
from pathlib import Path
from tests.helpers import message, open_small
with open_small(Path(sys.argv[1])) as store:
    store.put(message(0, queue_id=0))
    store.wait_dispatched()
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_store_that_another_process_writes_names_that_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        with pytest.raises(StoreLocked) as caught:
            open_small(tmp_path)
        assert caught.value.pid == holder.pid
        assert f"process {holder.pid} writes this store; stop it, or open with read_only=True" in str(caught.value)
        with MessageStore.open(tmp_path, read_only=True) as reader:  # the first remedy works
            assert bodies(reader) == [b"body 0"]
        holder.stdin.close()
    with open_small(tmp_path) as store:  # and so does the second
        assert store.put(message(1, queue_id=0)).queue_offset == 1


def test_a_store_that_this_process_writes_names_this_process(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        for path in (tmp_path, tmp_path / ".." / tmp_path.name):
            with pytest.raises(StoreLocked, match=rf"this process \(pid {os.getpid()}\) already has it open") as caught:
                open_small(path)
            assert caught.value.pid == os.getpid()
        assert store.put(message(0, queue_id=0)).queue_offset == 0  # the lock is still held, and the store works
    with open_small(tmp_path) as store:
        assert bodies(store) == [b"body 0"]


def test_a_refused_opening_releases_the_lock(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.put(message(0, queue_id=0))
    stray = tmp_path / "commitlog" / "stray"
    stray.write_text("")
    with pytest.raises(StoreError):
        open_small(tmp_path)
    stray.unlink()
    with open_small(tmp_path) as store:
        assert bodies(store) == [b"body 0"]


# ---- full


@contextlib.contextmanager
def disk_of(folder: Path, size: str, kind: str) -> Iterator[Path]:
    """Mount a small disk; skip the test if mounts are not permitted."""
    try:
        disk = mount(folder, size, kind)
    except NotPermitted as refusal:
        pytest.skip(str(refusal))
    try:
        yield disk
    finally:
        # Lazily: mapped files keep a disk busy until their last reference is gone, even one in a logged traceback.
        subprocess.run(["umount", "--lazy", disk], check=True)
        unmount(disk)


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk_refuses_puts_until_space_is_freed(tmp_path: Path, kind: str) -> None:
    with disk_of(tmp_path / "disk", "16M", kind) as disk:
        fill_and_go_on(disk, 1 << 20)


def fill_and_go_on(disk: Path, file_size: int) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(8 << 20))
    with open_small(disk / "store", commit_log=CommitLogConfig(file_size_bytes=file_size)) as store:
        stored: list[bytes] = []
        with pytest.raises(DiskFull) as caught:
            while len(stored) < 1000:
                body = b"%d " % len(stored) * 20_000
                store.put(message(0, queue_id=0, body=body))
                stored.append(body)
        text = str(caught.value)
        assert f"{file_size} bytes could not be allocated (No space left on device)" in text
        assert text.endswith("free space or use a smaller file size, then put again")
        end = store.end_offset
        with pytest.raises(DiskFull):
            store.put(message(0, queue_id=0, body=bytes(200_000)))
        assert store.end_offset == end
        assert bodies(store) == stored  # reads still work
        ballast.unlink()
        store.put(message(0, queue_id=0, body=b"there is space again"))
        assert bodies(store)[-1] == b"there is space again"
    with MessageStore.open(disk / "store") as store:
        assert bodies(store) == [*stored, b"there is space again"]


READ_IN_ANOTHER_PROCESS = """
import sys
from mqlake import MessageStore
with MessageStore.open(sys.argv[1], read_only=True) as store:
    print([store.read(topic, queue_id=0) for topic in ("late", "full")])
"""


def test_a_reader_of_queues_that_have_no_blocks_on_a_full_tmpfs_lives(tmp_path: Path) -> None:
    """A page of a tmpfs that was never written needs a block even to be read: else the process gets SIGBUS."""
    with disk_of(tmp_path / "disk", "8M", "tmpfs") as disk:
        queue_file = disk / "store" / "consumequeue" / "late" / "0" / f"{0:020}"
        page = ConsumeQueueConfig(file_size_bytes=20 * 4096)
        with open_small(disk / "store", consume_queue=page) as store:
            store.put_many([message(number, "full", queue_id=0) for number in range(204)])  # all but 16 bytes of a page
            store.wait_dispatched()
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(bytes(4096))
            store.put(message(0, "late", queue_id=0))
            assert eventually(queue_file.exists) and queue_file.stat().st_blocks == 0
            reading = [sys.executable, "-c", READ_IN_ANOTHER_PROCESS, str(disk / "store")]
            read = subprocess.run(reading, capture_output=True, text=True, timeout=60, check=False)
            assert read.returncode == 0, read.stderr
            ballast.unlink()
            store.wait_dispatched(30)
            assert bodies(store, "late") == [b"body 0"]


def test_a_disk_too_small_for_a_log_file_refuses_the_first_put(tmp_path: Path) -> None:
    with disk_of(tmp_path / "disk", "1M", "tmpfs") as disk:
        refuse_the_first_put(disk / "store", 4 << 20)


def refuse_the_first_put(path: Path, file_size: int) -> None:
    with open_small(path, commit_log=CommitLogConfig(file_size_bytes=file_size)) as store:
        with pytest.raises(DiskFull, match=f"{file_size} bytes could not be allocated"):
            store.put(message(0))
        assert store.end_offset == 0


def test_a_disk_without_space_for_queues_is_reported_and_dispatch_catches_up_when_reopened(
    tmp_path: Path,
) -> None:
    with disk_of(tmp_path / "disk", "4M", "tmpfs") as disk:
        stored = fill_all_but_the_log(disk)
        with MessageStore.open(disk / "store") as store:
            assert bodies(store) == [b"body %d" % number for number in range(stored)]


def fill_all_but_the_log(disk: Path) -> int:
    """Fill the disk: the log has its blocks, so puts continue; queues have none, so their entries fail."""
    with open_small(disk / "store", commit_log=CommitLogConfig(file_size_bytes=1 << 20)) as store:
        store.put(message(0, queue_id=0))
        assert store.wait_dispatched()
        ballast = disk / "ballast"
        stored = 1
        with ballast.open("wb", buffering=0) as file:
            while store.stats().failure is None and stored < 5000:
                with contextlib.suppress(OSError):  # each time: a refused allocation of a spare file gives blocks back
                    while True:
                        file.write(bytes(4096))
                store.put(message(stored, queue_id=0))
                stored += 1
                store.wait_dispatched(0.01)
        assert "No space left on device" in str(store.stats().failure)
        assert store.get(0).body == b"body 0"
        ballast.unlink()
    return stored
