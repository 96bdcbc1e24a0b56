"""A stream of byte ranges: the rows of a batch are its splits, without messages.

The pipeline uses it; its workers read messages from the log themselves. Positions, limits and cuts are those of the
stream of messages (`stream.py`). A batch is one task, which returns the few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from mqlake.spark.options import parse_stream_options
from mqlake.spark.split import Split
from mqlake.spark.stream import MqlakeStreamReader, Offset

RANGES = pa.schema(
    [
        ("store", pa.string()),
        ("file_size", pa.int64()),
        ("queue_file_size", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("readable", pa.int64()),
        ("queues", pa.bool_()),
    ]
)


class Range(NamedTuple):
    """What one task of the pipeline processes."""

    split: Split
    queues: bool
    """Whether the store's queues and index are valid, so that the range can be checked against them."""


@dataclass(frozen=True)
class RangesOfBatch(InputPartition):
    rows: tuple[dict[str, Any], ...]


class MqlakeRanges(DataSource):
    """`spark.readStream.format("mqlake_ranges")`, after it is registered."""

    @classmethod
    def name(cls) -> str:
        return "mqlake_ranges"

    def schema(self) -> StructType:
        return from_arrow_schema(RANGES)

    def streamReader(self, schema: StructType) -> RangeReader:
        return RangeReader(*parse_stream_options(self.options), RANGES)


class RangeReader(MqlakeStreamReader):
    """The stream of messages, but with splits as rows."""

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        splits = [split for split in super().partitions(start, end) if isinstance(split, Split)]
        names = [name for name in RANGES.names if name != "queues"]
        rows = [{name: getattr(split, name) for name in names} for split in splits]
        for row in rows:
            row["queues"] = self._tails.believes(row["store"])
        return [RangesOfBatch(tuple(rows))] if rows else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangesOfBatch):
            yield pa.RecordBatch.from_pylist(list(partition.rows), schema=RANGES)


def ranges_of(rows: DataFrame) -> list[Range]:
    """Return the ranges of a batch, in the order of each log."""
    found = sorted(rows.collect(), key=lambda row: (row["store"], row["start"]))
    return [Range(Split(**{k: v for k, v in row.asDict().items() if k != "queues"}), row["queues"]) for row in found]
