"""Blocks are reserved ahead of the writer, a part at a time; each error of the system is named for what it is."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake import BadFile, DiskFull, FileFailed
from mqlake.errors import is_passing
from mqlake.files.mapped_file import MappedFile
from mqlake.files.positions import Positions
from mqlake.files.preallocation import CHUNK_BYTES, Preallocator
from mqlake.files.small_files import read_small_file
from mqlake.runtime.workers import Workers
from tests.helpers import eventually

MIB = 1 << 20


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def refuse_with(number: int) -> object:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_file_has_its_full_size_but_blocks_only_where_reserved(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "0", 0, 64 * MIB, reserve=2 * MIB)
    assert file.path.stat().st_size == 64 * MIB
    assert file.reserved == 2 * MIB
    assert 2 * MIB <= blocks(file.path) < 3 * MIB
    file.reserve(5 * MIB)
    assert file.reserved == 5 * MIB
    assert 5 * MIB <= blocks(file.path) < 6 * MIB
    file.reserve(1 << 40)
    assert file.reserved == file.size


def test_reserving_a_range_again_makes_no_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = MappedFile.create(tmp_path / "0", 0, 4 * MIB, reserve=2 * MIB)
    monkeypatch.setattr(os, "posix_fallocate", refuse_with(errno.ENOSPC))
    file.reserve(MIB)
    file.reserve(2 * MIB)
    assert file.reserved == 2 * MIB


def test_a_full_disk_refuses_the_next_part_and_keeps_what_was_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MappedFile.create(tmp_path / "0", 0, 4 * MIB, reserve=MIB)
    monkeypatch.setattr(os, "posix_fallocate", refuse_with(errno.ENOSPC))
    with pytest.raises(DiskFull, match=f"{MIB} bytes could not be allocated"):
        file.reserve(2 * MIB)
    assert file.reserved == MIB
    monkeypatch.undo()
    file.reserve(2 * MIB)
    assert file.reserved == 2 * MIB


def test_nothing_of_an_existing_file_counts_as_reserved_because_it_may_have_holes(tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    os.truncate(tmp_path / "0", 4 * MIB)
    file = MappedFile.open(tmp_path / "0", 0, 4 * MIB, writable=True)
    assert file.reserved == 0
    file.reserve(MIB)
    assert blocks(file.path) >= MIB


def test_threads_that_reserve_at_the_same_time_leave_everything_reserved(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "0", 0, 8 * MIB, reserve=0)
    threads = [threading.Thread(target=file.reserve, args=(part * MIB,)) for part in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.reserve(8 * MIB)
    assert blocks(file.path) >= 8 * MIB


def test_a_spare_file_reserves_only_its_first_part(tmp_path: Path) -> None:
    maker = Preallocator(tmp_path / "spare", 1024 * MIB, Workers(), warm=False, lock=False)
    maker.start()
    file = maker.take(0)
    assert eventually(lambda: 1024 * MIB in maker._ready)
    taken = sum(blocks(path) for path in (tmp_path / "spare").iterdir())
    maker.close()
    assert file.reserved == CHUNK_BYTES
    assert 2 * CHUNK_BYTES <= taken < 2 * CHUNK_BYTES + MIB


def test_a_warm_file_has_all_its_blocks(tmp_path: Path) -> None:
    maker = Preallocator(tmp_path / "spare", 2 * CHUNK_BYTES, Workers(), warm=True, lock=False)
    maker.start()
    file = maker.take(0)
    maker.close()
    assert file.reserved == file.size
    assert blocks(file.path) >= file.size


def test_the_positions_file_of_a_sparse_copy_gets_its_block(tmp_path: Path) -> None:
    (tmp_path / "positions").touch()
    os.truncate(tmp_path / "positions", 4096)
    Positions.create(tmp_path / "positions").close()
    assert blocks(tmp_path / "positions") >= 4096


# ---- errors by name


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=errno.errorcode.get)
def test_no_space_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "ftruncate", refuse_with(number))
    with pytest.raises(DiskFull, match="free space"):
        MappedFile.create(tmp_path / "0", 0, 4096, reserve=4096)


@pytest.mark.parametrize(
    ("number", "remedy", "passes"),
    [
        (errno.EMFILE, "ulimit -n", True),
        (errno.ENFILE, "fs.file-max", True),
        (errno.EIO, "dmesg", False),
        (errno.EACCES, "permissions", False),
    ],
)
def test_other_errors_are_not_a_full_disk_and_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str, passes: bool
) -> None:
    (tmp_path / "there").write_bytes(bytes(4096))
    maker = Preallocator(tmp_path / "spare", 4096, Workers(), warm=False, lock=False)
    maker.start()
    monkeypatch.setattr(os, "open", refuse_with(number))
    calls: list[Callable[[], MappedFile]] = [
        lambda: MappedFile.create(tmp_path / "0", 0, 4096, reserve=4096),
        lambda: MappedFile.open(tmp_path / "there", 0, 4096, writable=False),
        lambda: maker.take(0),
    ]
    expected = rf"could not be (made|opened) \({os.strerror(number)}\).*{remedy}"
    for call in calls:
        with pytest.raises(FileFailed, match=expected) as caught:
            call()
        assert is_passing(caught.value) == passes
    monkeypatch.undo()
    maker.close()


TOO_MANY = """
import os, resource, sys
from mqlake import FileFailed
from mqlake.files.mapped_file import MappedFile
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(MappedFile.create(Path(sys.argv[1]) / str(len(held)), 0, 4096, reserve=0))
except FileFailed as error:
    os.write(1, str(error).encode())
"""


def test_the_error_of_a_process_without_descriptors_says_to_raise_its_limit(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", TOO_MANY, tmp_path], capture_output=True, text=True, timeout=60)
    assert "could not be made (Too many open files); raise the limit of open files (ulimit -n)" in told.stdout
    assert "Traceback" not in told.stderr


# ---- files that are not regular


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, make_socket, os.mkdir], ids=["fifo", "socket", "folder"])
@pytest.mark.parametrize("writable", [False, True])
def test_a_file_that_is_not_regular_is_refused_and_never_waited_for(
    tmp_path: Path, make: object, writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    make(Path("it"))  # type: ignore[operator]
    with pytest.raises(BadFile, match="no regular file"):
        MappedFile.open(Path("it"), 0, 4096, writable=writable)
    with pytest.raises(BadFile, match="no regular file"):
        read_small_file(Path("it"), 100)


def test_a_device_is_refused(tmp_path: Path) -> None:
    assert stat.S_ISCHR(Path("/dev/zero").stat().st_mode)
    with pytest.raises(BadFile, match="no regular file"):
        read_small_file(Path("/dev/zero"), 100)


def test_a_small_file_is_read_whole_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "it"
    for size in (0, 1, 100):
        path.write_bytes(bytes(size))
        assert read_small_file(path, 100) == bytes(size)
    path.write_bytes(bytes(101))
    with pytest.raises(BadFile, match="more than 100 bytes"):
        read_small_file(path, 100)
    with pytest.raises(FileNotFoundError):
        read_small_file(tmp_path / "none", 100)
