"""Writing to many files at once: the compiled function and its twin write the same bytes and stop at the same file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mqlake.kernel import _compiled, reference

KERNELS = pytest.mark.parametrize("kernel", [_compiled, reference], ids=["compiled", "reference"])


def files(folder: Path, count: int) -> list[bytes]:
    for number in range(count):
        (folder / str(number)).write_bytes(bytes(40))
    return [os.fsencode(folder / str(number)) for number in range(count)]


@KERNELS
def test_each_content_is_written_at_its_position(kernel: Any, tmp_path: Path) -> None:
    paths = files(tmp_path, 5)
    contents = [b"%d" % number * (number + 1) for number in range(5)]
    assert kernel.write_to_files(paths, [3 * number for number in range(5)], contents) == (5, 0)
    for number in range(5):
        expected = bytearray(40)
        expected[3 * number : 3 * number + number + 1] = contents[number]
        assert (tmp_path / str(number)).read_bytes() == expected
    assert kernel.write_to_files([], [], []) == (0, 0)


@KERNELS
@pytest.mark.parametrize(("what", "why"), [("gone", errno.ENOENT), ("fifo", errno.ENXIO), ("folder", errno.EISDIR)])
def test_it_stops_at_the_first_file_that_cannot_be_written(kernel: Any, what: str, why: int, tmp_path: Path) -> None:
    paths = files(tmp_path, 4)
    (tmp_path / "2").unlink()
    if what == "fifo":
        os.mkfifo(tmp_path / "2")
    elif what == "folder":
        (tmp_path / "2").mkdir()
    assert kernel.write_to_files(paths, [0] * 4, [b"x"] * 4) == (2, why)
    assert [(tmp_path / str(number)).read_bytes()[:1] for number in (0, 1, 3)] == [b"x", b"x", bytes(1)]


@KERNELS
def test_a_device_is_no_file_to_write_to(kernel: Any) -> None:
    assert kernel.write_to_files([b"/dev/null"], [0], [b"x"]) == (0, errno.EINVAL)


@KERNELS
def test_lists_of_different_lengths_are_refused(kernel: Any) -> None:
    with pytest.raises(ValueError, match="1 paths, 0 positions"):
        kernel.write_to_files([b"a"], [], [b"x"])
