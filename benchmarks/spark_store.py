"""The store that the rows on Spark read, made once.

A hundred topics take turns, every message has a tag and a unique key, and the store times cover one whole day.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow

from mqlake import MessageStore
from mqlake.ingest.pack import Packer

TOPICS = 100
OVERHEAD = 128
"""Bytes of a record here, without its body."""
DAY_MS = 24 * 3600 * 1000
MIDNIGHT_MS = 2_208_988_800_000
"""2040-01-01: store times never go back, so the day must be in the future."""


def store_in(directory: Path, settings: dict[str, int]) -> Path:
    """Return the store of this many MiB, with bodies of this many bytes. Make it if it does not exist."""
    store = directory / f"spark-{settings['mib']}-{settings['body']}"
    if not store.exists():
        write(store, settings["mib"], settings["body"])
    return store


def write(path: Path, mib: int, body: int, **config: Any) -> None:
    count = (mib << 20) // (body + OVERHEAD)
    contents = random.Random(2026)
    with MessageStore.open(path, **config) as store:
        packer = Packer(store.config.commit_log, "the benchmark")
        for start in range(0, count, 100):
            # Every body is different: Parquet would encode repeated ones as a dictionary.
            block = contents.randbytes(100 * body)
            rows = {
                "topic": [f"topic-{i % TOPICS}" for i in range(100)],
                "body": [block[i * body : (i + 1) * body] for i in range(100)],
                "tags": ["TagA"] * 100,
                "keys": [[f"k{start + i}"] for i in range(100)],
            }
            timestamp = MIDNIGHT_MS + start * DAY_MS // count
            store.put_packed(packer.pack(pyarrow.record_batch(rows)), timestamp=timestamp)


def gib_of(store: Path) -> float:
    with MessageStore.open(store, read_only=True) as opened:
        return (opened.end_offset - opened.first_offset) / 2**30


def parquet_of(spark: Any, store: Path) -> Path:
    """Return the store's rows as Spark writes them to Parquet."""
    parquet = store.with_suffix(".parquet")
    if not parquet.exists():
        spark.read.format("mqlake").load(str(store)).write.parquet(str(parquet))
    return parquet


def local_session(**settings: Any) -> Any:
    """Return a session with two workers on this machine, of whichever PySpark is installed."""
    from mqlake.spark import session

    usual = {"spark_ui_enabled": "false", "spark_driver_memory": "2g", "spark_sql_shuffle_partitions": 2}
    spark = session("local[2]", **{**usual, "spark_ui_showConsoleProgress": "false", **settings})
    spark.sparkContext.setLogLevel("ERROR")
    return spark
