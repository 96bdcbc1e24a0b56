"""Preallocated files, warm pages, locked pages and pool buffers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from mqlake import DiskFull
from mqlake.files import preallocation
from mqlake.files.mapped_file import MappedFile
from mqlake.files.pool import TransientPool
from mqlake.files.preallocation import Preallocator
from mqlake.kernel import lock_memory, populate, unlock_memory
from mqlake.runtime.workers import Workers
from tests.helpers import covers, eventually

SIZE = 1 << 20


def start(tmp_path: Path, *, warm: bool = False, lock: bool = False) -> Preallocator:
    maker = Preallocator(tmp_path / "spare", SIZE, Workers(), warm=warm, lock=lock)
    maker.start()
    return maker


@pytest.fixture
def maker(tmp_path: Path) -> Preallocator:
    return start(tmp_path)


def full(descriptor: int, offset: int, size: int) -> None:
    raise OSError(28, "No space left on device")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@covers("D1", "D3", "C4")
def test_taking_a_file_starts_making_the_next_one(
    maker: Preallocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = maker.take(0)
    assert file.path.stat().st_blocks * 512 >= SIZE
    assert eventually(lambda: SIZE in maker._ready)
    assert names(tmp_path / "spare") == [f"{0:020d}", f"{SIZE:020d}"]
    monkeypatch.setattr(os, "posix_fallocate", full)  # no other file can be made
    assert maker.take(SIZE).start == SIZE
    maker.close()


@covers("D1", "D7")
def test_the_file_needed_now_is_made_before_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real, both_wanted = MappedFile.create, threading.Event()

    def slow(path: Path, start: int, size: int, *, reserve: int) -> MappedFile:
        made.append(start)
        both_wanted.wait(10)
        return real(path, start, size, reserve=reserve)

    monkeypatch.setattr(MappedFile, "create", slow)
    maker = start(tmp_path)
    takers = [threading.Thread(target=maker.take, args=(at,)) for at in (2 * SIZE, 0)]
    for taker, at in zip(takers, (2 * SIZE, 0), strict=True):
        taker.start()
        assert eventually(lambda wanted=at: wanted in maker._wanted)  # type: ignore[misc]
    both_wanted.set()
    for taker in takers:
        taker.join()
    assert eventually(lambda: 3 * SIZE in made)
    maker.close()
    assert made.index(0) < made.index(3 * SIZE)


@covers("D2", "D5")
def test_a_full_disk_refuses_the_file_at_once_and_provides_it_when_there_is_space(
    maker: Preallocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match="No space left"):  # a wait that timed out would raise another error
        maker.take(0)
    monkeypatch.setattr(os, "posix_fallocate", real)
    assert maker.take(0).start == 0
    maker.close()


@covers("D2")
def test_a_file_that_is_not_made_in_time_is_refused_without_hanging(
    maker: Preallocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()
    monkeypatch.setattr(preallocation, "WAIT_S", 0.1)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: refused.wait(30))
    with pytest.raises(DiskFull, match="not made within"):
        maker.take(0)
    refused.set()
    maker.close()


@covers("D6")
def test_making_a_file_slowly_logs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: time.sleep(0.02))
    maker = start(tmp_path)
    maker.take(0)
    maker.close()
    assert "took" in caplog.text


def test_unused_files_are_deleted_after_closing_and_after_a_crash(maker: Preallocator, tmp_path: Path) -> None:
    maker.take(0)
    assert eventually(lambda: len(names(tmp_path / "spare")) == 2)
    maker.close()
    assert names(tmp_path / "spare") == [f"{0:020d}"]
    (tmp_path / "spare" / "left-over").touch()
    Preallocator(tmp_path / "spare", SIZE, Workers(), warm=False, lock=False).close()
    assert names(tmp_path / "spare") == []


@covers("D8", "F1", "F2", "F3")
def test_warming_makes_pages_resident_and_changes_no_byte(tmp_path: Path) -> None:
    maker = start(tmp_path, warm=True)
    file = maker.take(0)
    maker.close()
    assert resident_pages(file) == SIZE // 4096
    assert file.pages[:] == bytes(SIZE)
    file.pages[0:4] = b"data"
    assert populate(file.pages, 0, SIZE)
    assert file.pages[0:4] == b"data"


@covers("F4", "E3")
def test_memory_is_locked_and_released(tmp_path: Path) -> None:
    maker = start(tmp_path, lock=True)
    file = maker.take(0)
    maker.close()
    with_file = locked_kb()
    unlock_memory(file.pages)
    assert with_file - locked_kb() == SIZE // 1024
    lock_memory(file.pages)
    assert locked_kb() == with_file


@covers("E2", "E3")
def test_the_pool_hands_out_as_many_locked_buffers_as_it_has_and_takes_them_back() -> None:
    before = locked_kb()
    pool = TransientPool(3, SIZE)
    assert locked_kb() - before == 3 * SIZE // 1024
    borrowed = [pool.borrow(0) for _ in range(3)]
    assert all(buffer is not None and len(buffer) == SIZE for buffer in borrowed)
    assert pool.borrow(0.01) is None
    assert borrowed[0] is not None
    pool.give_back(borrowed[0])
    assert pool.available == 1
    assert pool.borrow(0) is borrowed[0]


def resident_pages(file: MappedFile) -> int:
    """Return how many pages of the file are mapped in this process, as the kernel reports it."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            inside = line.endswith(str(file.path))
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) // 4
    return 0


def locked_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmLck"))
