"""Verify that every byte that the manifest claims is in the lake exactly once, and that the Delta tables say the same.

The proof uses the lake's files alone. Sizes, CRCs and row counts must be as committed. Records (columns physical_offset
and size) and listed gaps must tile each store's range without a hole or an overlap. The log is walked file by file, so
memory use does not grow with the lake.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mqlake.kernel import crc32
from mqlake.lake.delta_read import live_files
from mqlake.lake.entries import TABLES, LakeFile
from mqlake.lake.lake import Lake
from mqlake.lake.messages import rows_between
from mqlake.lake.parquet import open_parquet
from mqlake.lake.snapshot import LakeSnapshot, StoreState
from mqlake.lake.storage import Storage

CHUNK_BYTES = 8 << 20
Progress = Callable[[int, int], object]


class LakeFinding(NamedTuple):
    """A broken promise of a lake."""

    what: str
    """`file` (missing, truncated or changed), `coverage` (a hole or an overlap) or `delta` (another list of files)."""
    where: str
    found: str
    expected: str


def verify(lake: Lake, progress: Progress | None = None) -> list[LakeFinding]:
    """Return every broken promise of the newest version."""
    snapshot = lake.snapshot()
    findings: list[LakeFinding] = []
    files = list(snapshot.by_path.values())
    for number, file in enumerate(files):
        findings += check_file(lake.storage, file)
        if progress is not None:
            progress(number + 1, len(files))
    bad = {finding.where for finding in findings}
    for state in snapshot.stores.values():
        findings += check_coverage(lake.storage, snapshot, state, bad)
    return findings + list(check_delta(lake.storage, snapshot))


def check_file(storage: Storage, file: LakeFile) -> Iterator[LakeFinding]:
    """Check that the file exists and is as it was committed."""
    try:
        with storage.open_input(file.path) as opened:
            size = crc = 0
            while chunk := opened.read(CHUNK_BYTES):
                size, crc = size + len(chunk), crc32(chunk, crc)
    except OSError as error:
        yield LakeFinding("file", file.path, error.strerror or str(error), f"a file of {file.bytes} bytes")
        return
    if (size, crc) != (file.bytes, file.crc):
        found, expected = (f"{size} bytes, CRC {crc:08x}", f"{file.bytes} bytes, CRC {file.crc:08x}")
        yield LakeFinding("file", file.path, found, expected)
        return
    with open_parquet(storage, file) as parquet:
        if parquet.metadata.num_rows != file.rows:
            yield LakeFinding("file", file.path, f"{parquet.metadata.num_rows} rows", f"{file.rows} rows")


def check_coverage(storage: Storage, snapshot: LakeSnapshot, state: StoreState, bad: set[str]) -> Iterator[LakeFinding]:
    """Check that records and gaps tile [start, end). Rows of unreadable files count as holes."""
    files = [file for file in snapshot.files("messages", state.name) if file.path not in bad]
    reached = state.start
    cuts = sorted({state.start, *(file.start for file in files), state.end})
    for low, high in itertools.pairwise(cuts):
        starts, ends = tiles(storage, files, state, low, high)
        before = np.concatenate([np.array([reached], np.int64), ends[:-1]])
        for number in np.flatnonzero(starts != before[: len(starts)])[:100]:
            yield _finding(state, int(before[number]), int(starts[number]))
        reached = int(ends[-1]) if len(ends) else reached
    if reached != state.end:
        yield _finding(state, reached, state.end)


def tiles(
    storage: Storage, files: list[LakeFile], state: StoreState, low: int, high: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of every record and gap that begins in [low, high), in order."""
    gaps = np.array([gap[:2] for gap in state.gaps if low <= gap.start < high], np.int64).reshape(-1, 2)
    starts, ends = [gaps[:, 0]], [gaps[:, 1]]
    for file in files:
        if file.start < high and file.end > low:
            for rows in rows_between(storage, file, low, high, ["physical_offset", "size"]):
                offsets = rows.column("physical_offset").to_numpy()
                starts.append(offsets)
                ends.append(offsets + rows.column("size").to_numpy())
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def _finding(state: StoreState, expected: int, found: int) -> LakeFinding:
    what = f"[{expected}, {found}) in no row" if found > expected else f"[{found}, {expected}) in two rows"
    return LakeFinding("coverage", state.name, what, f"each byte of [{state.start}, {state.end}) in one row or one gap")


def check_delta(storage: Storage, snapshot: LakeSnapshot) -> Iterator[LakeFinding]:
    """Check that each Delta table has the files of this version. It may lag by the commit that is being made."""
    for table in TABLES:
        try:
            found = live_files(storage, table, snapshot.version)
        except FileNotFoundError as error:
            yield LakeFinding("delta", table, str(error), "an entry for each version; the next job writes the newest")
            continue
        expected = {file.path: file.bytes for file in snapshot.files(table)}
        if found != expected:
            differ = sorted(set(found.items()) ^ set(expected.items()))
            yield LakeFinding("delta", table, f"another list of files, from {differ[0][0]} on", "the manifest's list")
