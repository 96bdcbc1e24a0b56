"""Rebuild queues and index on Spark: read the log part by part, then write the files, one or a few per task.

Only places pass through the driver: what a task found, and where it is in the staging files. The driver chains the
pieces, which proves that every byte of the log is in exactly one of them. It decides nothing that dispatch would not.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import chain

from pyspark.sql import SparkSession

from mqlake.config import StoreConfig
from mqlake.files.place import local_path
from mqlake.inspect.assemble import build
from mqlake.inspect.harvest import harvest
from mqlake.inspect.rebuild import Rebuild, Rebuilt
from mqlake.spark.jobs.answers import answers

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
    """Build a store's consume queues and key index from its log, instead of those it has, or in the folder `out`.

    Without `out` the store must be closed: StoreLocked is raised if a process writes to it. `part_size` is the number
    of log bytes per task.
    """
    target = None if out is None else local_path(out, "out")
    with Rebuild(local_path(store, "store"), target, config or StoreConfig()) as job:
        parts = job.parts(part_size or part_size_for(job.size))
        pieces = chain.from_iterable(answers(spark, parts, partial(harvest, job.staging)))
        works = job.works(pieces, PARTS_A_CORE * (os.cpu_count() or 1))
        return job.finish(answers(spark, works, partial(build, job.site)))


def part_size_for(total: int) -> int:
    """Return the bytes per part: enough parts to keep all cores busy, none so small that starting a task dominates."""
    wanted = PARTS_A_CORE * (os.cpu_count() or 1)
    return max(SMALLEST_PART, min(LARGEST_PART, -(-total // wanted)))
