"""The judge of the row `partition` knows by itself where two logs part."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.torture.partition import first_difference, log_of, record_with, used
from tests.helpers import LOG_FILE, message, open_small


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """The used part of a log of two files: the first ends with a marker."""
    with open_small(tmp_path / "store") as store:
        while store.end_offset < LOG_FILE + 2_000:
            store.put(message(1, body=bytes(900)))
        end = store.end_offset
    log = used(log_of(tmp_path / "store"))
    assert len(log) == end > LOG_FILE
    return log


def test_a_log_parts_from_another_at_the_record_that_differs(log: bytes) -> None:
    size = int.from_bytes(log[:4], "big")
    other = bytearray(log)
    other[3 * size + 500] ^= 1
    assert first_difference(log, bytes(other)) == 3 * size + 500
    assert record_with(log, 3 * size + 500) == 3 * size
    assert record_with(log, 3 * size) == 3 * size


def test_a_log_that_is_longer_parts_where_the_other_ends_and_a_beginning_does_not_part(log: bytes) -> None:
    size = int.from_bytes(log[:4], "big")
    assert first_difference(log, log[: 5 * size]) == 5 * size == record_with(log, 5 * size)
    assert first_difference(log[: 5 * size], log) is None
    assert first_difference(log, log) is None


def test_the_marker_at_the_end_of_a_file_is_a_record_too(log: bytes) -> None:
    marker = record_with(log, LOG_FILE - 1)
    assert marker < LOG_FILE and marker + int.from_bytes(log[marker : marker + 4], "big") == LOG_FILE
    assert record_with(log, LOG_FILE) == LOG_FILE
