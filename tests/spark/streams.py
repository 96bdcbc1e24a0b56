"""Run a stream without Spark: call the reader as Spark does, so that most tests need no JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from mqlake.spark.options import parse_stream_options
from mqlake.spark.schema import arrow_schema
from mqlake.spark.stream import MqlakeStreamReader
from tests.spark.tables import Row

Offset = dict[str, Any]


class Engine:
    """One query. Its checkpoint is `offsets`, which survives a restart."""

    def __init__(self, path: Path | str, **options: Any) -> None:
        self.offsets: list[Offset] = []
        self.restart(path, **options)

    def restart(self, path: Path | str, **options: Any) -> None:
        given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
        source, stream = parse_stream_options(given)
        self.reader = MqlakeStreamReader(source, stream, arrow_schema(source.columns))

    def next_offset(self, limit: ReadLimit | None = None) -> Offset:
        start = self.offsets[-1] if self.offsets else as_json(self.reader.initialOffset())
        return as_json(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))

    def batch(self, limit: ReadLimit | None = None) -> list[Row]:
        """Return the rows of the next batch. Empty if there is nothing new."""
        start = self.offsets[-1] if self.offsets else as_json(self.reader.initialOffset())
        end = self.next_offset(limit)
        if end != start:
            self.offsets.append(end)
        return self.rows(start, end)

    def rows(self, start: Offset, end: Offset) -> list[Row]:
        rows: list[Row] = []
        for split in self.reader.partitions(start, end):
            for batch in self.reader.read(split):
                rows += batch.to_pylist(maps_as_pydicts="strict")
        return rows

    def batches(self, limit: ReadLimit | None = None) -> list[list[Row]]:
        """Return everything that exists, batch by batch."""
        found: list[list[Row]] = []
        while True:
            count = len(self.offsets)
            rows = self.batch(limit)
            if len(self.offsets) == count:
                return found
            found.append(rows)

    def all(self) -> list[Row]:
        return [row for rows in self.batches() for row in rows]


def as_json(offset: Offset) -> Offset:
    """Convert to text and back, as the checkpoint does."""
    back: Offset = json.loads(json.dumps(offset))
    return back


def places(rows: list[Row]) -> list[tuple[str, int]]:
    return [(row["store"], row["physical_offset"]) for row in rows]
