"""Direct I/O: the same bytes on every file system, and reused buffers."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqlake.lake import direct
from mqlake.lake.direct import DirectFile
from mqlake.lake.local import LocalStorage
from mqlake.lake.parquet import write_table

PIECE = 64 << 10


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "PIECE", PIECE)
    monkeypatch.setattr(direct, "_spare", [])


def parts_of(total: int) -> list[bytes]:
    """Return parts of many sizes, the same ones on every call."""
    rng = random.Random(total)
    parts, left = [], total
    while left:
        size = min(left, rng.choice((1, 7, 4096, 5000, PIECE, 3 * PIECE + 1)))
        parts.append(rng.randbytes(size))
        left -= size
    return parts


def written(path: Path, parts: list[bytes]) -> DirectFile:
    return written_by(DirectFile(path), parts)


def written_by(file: DirectFile, parts: list[bytes]) -> DirectFile:
    for part in parts:
        assert file.write(part) == len(part)
    file.sync()
    return file


@pytest.mark.parametrize("total", [0, 1, 4095, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE, 1_000_003])
def test_a_file_holds_exactly_what_was_written(tmp_path: Path, total: int) -> None:
    content = b"".join(parts_of(total))
    file = written(tmp_path / "file", parts_of(total))
    assert (tmp_path / "file").read_bytes() == content
    assert (file.size, file.crc) == (total, zlib.crc32(content))
    assert file.closed


def refused_at_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)


def refused_at_write(monkeypatch: pytest.MonkeyPatch) -> None:
    put = os.pwrite

    def refuse(descriptor: int, data: Any, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "blocks are larger here")
        return put(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse)


def some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    put = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: put(descriptor, data[:4096], offset))


@pytest.mark.parametrize("less", [refused_at_open, refused_at_write, some_at_a_time])
def test_a_file_system_without_full_direct_io_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, less: Callable[[pytest.MonkeyPatch], None]
) -> None:
    less(monkeypatch)
    written(tmp_path / "file", parts_of(300_001))
    assert (tmp_path / "file").read_bytes() == b"".join(parts_of(300_001))


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_a_failed_write_is_reported_and_buffers_are_reused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    file = DirectFile(tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="no room"):
            written_by(file, [bytes(PIECE)] * pieces)
    file.close()
    file.close()
    count = len(direct._spare)
    assert 0 < count == len({id(piece) for piece in direct._spare}) <= direct.MAX_WAITING + 1
    written(tmp_path / "next", [b"next"])
    assert len(direct._spare) == count
    assert (tmp_path / "next").read_bytes() == b"next"


def test_a_late_write_to_an_abandoned_file_leaves_the_next_file_alone(tmp_path: Path) -> None:
    abandoned = DirectFile(tmp_path / "file")
    abandoned.write(b"rows")
    abandoned.close()
    file = DirectFile(tmp_path / "next")
    file.write(b"next")
    abandoned.write(b"the footer of an abandoned file")
    file.sync()
    assert (tmp_path / "next").read_bytes() == b"next"


@pytest.mark.parametrize("failing", ["pwrite", "fsync", "rename"])
def test_a_file_that_was_not_renamed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="the disk is gone"):
            write_table(LocalStorage(tmp_path), "rows.parquet", pa.table({"n": [1]}))
    assert list(tmp_path.iterdir()) == []
