"""Compact a lake: merge small files of one store into large ones, in the same order.

One commit swaps them. The old files stay for the grace time, for their readers (`lake.vacuum`). No row is read twice: a
version of the lake has either the old files or the new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from mqlake.lake import DONE, Lake, LakeFile, LakeSnapshot, harvest
from mqlake.lake.notes import TABLES
from mqlake.lake.vacuum import GRACE_S, vacuum
from mqlake.spark.jobs.merge import Merge, merge_files
from mqlake.spark.jobs.tasks import run_tasks
from mqlake.spark.reach import reach

TARGET_BYTES = 128 << 20
TASKS_A_COMMIT = 64
MAX_FILES = 64
"""Files of one merge: a worker has all of them open."""


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    deleted: int
    """Files of earlier compactions and of killed tasks that were deleted from disk."""


def compact(spark: SparkSession, lake: str, *, target_bytes: int = TARGET_BYTES, grace_s: float = GRACE_S) -> Compacted:
    """Merge files smaller than `target_bytes`. Delete files that were replaced more than `grace_s` ago."""
    reach(spark, lake)
    opened = Lake.open(lake)
    with opened.lock():
        deleted = vacuum(opened, grace_s)
        before = opened.snapshot()
        while merges := list(plan_merges(opened.snapshot(), target_bytes)):  # several rounds, if files are very many
            for first in range(0, len(merges), TASKS_A_COMMIT):
                some = merges[first : first + TASKS_A_COMMIT]
                _, files = harvest(run_tasks(spark, some, partial(merge_files, opened.place), DONE))
                opened.commit([], files, [file.path for merge in some for file in merge.files])
        after = opened.snapshot()
    old = [file for path, file in before.by_path.items() if path not in after.by_path]
    new = [file for path, file in after.by_path.items() if path not in before.by_path]
    sizes = sum(file.bytes for file in old), sum(file.bytes for file in new)
    return Compacted(len(old), len(new), *sizes, len(deleted))


def plan_merges(snapshot: LakeSnapshot, target_bytes: int) -> Iterator[Merge]:
    """Yield adjacent small files of a store that together have at least the target size, or are the last ones."""
    for table in TABLES.values():
        for _, of_store in itertools.groupby(snapshot.files(table), key=lambda file: file.store):
            for together in _bins(list(of_store), target_bytes):
                if len(together) > 1:
                    yield Merge(snapshot.stores[together[0].store].identity, tuple(together))


def _bins(files: Sequence[LakeFile], target_bytes: int) -> Iterator[list[LakeFile]]:
    together: list[LakeFile] = []
    for file in files:
        full = sum(held.bytes for held in together) >= target_bytes or len(together) == MAX_FILES
        if full or (together and not _follows(together[-1], file)) or file.bytes >= target_bytes:
            yield together
            together = []
        if file.bytes < target_bytes:
            together.append(file)
    yield together


def _follows(before: LakeFile, file: LakeFile) -> bool:
    """Return whether two files may be merged.

    A file of any table but messages says that its whole range went through a stage. A gap between two files did not.
    """
    return file.table == "messages" or before.end == file.start
