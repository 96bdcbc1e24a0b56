"""A queue's folder gets the same verdict whether it is listed or its files are known by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake.codec.queue_entry import ENTRY
from mqlake.files.names import file_name
from mqlake.logs.queue_folder import is_plausible, is_whole, is_whole_and_plausible, read_folder

FILE_SIZE = 100
END = 8
LOG_END = 800


def write(folder: Path) -> None:
    """Write five entries in the first file, three in the second."""
    entries = b"".join(ENTRY.pack(100 * number, 100, 7) for number in range(END)).ljust(2 * FILE_SIZE, b"\0")
    for start in (0, FILE_SIZE):
        (folder / file_name(start)).write_bytes(entries[start : start + FILE_SIZE])


def second(folder: Path) -> Path:
    return folder / file_name(FILE_SIZE)


def folder_instead(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def fifo_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


HARMS: dict[str, Callable[[Path], object]] = {
    "first missing": lambda folder: (folder / file_name(0)).unlink(),
    "second missing": lambda folder: second(folder).unlink(),
    "short": lambda folder: second(folder).write_bytes(second(folder).read_bytes()[:-1]),
    "long": lambda folder: second(folder).write_bytes(second(folder).read_bytes() + b"\0"),
    "zeroes": lambda folder: second(folder).write_bytes(bytes(FILE_SIZE)),
    "behind the log": lambda folder: second(folder).write_bytes(ENTRY.pack(100, 100, 7) * 2 + ENTRY.pack(750, 99, 7)),
    "a FIFO for a file": lambda folder: fifo_instead(second(folder)),
    "a folder for a file": lambda folder: folder_instead(second(folder)),
    "a folder for the next file": lambda folder: folder_instead(folder / file_name(2 * FILE_SIZE)),
}


@pytest.mark.parametrize("harm", [None, *HARMS])
def test_listing_and_known_names_give_the_same_result(harm: str | None, tmp_path: Path) -> None:
    write(tmp_path)
    if harm is not None:
        HARMS[harm](tmp_path)
    folder = read_folder(str(tmp_path))
    listed = is_whole(folder, FILE_SIZE, END, from_zero=True) and is_plausible(folder, FILE_SIZE, END, LOG_END)
    assert is_whole_and_plausible(str(tmp_path), FILE_SIZE, END, LOG_END) == listed == (harm is None)


def test_a_queue_without_an_entry_needs_no_file(tmp_path: Path) -> None:
    assert is_whole_and_plausible(str(tmp_path / "none"), FILE_SIZE, 0, LOG_END)
