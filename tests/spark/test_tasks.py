"""Jobs run in the workers: every item once, results in the order of the items."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from mqlake.spark.jobs.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([pa.field("item", pa.int64()), pa.field("process", pa.int64()), pa.field("data", pa.binary())])


def describe(size: int, item: int) -> pa.Table:
    if item < 0:
        raise ValueError(f"item {item} is below 0")
    return pa.table([[item] * size, [os.getpid()] * size, [bytes([item])] * size], schema=SCHEMA)


def test_every_item_is_processed_once_in_a_worker_and_results_keep_the_order(spark: SparkSession) -> None:
    table = run_tasks(spark, list(range(7)), partial(describe, 2), SCHEMA)
    assert table.schema == SCHEMA
    assert table["item"].to_pylist() == [item for item in range(7) for _ in range(2)]
    assert os.getpid() not in table["process"].to_pylist()


def test_no_items_give_an_empty_table_of_the_schema(spark: SparkSession) -> None:
    table = run_tasks(spark, [], partial(describe, 2), SCHEMA)
    assert table.schema == SCHEMA and table.num_rows == 0


def test_a_failing_item_fails_the_job_with_its_reason(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="item -3 is below 0"):
        run_tasks(spark, [1, -3], partial(describe, 1), SCHEMA)
