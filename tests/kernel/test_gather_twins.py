"""Records gathered for a pull: the compiled kernel agrees with the reference, on whole and on damaged records."""

from __future__ import annotations

import random
from array import array

import pytest

from mqlake.kernel import reference
from mqlake.kernel.reference.queue import ENTRY, FILLER_SIZE
from tests.kernel.test_queue_twins import HOST, File
from tests.kernel.twins import compiled, outcome

CODES = (7, -9, 40)


def queue_of(draw: random.Random) -> tuple[list[File], bytes]:
    """Return two log files and the entries of one queue, some of them fillers, damaged, or to damaged records."""
    files: list[File] = []
    entries: list[bytes] = []
    for start in (0, 8192):
        pages, position = bytearray(8192), 0
        while position < 7000:
            message = reference.Message("orders", draw.randbytes(draw.randrange(300)), born_timestamp=1)
            number = len(entries) + (draw.random() < 0.03)
            record = bytearray(reference.encode_record(message, 1, number, start + position, 5, HOST, False))
            if draw.random() < 0.05:
                record[draw.randrange(len(record))] ^= 1 << draw.randrange(8)
            pages[position : position + len(record)] = record
            size = draw.choice([len(record)] * 20 + [FILLER_SIZE, 0, 17, 1 << 30])
            entries.append(ENTRY.pack(start + position, size, draw.choice(CODES)))
            position += len(record)
        files.append(File(start, bytes(pages)))
    return files, b"".join(entries)


@pytest.mark.parametrize("seed", range(30))
def test_gathered_records_agree_with_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    files, entries = queue_of(draw)

    def file_at(offset: int) -> File | None:
        return next((file for file in files[seed % 7 == 0 :] if file.start <= offset < file.start + 8192), None)

    count = len(entries) // 20
    wanted = [None, *(array("q", sorted(draw.sample(CODES, many))).tobytes() for many in (0, 1, 2))]
    for _ in range(60):
        first = draw.randrange(-1, count + 1)
        stop = min(count + (draw.random() < 0.1), max(first, 0) + draw.randrange(40))
        bounds = draw.choice([0, 500]), draw.choice([8192 + 7000, 9000, 0])
        limits = draw.choice([0, 1, 5, 32]), draw.choice([0, 400, 1500, 1 << 40])
        arguments = (entries, first, stop, 0, b"orders", 1, *bounds, file_at, *limits, draw.choice(wanted))
        found = outcome(lambda given=arguments: compiled().gather_records(*given))  # type: ignore[misc]
        expected = outcome(lambda given=arguments: reference.gather_records(*given))  # type: ignore[misc]
        assert found == expected


def test_gathered_records_are_what_the_log_holds() -> None:
    draw = random.Random(3)
    pages, entries, position = bytearray(8192), [], 0
    for number in range(8):
        message = reference.Message("orders", draw.randbytes(100), born_timestamp=1)
        record = reference.encode_record(message, 0, number, position, 5, HOST, False)
        pages[position : position + len(record)] = record
        entries.append(ENTRY.pack(position, len(record), number % 2))
        position += len(record)
    log = File(0, bytes(pages))
    queue = b"".join(entries), 0, 8, 0, b"orders", 0, 0, position, lambda _: log
    for twin in (compiled(), reference):
        assert twin.gather_records(*queue, 32, 1 << 20) == (bytes(pages[:position]), 8, 8, False)
        data, stop, count, stuck = twin.gather_records(*queue, 3, 1 << 20, array("q", [1]).tobytes())
        assert (stop, count, stuck) == (6, 3, False)
        assert data == b"".join(bytes(pages[at : at + size]) for at, size, _ in map(ENTRY.unpack, entries[1:6:2]))
