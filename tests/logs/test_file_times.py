"""The times that are known of a log file are those of its records, or none are known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake import MessageStore
from mqlake.files.layout import Layout
from mqlake.files.names import file_name
from mqlake.logs import file_times
from mqlake.logs.file_times import FileTimes, keep_times, times_of
from tests.helpers import LOG_FILE, message, open_small, writer_of

BLOCK = 4096


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_times, "BLOCK_BYTES", BLOCK)


def written(path: Path, count: int = 600) -> Layout:
    """Write a log of several files, without known times."""
    with open_small(path) as store:
        for number in range(count):
            store.put(message(number, body=b"x" * (number * 37 % 900)))
    layout = Layout(path)
    for table in layout.times.iterdir():
        table.unlink()
    return layout


def times_by_hand(path: Path, start: int, known: FileTimes) -> list[tuple[int, int]]:
    """Return the oldest and newest time of each block, from its records."""
    with MessageStore.open(path, read_only=True) as store:
        batches = store.scan(start=start, end=start + LOG_FILE, columns=["physical_offset", "store_timestamp"])
        rows = [row for batch in batches for row in batch.to_pylist()]
    stamps = [(row["physical_offset"] - start, round(row["store_timestamp"].timestamp() * 1000)) for row in rows]
    found = []
    for low, high in zip([0, *known.ends[:-1]], known.ends, strict=True):
        inside = [stamp for place, stamp in stamps if low <= place < high]
        found.append((min(inside), max(inside)))
    return found


def test_the_times_of_closed_files_are_kept_and_cover_them(tmp_path: Path) -> None:
    layout = written(tmp_path / "store")
    starts = sorted(int(path.name) for path in layout.commit_log.iterdir())
    assert keep_times(layout, LOG_FILE, starts[-1]) == len(starts) - 1 > 2
    for start in starts[:-1]:
        known = times_of(layout, start)
        assert known is not None and known.ends[-1] == LOG_FILE and len(known.ends) > 10
        assert list(zip(known.oldest, known.newest, strict=True)) == times_by_hand(tmp_path / "store", start, known)
    assert times_of(layout, starts[-1]) is None, "the open file may change"
    assert keep_times(layout, LOG_FILE, starts[-1]) == 0, "they are kept"


def test_a_file_that_was_written_again_has_no_known_times(tmp_path: Path) -> None:
    layout = written(tmp_path / "store")
    keep_times(layout, LOG_FILE, 2 * LOG_FILE)
    path = layout.commit_log / file_name(0)
    content, found = path.read_bytes(), path.stat()
    path.write_bytes(content)
    assert times_of(layout, 0) is None
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert times_of(layout, 0) is not None, "a copy that keeps its time of modification is the same file"
    assert keep_times(layout, LOG_FILE, 2 * LOG_FILE) == 0
    os.truncate(path, LOG_FILE - 1)
    assert times_of(layout, 0) is None


@pytest.mark.parametrize("place", [0, 9, 14, 25, 33, 60, -1])
def test_a_damaged_table_counts_as_missing(tmp_path: Path, place: int) -> None:
    layout = written(tmp_path / "store")
    keep_times(layout, LOG_FILE, LOG_FILE)
    table = layout.times / file_name(0)
    content = bytearray(table.read_bytes())
    content[place] ^= 1
    table.write_bytes(content)
    assert times_of(layout, 0) is None
    table.write_bytes(content[: len(content) // 2])
    assert times_of(layout, 0) is None
    table.write_bytes(b"")
    assert times_of(layout, 0) is None
    assert keep_times(layout, LOG_FILE, LOG_FILE) == 1 and times_of(layout, 0) is not None


def test_what_follows_damage_is_in_no_block(tmp_path: Path) -> None:
    layout = written(tmp_path / "store")
    with (layout.commit_log / file_name(0)).open("r+b") as file:
        file.seek(LOG_FILE // 2)
        file.write(b"?" * 1000)
    keep_times(layout, LOG_FILE, LOG_FILE)
    known = times_of(layout, 0)
    assert known is not None and LOG_FILE // 4 < known.ends[-1] <= LOG_FILE // 2


def test_a_writer_keeps_the_times_and_forgets_those_of_deleted_files(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        for number in range(600):
            store.put(message(number, body=b"x" * 500))
        store.wait_dispatched()
        writer = writer_of(store)
        writer._checkpoint_all()
        starts = writer.log_files.starts
        assert [times_of(Layout(path), start) is not None for start in starts] == [True] * (len(starts) - 1) + [False]
        store.retain(keep_bytes=0)
        writer._checkpoint_all()
        kept = sorted(int(table.name) for table in Layout(path).times.iterdir())
        assert kept == list(writer.log_files.starts)[:-1]


def test_a_store_that_was_written_and_closed_has_the_times_of_its_closed_files(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for number in range(600):
            store.put(message(number, body=b"x" * 500))
    layout = Layout(tmp_path / "store")
    starts = sorted(int(path.name) for path in layout.commit_log.iterdir())
    assert [start for start in starts if times_of(layout, start) is None] == starts[-1:]


def test_times_that_cannot_be_kept_are_no_error_of_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_small(tmp_path / "store") as store:
        for number in range(300):
            store.put(message(number, body=b"x" * 500))
        store.wait_dispatched()
        Layout(tmp_path / "store").times.rmdir() if Layout(tmp_path / "store").times.exists() else None
        Layout(tmp_path / "store").times.write_bytes(b"in the way")
        writer_of(store)._checkpoint_all()
    assert "the times in the log's files are not noted" in caplog.text
