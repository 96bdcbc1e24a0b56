"""One mapped file: its bytes, its blocks, and views that outlive its deletion."""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import pytest

from mqlake import BadFile, DiskFull
from mqlake.files.mapped_file import PAGE_SIZE, MappedFile, mapped
from tests.helpers import covers


@covers("B1")
def test_a_new_file_has_its_full_size_is_zero_and_creates_its_folder(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "a" / "b" / "00000000000000065536", 65536, 8192, reserve=8192)
    assert file.path.stat().st_size == 8192
    assert (file.start, file.end) == (65536, 65536 + 8192)
    assert file.pages[:] == bytes(8192)


@covers("B1", "D8")
def test_reserved_files_own_their_blocks_so_writes_to_them_never_hit_a_full_disk(tmp_path: Path) -> None:
    reserved = MappedFile.create(tmp_path / "0", 0, 1 << 20, reserve=1 << 20)
    sparse = MappedFile.create(tmp_path / "1", 0, 1 << 20, reserve=0)
    assert reserved.path.stat().st_blocks * 512 >= 1 << 20
    assert sparse.path.stat().st_blocks * 512 < 1 << 20


@covers("B2", "B23")
def test_a_page_is_what_the_system_maps_by() -> None:
    assert PAGE_SIZE == 4096
    assert mmap.ALLOCATIONGRANULARITY % PAGE_SIZE == 0


@covers("B3")
def test_counters_follow_files_as_they_are_mapped_and_unmapped(tmp_path: Path) -> None:
    gc.collect()
    files, size = mapped.files, mapped.bytes
    file = MappedFile.create(tmp_path / "0", 0, 8192, reserve=0)
    assert (mapped.files, mapped.bytes) == (files + 1, size + 8192)
    del file
    gc.collect()
    assert (mapped.files, mapped.bytes) == (files, size)


@covers("B7", "B13")
def test_bytes_written_through_the_descriptor_and_the_mapping_are_the_same_bytes(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "0", 0, 8192, reserve=8192)
    file.write_at(4095, b"descriptor")
    file.pages[0:7] = b"mapping"
    file.sync()
    assert file.pages[4095:4105] == b"descriptor"
    assert (tmp_path / "0").read_bytes()[:7] == b"mapping"


@covers("B17", "B18", "B19", "B20", "B21", "O4")
def test_a_reader_that_holds_a_view_of_a_deleted_file_keeps_reading_valid_bytes(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "0", 0, 8192, reserve=8192)
    file.pages[100:105] = b"valid"
    view = file.view(100, 105)
    file.delete()
    del file
    gc.collect()
    assert not (tmp_path / "0").exists()
    assert bytes(view) == b"valid"


@covers("B20")
def test_the_descriptor_of_a_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "0", 0, 4096, reserve=0)
    descriptor = file.descriptor
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@covers("B22")
def test_a_failed_mapping_is_retried_once_after_freeing_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = mmap.mmap

    def fails_once(descriptor: int, size: int, **options: int) -> mmap.mmap:
        calls.append(size)
        if len(calls) == 1:
            raise OSError(12, "Cannot allocate memory")
        return real(descriptor, size, **options)

    monkeypatch.setattr(mmap, "mmap", fails_once)
    assert MappedFile.create(tmp_path / "0", 0, 4096, reserve=0).pages[:4] == bytes(4)
    assert len(calls) == 2


def test_a_file_of_another_size_is_refused_before_it_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(bytes(100))
    with pytest.raises(BadFile, match=r"found 100 bytes; expected 4096 bytes"):
        MappedFile.open(tmp_path / "0", 0, 4096, writable=True)


def test_a_failed_allocation_leaves_no_file_and_no_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match=r"4096 bytes could not be allocated .*No space left"):
        MappedFile.create(tmp_path / "0", 0, 4096, reserve=4096)
    assert not (tmp_path / "0").exists()


def test_zeroing_reaches_every_byte_after_a_position_and_none_before_it(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "0", 0, 3 << 20, reserve=0)
    file.pages[:] = b"\xff" * (3 << 20)
    file.zero_from(1234567)
    assert file.pages[:1234567] == b"\xff" * 1234567
    assert file.pages[1234567:] == bytes((3 << 20) - 1234567)
