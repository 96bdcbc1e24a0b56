"""Delete files that no longer count, after a grace time in which readers may finish.

There are two kinds: files that a compaction replaced, which the manifest lists; and files that no commit names, left by
killed tasks. Only the holder of the lake's lock deletes, and only files older than the grace time. Where the storage
has no lock, another job may be about to commit a file that no commit names yet: those are left for an hour in any case.
"""

from __future__ import annotations

import time

from mqlake.lake.delta import LOG
from mqlake.lake.entries import TABLES
from mqlake.lake.lake import Lake
from mqlake.lake.typed import TypedTable, typed_topics

GRACE_S = 3600.0


def vacuum(lake: Lake, grace_s: float = GRACE_S) -> list[str]:
    """Delete these files and return their paths. The caller holds the lake's lock."""
    snapshot = lake.snapshot()
    before = time.time() - grace_s
    replaced = [path for path, when_ms in snapshot.removed.items() if when_ms <= before * 1000]
    lake.storage.delete(replaced)
    if replaced:
        lake.commit([], [], forget=replaced)
    if not lake.storage.exclusive:
        before = min(before, time.time() - GRACE_S)
    orphans = [
        file.name
        for table in TABLES
        for file in lake.storage.files(f"{table}/")
        if file.time <= before and file.name not in snapshot.by_path and file.name not in snapshot.removed
    ]
    orphans = [name for name in orphans if f"/{LOG}/" not in name]
    for topic in typed_topics(lake.storage):
        orphans += TypedTable(lake.storage, topic).unknown(before)
    lake.storage.delete(orphans)
    return replaced + orphans
