"""Delete files that no longer count, after a grace time in which readers may finish.

There are two kinds: files that a compaction replaced, which the manifest lists; and files that no commit names, left by
killed tasks. Only the holder of the lake's lock deletes, and only files older than the grace time. A file that a task
is writing is therefore never touched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from mqlake.lake.entries import TABLES
from mqlake.lake.lake import Lake

GRACE_S = 3600.0


def vacuum(lake: Lake, grace_s: float = GRACE_S) -> list[str]:
    """Delete these files and return their paths. The caller holds the lake's lock."""
    snapshot = lake.snapshot()
    before = time.time() - grace_s
    replaced = [path for path, when_ms in snapshot.removed.items() if when_ms <= before * 1000]
    for path in replaced:
        (lake.root / path).unlink(missing_ok=True)
    if replaced:
        lake.commit([], [], forget=replaced)
    orphans = [path for path in _on_disk(lake.root) if path not in snapshot.by_path and path not in snapshot.removed]
    orphans = [path for path in orphans if _older(lake.root / path, before)]
    for path in orphans:
        (lake.root / path).unlink(missing_ok=True)
    return replaced + orphans


def _on_disk(root: Path) -> Iterator[str]:
    for table in TABLES:
        for path in (root / table).rglob("*"):
            if path.is_file():
                yield str(path.relative_to(root))


def _older(path: Path, before: float) -> bool:
    try:
        return path.stat().st_mtime <= before
    except FileNotFoundError:
        return False
