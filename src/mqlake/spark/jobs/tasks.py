"""Jobs: one function over many items, a Spark task each, in the workers; only small rows come back.

What a job reads and writes is moved by the workers themselves, straight between files: message bodies through the JVM
would cost several times as much. Spark decides where a task runs and runs it again where it failed, so the function
must leave the same behind when it is called twice. Works the same over Spark Connect.
"""

from __future__ import annotations

import gc
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TypeVar
from zipimport import zipimporter

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

Item = TypeVar("Item")
Work = Callable[[Item], pa.Table]
OF_SPARK = re.compile(r"/(pyspark\.zip|py4j-[^/]*-src\.zip|spark-core_[^/]*\.jar)$")


def run_tasks(spark: SparkSession, items: Sequence[Item], work: Work[Item], schema: pa.Schema) -> pa.Table:
    """What `work` returned for the items, in their order. `work` is a function of a module that workers can import, or
    a `functools.partial` of one; its tables have `schema`."""
    if not items:
        return schema.empty_table()
    table: pa.Table = lazily(spark, items, work, schema).toArrow()
    return table.cast(schema)


def lazily(spark: SparkSession, items: Sequence[Item], work: Work[Item], schema: pa.Schema) -> DataFrame:
    """The same as a DataFrame: the work is done when it is asked for its rows."""
    packed = [pickle.dumps(item) for item in items]

    def in_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(pickle.loads(packed[number])).to_batches()

    numbers = spark.range(0, len(packed), 1, max(1, len(packed)))
    return numbers.mapInArrow(in_worker, from_arrow_schema(schema))


def settle() -> None:
    """At the start of a task, what spares time around the next ones in this process: Spark has Python read the tables
    of contents of all archives again that it imported from, and its own are large."""
    _freeze()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and OF_SPARK.search(finder.archive):
            del sys.path_importer_cache[path]


@cache
def _freeze() -> None:
    """Once a process: Spark collects garbage after every task, and need not look at what was imported."""
    gc.collect()
    gc.freeze()
