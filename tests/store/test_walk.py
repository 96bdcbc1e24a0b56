"""A walk on several threads gives the same result as on one thread, whatever the file holds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import walk_records
from mqlake.store import walk
from mqlake.store.walk import walk_file
from tests.kernel.records import Parts

START = 7 << 20
FILE_SIZE = 1 << 20
MARKER = bytes.fromhex("00000100CBD43194")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "PART_BYTES", 64 << 10)
    monkeypatch.setattr(walk, "SEARCHED_BYTES", 4 << 10)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})


def file_with(directory: Path, log: bytes) -> MappedFile:
    file = MappedFile.create(directory / f"{START:020d}", START, FILE_SIZE, reserve=0)
    file.write_at(0, log)
    return file


def records(draw: random.Random, size: int) -> bytearray:
    """Return records of mixed sizes; some bodies hold a whole record with the right offset for its place."""
    log = bytearray()
    while len(log) < size:
        body = draw.randbytes(draw.choice([0, 10, 300, 1000, 9000]))
        if draw.random() < 0.3:
            body = Parts(b"t", b"inner", b"").record(START + len(log) + 88) + body
        log += Parts(b"orders", body, b"KEYS\x01k", timestamp=1000 + len(log)).record(START + len(log))
    return log


def require_same(file: MappedFile, position: int = 0) -> None:
    expected = walk_records(file.pages, position, file.size, file.start, True)
    assert walk_file(file, position) == expected


@pytest.mark.parametrize("seed", range(6))
def test_a_file_without_damage_is_walked_to_the_same_end(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    log = records(draw, draw.choice([0, 50_000, 400_000, FILE_SIZE - 20_000]))
    file = file_with(tmp_path, bytes(log) + draw.choice([b"", MARKER]))
    require_same(file)
    require_same(file, FILE_SIZE)
    assert walk_file(file, 0).record_count > 0 or not log


@pytest.mark.parametrize("seed", range(12))
def test_damage_ends_the_walk_at_its_offset(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    log = records(draw, 800_000)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(log))
        log[at : at + 600] = draw.choice([bytes(600), draw.randbytes(600)])
    file = file_with(tmp_path, bytes(log))
    require_same(file)
    stopped = walk_file(file, 0)
    assert stopped.why < 0 and stopped.position < len(log)


def test_records_larger_than_a_part_are_walked(tmp_path: Path) -> None:
    log = bytearray()
    for size in (200_000, 10, 300_000, 100):
        log += Parts(b"orders", bytes(size), b"", timestamp=5).record(START + len(log))
    file = file_with(tmp_path, bytes(log))
    require_same(file)
    assert walk_file(file, 0).record_count == 4


def test_a_body_that_looks_like_the_log_does_not_start_a_part(tmp_path: Path) -> None:
    log = bytearray(Parts(b"orders", b"first", b"", timestamp=5).record(START))
    inner = bytearray()
    while len(inner) < 300_000:  # each is whole and has the right offset for its place
        inner += Parts(b"t", b"x" * 900, b"", timestamp=5).record(START + len(log) + 88 + len(inner))
    log += Parts(b"orders", bytes(inner), b"", timestamp=5).record(START + len(log))
    log += Parts(b"orders", b"last", b"", timestamp=6).record(START + len(log))
    file = file_with(tmp_path, bytes(log))
    require_same(file)
    walked = walk_file(file, 0)
    assert (walked.record_count, walked.position) == (3, len(log))
