"""The table `messages` of a lake: its columns, and access to rows by physical offset.

Names and types match the Spark table, so the two can be combined without casts. Rows of a file are in log order, and
row groups store their smallest and largest offset. Reading a range therefore reads little more than that range.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.lake.entries import LakeFile
from mqlake.store.scan import COLUMNS

_TYPES = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp[ms, UTC]": pa.timestamp("us", "UTC"),
    "dictionary<int32, string>": pa.string(),
    "list<string>": pa.list_(pa.field("element", pa.string())),
    "map<string, string>": pa.map_(pa.string(), pa.string()),
}
MESSAGES = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        *(pa.field(name, _TYPES[kind], nullable=name == "tags") for name, kind in COLUMNS.items()),
    ]
)


def rows_between(
    root: Path, file: LakeFile, start: int, end: int, columns: Collection[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a file whose records begin in [start, end) of the log, one row group at a time."""
    wanted = None if columns is None else list(dict.fromkeys([*columns, "physical_offset"]))
    for table in groups_between(root / file.path, "physical_offset", start, end - 1, wanted):
        offsets = table.column("physical_offset").to_numpy()
        inside = (offsets >= start) & (offsets < end)
        rows = table if inside.all() else table.filter(pa.array(inside))
        if rows.num_rows:
            yield rows if columns is None else rows.select(list(columns))


def groups_between(
    path: Path, column: str, low: int, high: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the row groups of a file that may have a value of the column in [low, high]."""
    with pq.ParquetFile(path) as file:
        number = file.schema_arrow.get_field_index(column)
        for group in range(file.num_row_groups):
            known = file.metadata.row_group(group).column(number).statistics
            if known is None or not known.has_min_max or (known.min <= high and known.max >= low):
                yield file.read_row_group(group, None if columns is None else list(columns))
