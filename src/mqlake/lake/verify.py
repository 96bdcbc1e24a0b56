"""Verify that every byte that the manifest claims is in the lake exactly once.

The proof uses the lake's files alone. Sizes, CRCs and row counts must be as committed. Records (columns physical_offset
and size) and listed gaps must tile each store's range without a hole or an overlap. The log is walked in windows, so
memory use does not grow with the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from mqlake.kernel import crc32
from mqlake.lake.entries import LakeFile
from mqlake.lake.lake import Lake
from mqlake.lake.messages import rows_between
from mqlake.lake.snapshot import LakeSnapshot, StoreState

WINDOW_BYTES = 1 << 30
CHUNK_BYTES = 8 << 20
Progress = Callable[[int, int], object]


class LakeFinding(NamedTuple):
    """A broken promise of a lake."""

    what: str
    """`file` (missing, truncated or changed) or `coverage` (a hole or an overlap)."""
    where: str
    found: str
    expected: str


def verify(lake: Lake, progress: Progress | None = None) -> list[LakeFinding]:
    """Return every broken promise of the newest version."""
    snapshot = lake.snapshot()
    findings: list[LakeFinding] = []
    files = list(snapshot.by_path.values())
    for number, file in enumerate(files):
        findings += check_file(lake.root, file)
        if progress is not None:
            progress(number + 1, len(files))
    bad = {finding.where for finding in findings}
    for state in snapshot.stores.values():
        findings += check_coverage(lake.root, snapshot, state, bad)
    return findings


def check_file(root: Path, file: LakeFile) -> Iterator[LakeFinding]:
    """Check that the file exists and is as it was committed."""
    try:
        with (root / file.path).open("rb") as opened:
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
    rows = pq.read_metadata(root / file.path).num_rows
    if rows != file.rows:
        yield LakeFinding("file", file.path, f"{rows} rows", f"{file.rows} rows")


def check_coverage(root: Path, snapshot: LakeSnapshot, state: StoreState, bad: set[str]) -> Iterator[LakeFinding]:
    """Check that records and gaps tile [start, end). Rows of unreadable files count as holes."""
    files = [file for file in snapshot.files("messages", state.name) if file.path not in bad]
    reached = state.start
    for low in range(state.start, state.end, WINDOW_BYTES):
        starts, ends = tiles(root, files, state, low, min(low + WINDOW_BYTES, state.end))
        before = np.concatenate([np.array([reached], np.int64), ends[:-1]])
        for number in np.flatnonzero(starts != before[: len(starts)])[:100]:
            yield _finding(state, int(before[number]), int(starts[number]))
        reached = int(ends[-1]) if len(ends) else reached
    if reached != state.end:
        yield _finding(state, reached, state.end)


def tiles(root: Path, files: list[LakeFile], state: StoreState, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of every record and gap that begins in [low, high), in order."""
    gaps = np.array([gap[:2] for gap in state.gaps if low <= gap.start < high], np.int64).reshape(-1, 2)
    starts, ends = [gaps[:, 0]], [gaps[:, 1]]
    for file in files:
        if file.start < high and file.end > low:
            for rows in rows_between(root, file, low, high, ["physical_offset", "size"]):
                offsets = rows.column("physical_offset").to_numpy()
                starts.append(offsets)
                ends.append(offsets + rows.column("size").to_numpy())
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def _finding(state: StoreState, expected: int, found: int) -> LakeFinding:
    what = f"[{expected}, {found}) in no row" if found > expected else f"[{found}, {expected}) in two rows"
    return LakeFinding("coverage", state.name, what, f"each byte of [{state.start}, {state.end}) in one row or one gap")
