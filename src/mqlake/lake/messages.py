"""Read the table `messages` of a lake.

A file holds one byte range of one store's log. Its rows are ordered by topic, and in log order within a topic. Row
groups begin with a topic where that pays, and have their smallest and largest topic and offset. So the rows of a topic
are read without those of others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.lake.entries import LakeFile
from mqlake.lake.parquet import open_parquet
from mqlake.lake.storage import Storage

Bounds = Mapping[str, tuple[Any, Any]]
"""For some columns, the smallest and the largest wanted value."""


def rows_between(
    storage: Storage,
    file: LakeFile,
    start: int,
    end: int,
    columns: Collection[str] | None = None,
    topics: Collection[str] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a file whose records begin in [start, end) of the log, one row group at a time.

    Row groups without any of the topics are skipped; those that are read may have rows of others.
    """
    wanted = None if columns is None else list(dict.fromkeys([*columns, "physical_offset"]))
    bounds: list[Bounds] = [{"physical_offset": (start, end - 1)}]
    if topics is not None:
        bounds = [{**bounds[0], "topic": (topic, topic)} for topic in topics if file.may_have(topic)]
    for table in groups_within(storage, file, bounds, wanted):
        offsets = table.column("physical_offset").to_numpy()
        inside = (offsets >= start) & (offsets < end)
        rows = table if inside.all() else table.filter(pa.array(inside))
        if rows.num_rows:
            yield rows if columns is None else rows.select(list(columns))


def groups_within(
    storage: Storage, file: LakeFile, bounds: Collection[Bounds], columns: Collection[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the row groups of a file that may have a row within one of the bounds."""
    if not bounds:
        return
    with open_parquet(storage, file) as opened:
        leaves = opened.metadata.schema.names
        places = {name: leaves.index(name) for one in bounds for name in one}
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            if any(all(_overlaps(group, places[name], *limits) for name, limits in one.items()) for one in bounds):
                yield opened.read_row_group(number, None if columns is None else list(columns))


def _overlaps(group: pq.RowGroupMetaData, column: int, low: Any, high: Any) -> bool:
    known = group.column(column).statistics
    return known is None or not known.has_min_max or (known.min <= high and known.max >= low)
