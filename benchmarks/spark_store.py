"""The store that the rows on Spark read, made once.

A hundred topics take turns, every message has a tag and a key of its own, and their times are those of one whole day.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from mqlake import Message, MessageStore

TOPICS = 100
OVERHEAD = 128
"""Bytes of a record beside its body, here."""
DAY_MS = 24 * 3600 * 1000
MIDNIGHT_MS = 2_208_988_800_000
"""2040-01-01: store times never run back, so a day that is to be written now must lie ahead."""


def store_in(directory: Path, settings: dict[str, int]) -> Path:
    """The store of so many MiB, with bodies of so many bytes; made where it is not there."""
    store = directory / f"spark-{settings['mib']}-{settings['body']}"
    if not store.exists():
        write(store, settings["mib"], settings["body"])
    return store


def write(path: Path, mib: int, body: int) -> None:
    count = (mib << 20) // (body + OVERHEAD)
    contents = random.Random(2026)
    with MessageStore.open(path) as store:
        clock: Any = store._side.log._appender  # type: ignore[attr-defined]
        for start in range(0, count, 100):
            # every body another: a few that return would be a dictionary to Parquet
            block = contents.randbytes(100 * body)
            clock.last_timestamp = MIDNIGHT_MS + start * DAY_MS // count
            store.put_many(
                [
                    Message(f"topic-{i % TOPICS}", block[i * body : (i + 1) * body], tags="TagA", keys=f"k{start + i}")
                    for i in range(100)
                ]
            )


def gib_of(store: Path) -> float:
    with MessageStore.open(store, read_only=True) as opened:
        return (opened.end_offset - opened.first_offset) / 2**30


def parquet_of(spark: Any, store: Path) -> Path:
    """Its rows as Spark writes them to Parquet."""
    parquet = store.with_suffix(".parquet")
    if not parquet.exists():
        spark.read.format("mqlake").load(str(store)).write.parquet(str(parquet))
    return parquet


def local_session(**settings: Any) -> Any:
    """Two workers on this machine, of whichever PySpark is there."""
    from mqlake.spark import session

    usual = {"spark_ui_enabled": "false", "spark_driver_memory": "2g", "spark_sql_shuffle_partitions": 2}
    spark = session("local[2]", **{**usual, "spark_ui_showConsoleProgress": "false", **settings})
    spark.sparkContext.setLogLevel("ERROR")
    return spark
