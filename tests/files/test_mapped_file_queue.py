"""A folder of files that together form one long array."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake import BadFile
from mqlake.files.mapped_file_queue import MappedFileQueue
from tests.helpers import covers

SIZE = 4096


def queue_of(directory: Path, *starts: int) -> MappedFileQueue:
    for start in starts:
        directory.mkdir(exist_ok=True)
        (directory / f"{start:020d}").write_bytes(bytes([start // SIZE]) * SIZE)
    queue = MappedFileQueue(directory, SIZE, writable=True)
    queue.load()
    return queue


@covers("A5", "C1", "C2")
def test_files_are_ordered_by_their_names_which_are_their_first_offsets(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", 8192, 4096, 12288)
    assert queue.starts == (4096, 8192, 12288)
    assert (queue.first_offset, queue.end_offset) == (4096, 16384)
    assert sorted(path.name for path in (tmp_path / "q").iterdir())[0] == "00000000000000004096"


@covers("C5")
def test_an_offset_finds_its_file_even_if_the_first_file_is_not_at_zero(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", 4096, 8192)
    for offset, start in ((4096, 4096), (8191, 4096), (8192, 8192), (12287, 8192)):
        file = queue.file_at(offset)
        assert file is not None
        assert file.start == start
    assert queue.file_at(4095) is None
    assert queue.file_at(12288) is None


@covers("C3", "C4")
def test_the_next_file_starts_where_the_last_one_ends(tmp_path: Path) -> None:
    queue = MappedFileQueue(tmp_path / "q", SIZE, writable=True)
    queue.load()
    assert (queue.starts, queue.end_offset) == ((), 0)
    queue.create(queue.end_offset)
    queue.create(queue.end_offset)
    assert queue.starts == (0, 4096)


@covers("C1")
def test_a_list_of_files_taken_before_a_change_stays_as_it_was(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", 0, 4096)
    taken = queue.starts
    queue.create(8192)
    queue.delete_before(4096)
    assert taken == (0, 4096)
    assert queue.starts == (4096, 8192)


@covers("C8")
def test_truncating_deletes_files_after_the_offset_and_zeroes_the_rest_of_its_file(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", 4096, 8192, 12288)
    queue.truncate_to(8192 + 100)
    assert queue.starts == (4096, 8192)
    assert not (tmp_path / "q" / f"{12288:020d}").exists()
    assert (tmp_path / "q" / f"{8192:020d}").read_bytes() == b"\x02" * 100 + bytes(SIZE - 100)


@covers("C9", "O4")
def test_deleting_old_files_never_deletes_the_last_one(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "q", 0, 4096, 8192)
    assert queue.delete_before(1 << 40) == 2
    assert queue.starts == (8192,)


@covers("N8", "C2")
@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("00000000000000004096", bytes(5), "found 5 bytes"),
        ("notes.txt", b"hello", "a name that is not an offset"),
        ("00000000000000008192", bytes(SIZE), "files are missing"),
        ("00000000000000000100", bytes(SIZE), "a start of 100"),
        ("4096", bytes(SIZE), "a name that is not an offset"),
    ],
)
def test_a_file_with_a_wrong_name_or_size_is_named_with_what_was_expected(
    tmp_path: Path, name: str, content: bytes, found: str
) -> None:
    queue_of(tmp_path / "q", 0)
    (tmp_path / "q" / name).write_bytes(content)
    (tmp_path / "q" / "00000000000000012288").write_bytes(bytes(SIZE))
    with pytest.raises(BadFile, match=found):
        MappedFileQueue(tmp_path / "q", SIZE, writable=True).load()


@covers("N8")
def test_an_empty_last_file_is_ignored(tmp_path: Path) -> None:
    queue_of(tmp_path / "q", 0)
    empty = tmp_path / "q" / "00000000000000004096"
    empty.touch()
    reader = MappedFileQueue(tmp_path / "q", SIZE, writable=False)
    reader.load()
    assert reader.starts == (0,)
    assert empty.exists(), "a reader writes nothing"
    assert queue_of(tmp_path / "q").starts == (0,)
    assert not empty.exists()
