"""Run one function over many items in the workers, one Spark task per item. Only small rows come back.

Workers read and write files themselves: sending message bodies through the JVM would cost several times as much. Spark
decides where a task runs and repeats it if it fails, so calling the function twice must leave the same result. Also
works over Spark Connect.
"""

from __future__ import annotations

import gc
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar
from zipimport import zipimporter

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Work = Callable[[Item], pa.Table | Iterable[pa.RecordBatch]]
OF_SPARK = re.compile(r"/(pyspark\.zip|py4j-[^/]*-src\.zip|spark-core_[^/]*\.jar)$")


def run_tasks(spark: SparkSession | None, items: Sequence[Item], work: Work[Item], schema: pa.Schema) -> pa.Table:
    """Return what `work` returned for the items, in their order. Without a session it runs in this process.

    `work` is a function of a module that workers can import, or a `functools.partial` of one. It returns tables with
    `schema`, or yields batches.
    """
    if not items:
        return schema.empty_table()
    if spark is None:
        made = (work(item) for item in items)
        tables = [each if isinstance(each, pa.Table) else pa.Table.from_batches(each, schema) for each in made]
        return pa.concat_tables(tables).cast(schema)
    table: pa.Table = lazily(spark, items, work, schema).toArrow()
    return table.cast(schema)


def lazily(spark: SparkSession, items: Sequence[Item], work: Work[Item], schema: pa.Schema) -> DataFrame:
    """Return the same as a lazy DataFrame: an action runs the work."""
    from pyspark.sql.pandas.types import from_arrow_schema

    packed = [pickle.dumps(item) for item in items]

    def in_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = work(pickle.loads(packed[number]))
                yield from made.to_batches() if isinstance(made, pa.Table) else made

    numbers = spark.range(0, len(packed), 1, max(1, len(packed)))
    return numbers.mapInArrow(in_worker, from_arrow_schema(schema))


def settle() -> None:
    """Save time around the following tasks of this process. Call it at the start of a task.

    Without this, Python rereads the tables of contents of all archives it imported from, and Spark's are large.
    """
    _freeze()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and OF_SPARK.search(finder.archive):
            del sys.path_importer_cache[path]


@cache
def _freeze() -> None:
    """Exempt what was imported from garbage collection, once per process: Spark collects after every task."""
    gc.collect()
    gc.freeze()
