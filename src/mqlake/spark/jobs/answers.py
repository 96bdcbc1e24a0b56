"""Run jobs whose tasks return Python values. Keep the values small: each passes through the JVM to the driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from mqlake.spark.jobs.tasks import run_tasks

Item = TypeVar("Item")
Answer = TypeVar("Answer")
ANSWER = pa.schema([pa.field("answer", pa.large_binary())])


def answers(spark: SparkSession, items: Sequence[Item], work: Callable[[Item], Answer]) -> list[Answer]:
    """Return what `work` returned for each item, in their order."""
    table = run_tasks(spark, items, partial(_answer, work), ANSWER)
    return [pickle.loads(value.as_py()) for value in table.column(0)]


def _answer(work: Callable[[Item], Answer], item: Item) -> pa.Table:
    return pa.table([pa.array([pickle.dumps(work(item))], pa.large_binary())], schema=ANSWER)
