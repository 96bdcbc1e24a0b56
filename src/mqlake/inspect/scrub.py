"""Compare the log with its seals, and nothing else: what `check` also does, at the speed of the disk.

Any process may do it, while the store is written too. Writes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mqlake.config import StoreConfig
from mqlake.errors import typed_errors
from mqlake.inspect.check import Examination
from mqlake.inspect.check_seals import compare
from mqlake.logs.seals import CHUNK_BYTES, Range
from mqlake.store.opening import find_store

Progress = Callable[[int, int], object]
"""Called with the bytes compared so far, and the total."""


class ScrubReport(NamedTuple):
    """What a scrub compared and found."""

    path: Path
    sealed_bytes: int
    """Bytes of the log that have a seal and were compared."""
    log_bytes: int
    broken: tuple[Range, ...]
    """Blocks that changed since they were sealed."""
    took_s: float


def scrub(
    path: str | os.PathLike[str],
    *,
    config: StoreConfig | None = None,
    bytes_per_s: int = 0,
    progress: Progress | None = None,
) -> ScrubReport:
    """Compare every sealed block of a store with its seal, at most at a given rate; 0 means without a limit."""
    layout = find_store(path, read_only=True, create=False)
    with typed_errors(layout.root, "scrubbed"):
        examined = Examination(layout, config or StoreConfig())
        seals = examined.seals
        works = seals.works(CHUNK_BYTES)
        total = sum(work.high - work.low for work in works)
        began, done, broken = time.monotonic(), 0, []
        for work in works:
            for low in compare(work):
                block = seals.block_at(work.start + low)
                broken += [block] if block is not None else []
            done += work.high - work.low
            if progress is not None:
                progress(done, total)
            if bytes_per_s:
                time.sleep(max(0.0, began + done / bytes_per_s - time.monotonic()))
        sealed = sum(table.sealed_bytes for start in seals.starts if (table := seals.seals.table(start)) is not None)
        return ScrubReport(layout.root, sealed, examined.size, tuple(broken), time.monotonic() - began)
