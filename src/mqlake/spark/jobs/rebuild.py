"""Rebuild as a job: the log harvested part by part, then queues and index files made, one task each or a few.

Only places travel: what a task found, and where in the staging files it lies. The driver chains the pieces, which
proves that every byte of the log is in exactly one, and decides nothing that dispatch would not.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import chain
from pathlib import Path

from pyspark.sql import SparkSession

from mqlake.config import StoreConfig
from mqlake.spark.jobs.answers import answers
from mqlake.store.assemble import build
from mqlake.store.harvest import harvest
from mqlake.store.rebuild import Rebuild, Rebuilt

SMALLEST_PART, LARGEST_PART = 16 << 20, 128 << 20
PARTS_A_CORE = 2


def rebuild(
    spark: SparkSession,
    store: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    config: StoreConfig | None = None,
    part_size: int | None = None,
) -> Rebuilt:
    """Build a store's consume queues and key index from its log, in the place of those it has, or in the folder `out`.

    In place the store must be closed: StoreLocked where a process writes it. `part_size`: bytes of the log for a task.
    """
    target = None if out is None else Path(out).absolute()
    with Rebuild(Path(store).absolute(), target, config or StoreConfig()) as job:
        parts = job.parts(part_size or part_size_for(job.size))
        pieces = chain.from_iterable(answers(spark, parts, partial(harvest, job.staging)))
        works = job.works(pieces, PARTS_A_CORE * (os.cpu_count() or 1))
        return job.finish(answers(spark, works, partial(build, job.site)))


def part_size_for(total: int) -> int:
    """Bytes a part: enough parts to keep every core busy, none so small that starting its task costs more."""
    wanted = PARTS_A_CORE * (os.cpu_count() or 1)
    return max(SMALLEST_PART, min(LARGEST_PART, -(-total // wanted)))
