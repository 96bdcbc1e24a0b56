"""Keys are written only to reserved blocks of an index file, and a full disk neither loses nor repeats one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake import DiskFull
from mqlake.codec.index_entry import DEFAULT_ENTRIES, DEFAULT_SLOTS, index_file_size
from mqlake.logs import key_index
from mqlake.logs.key_index import KEY, KeyIndex

SLOTS, ENTRIES = 100, 2000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyIndex:
    monkeypatch.setattr(key_index, "CHUNK_BYTES", 4096)
    return KeyIndex(tmp_path / "index", SLOTS, ENTRIES, writable=True, scratch=tmp_path / "scratch")


def keys(first: int, stop: int) -> bytes:
    """Return two keys per message."""
    return b"".join(KEY.pack(7 + number % 50, 100 * (number // 2), 1000 * number) for number in range(first, stop))


def found(index: KeyIndex, stop: int) -> list[int]:
    offsets = [offset for key_hash in range(7, 57) for offset in index.find(key_hash, 0, 1 << 60, 1 << 20)]
    assert len(offsets) == stop
    return sorted(offsets)


def blocks(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*"))


def full(descriptor: int, offset: int, size: int) -> None:
    raise OSError(28, "No space left on device")


def test_entries_get_their_blocks_a_chunk_ahead(index: KeyIndex, tmp_path: Path) -> None:
    index.put(keys(0, 10))
    assert blocks(tmp_path / "index") < index_file_size(SLOTS, ENTRIES) // 2
    for first in range(10, 1900, 90):
        index.put(keys(first, first + 90))
        file = index._files[-1]
        assert file.reserved >= index_file_size(SLOTS, first + 90)
        assert blocks(tmp_path / "index") >= file.reserved
    assert found(index, 1900) == [100 * (number // 2) for number in range(1900)]


def test_a_disk_that_fills_up_in_the_middle_loses_no_key_and_enters_none_twice(
    index: KeyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_fallocate
    index.put(keys(0, 11))
    for _ in range(3):
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFull):
            index.put(keys(11, 5000))
        monkeypatch.setattr(os, "posix_fallocate", real)
    index.put(keys(11, 5003))
    assert found(index, 5003) == [100 * (number // 2) for number in range(5003)]
    assert index.file_count == 3


def test_the_index_of_a_sparse_copy_gets_blocks_before_it_is_written(index: KeyIndex, tmp_path: Path) -> None:
    index.put(keys(0, 300))
    index.close()
    (path,) = (tmp_path / "index").iterdir()
    content = path.read_bytes()
    path.unlink()
    with path.open("wb") as copy:
        for at in range(0, len(content), 4096):
            if content[at : at + 4096].strip(b"\0"):
                copy.seek(at)
                copy.write(content[at : at + 4096])
        copy.truncate(len(content))
    index.load()
    index.resume()
    index.put(keys(300, 400))
    assert blocks(tmp_path / "index") >= index_file_size(SLOTS, 400)
    assert found(index, 400) == [100 * (number // 2) for number in range(400)]


def test_a_new_index_of_the_default_size_takes_a_small_part_of_the_disk(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index", DEFAULT_SLOTS, DEFAULT_ENTRIES, writable=True, scratch=tmp_path / "scratch")
    index.put(keys(0, 2))
    assert blocks(tmp_path / "index") < 32 << 20
    assert found(index, 2) == [0, 0]
