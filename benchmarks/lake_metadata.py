"""What a lake's metadata costs, without messages: a commit after many, and a large lake opened."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

from mqlake.lake import Lake, LakeFile, LakeRange
from mqlake.lake.entries import TABLES, TableName
from mqlake.lake.paths import table_path

IDENTITY = "0" * 16
FILE_BYTES = 128 << 20
TOPICS = tuple(f"topic-{number}" for number in range(100))
MIDNIGHT_MS = 1_700_000_000_000
MEASURED = 9


def commit_ms(place: Path, earlier: int) -> float:
    """Return the milliseconds of a commit of one file for each table, after many of them: the median of some."""
    lake = Lake.open(place, create=True)
    took = []
    for number in range(earlier + MEASURED):
        files = [_file(table, number) for table in TABLES]
        for file in files:
            path = place / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 10)
        began = time.perf_counter()
        lake.commit([_range(number)], [_sized(file, 10) for file in files])
        took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took[-MEASURED:])


def open_s(place: Path, log_bytes: int) -> float:
    """Return the seconds to open a lake of this many bytes of log, in files of 128 MiB, and list its messages."""
    made = Lake.open(place, create=True)
    count = log_bytes // FILE_BYTES
    made.storage.size = lambda name: FILE_BYTES  # type: ignore[method-assign]  # the files need not exist
    files = [_sized(_file(table, number), FILE_BYTES) for number in range(count) for table in TABLES]
    made.commit([_range(number) for number in range(count)], files)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        listed = Lake.open(place).snapshot().files("messages")
        took.append(time.perf_counter() - began)
        assert len(listed) == count
    return statistics.median(took)


def _range(number: int) -> LakeRange:
    return LakeRange("store", IDENTITY, "/data/store", number * FILE_BYTES, (number + 1) * FILE_BYTES)


def _file(table: TableName, number: int) -> LakeFile:
    start, end = number * FILE_BYTES, (number + 1) * FILE_BYTES
    file = LakeFile(table, table_path(table, IDENTITY, start, end), "store", start, end, 400_000, FILE_BYTES, 12345)
    if table != "messages":
        return file
    return replace(
        file,
        first=start,
        last=end - 300,
        min_time=MIDNIGHT_MS,
        max_time=MIDNIGHT_MS + number,
        min_topic=TOPICS[0],
        max_topic=TOPICS[-1],
        topics=TOPICS,
    )


def _sized(file: LakeFile, size: int) -> LakeFile:
    return replace(file, bytes=size)
