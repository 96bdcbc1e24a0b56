"""A store has one writer, whatever other code does with the lock file, and whoever the other writer is."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mqlake import BadFile, StoreLocked
from mqlake.files import lock as lock_module
from mqlake.files.lock import StoreLock, writer_of
from tests.helpers import eventually

TRY_POSIX = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        sys.exit("locked")
"""
HOLD_POSIX = """
import fcntl, sys
with open(sys.argv[1], "w+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    file.write(b"lock")
    file.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""
TRY_OURS = """
import sys
from pathlib import Path
from mqlake.files.lock import StoreLock
StoreLock(Path(sys.argv[1]))
"""
HOLD_OURS = """
import sys
from pathlib import Path
from mqlake.files.lock import StoreLock
held = StoreLock(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


def run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)


def hold(program: str, path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_copying_the_store_in_this_process_does_not_release_the_lock(tmp_path: Path) -> None:
    store = tmp_path / "s"
    store.mkdir()
    held = StoreLock(store / "lock")
    shutil.copytree(store, tmp_path / "backup")
    tried = run(TRY_OURS, store / "lock")
    assert f"process {os.getpid()} writes this store" in tried.stderr
    held.release()
    assert run(TRY_OURS, store / "lock").returncode == 0


def test_our_lock_and_rocketmqs_exclude_each_other(tmp_path: Path) -> None:
    """RocketMQ takes a POSIX lock on the first byte: Java's FileChannel.tryLock(0, 1, false)."""
    path = tmp_path / "lock"
    held = StoreLock(path)
    assert run(TRY_POSIX, path).stderr == "locked\n"
    held.release()
    assert path.read_bytes() == b"lock"
    assert run(TRY_POSIX, path).returncode == 0
    child = hold(HOLD_POSIX, path)
    try:
        assert writer_of(path) == child.pid
        with pytest.raises(StoreLocked, match=f"process {child.pid} writes"):
            StoreLock(path)
    finally:
        child.communicate("")
    assert writer_of(path) == 0
    StoreLock(path).release()


def test_the_holder_is_named_and_a_killed_holder_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = hold(HOLD_OURS, path)
    assert writer_of(path) == child.pid
    with pytest.raises(StoreLocked, match=f"process {child.pid} writes"):
        StoreLock(path)
    child.kill()
    child.communicate()
    assert path.read_bytes().startswith(b"lock")
    assert writer_of(path) == 0
    StoreLock(path).release()


def test_a_holder_that_has_not_written_its_pid_yet_still_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = hold(HOLD_OURS, path)
    path.write_bytes(b"lock")
    assert writer_of(path) == lock_module.UNKNOWN
    with pytest.raises(StoreLocked, match="another process writes"):
        StoreLock(path)
    child.communicate("")


def test_a_forked_child_neither_keeps_nor_takes_the_lock(tmp_path: Path) -> None:
    """The child outlives its parent's release of the lock, and can exit while the parent still holds it."""
    path = tmp_path / "lock"
    held = StoreLock(path)
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(write_end)
        held.release()
        os._exit(0 if os.read(read_end, 1) == b"" else 1)
    os.close(read_end)
    assert run(TRY_OURS, path).returncode != 0
    held.release()
    assert run(TRY_OURS, path).returncode == 0, "the child must not hold it"
    os.close(write_end)
    os.waitpid(child, 0)


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = HOLD_OURS.replace("print(", "import os\nif not os.fork():\n    sys.stdin.read()\n    os._exit(0)\nprint(")
    parent = hold(program, path)
    parent.kill()
    parent.wait()
    assert eventually(lambda: writer_of(path) == 0)
    assert parent.stdin is not None and parent.stdout is not None
    parent.stdin.close()
    parent.stdout.close()


def test_a_system_without_such_locks_falls_back_to_rocketmqs_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    real = fcntl.fcntl

    def without(descriptor: int, command: int, argument: bytes) -> object:
        if command == fcntl.F_OFD_SETLK:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", without)
    held = StoreLock(path)
    assert writer_of(path) == os.getpid()
    assert run(TRY_POSIX, path).stderr == "locked\n"
    assert run(TRY_OURS, path).returncode != 0
    with pytest.raises(StoreLocked):
        StoreLock(path)
    held.release()
    assert run(TRY_OURS, path).returncode == 0


def test_a_lock_that_cannot_be_written_leaves_no_descriptor_and_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = descriptors()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        StoreLock(path)
    monkeypatch.undo()
    assert descriptors() == before
    StoreLock(path).release()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
def test_a_lock_that_is_not_a_regular_file_is_refused_without_hanging(tmp_path: Path, make: object) -> None:
    make(tmp_path / "lock")  # type: ignore[operator]
    assert writer_of(tmp_path / "lock") == 0
    with pytest.raises(BadFile, match="no regular file"):
        StoreLock(tmp_path / "lock")
