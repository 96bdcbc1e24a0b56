"""Rows of statistics: the counts of a byte range of the log, in a form that adds up.

Invariant: rows of the same kind and place (PLACE) merge into one: counts are summed, extremes taken, sketches merged
(`merge`). So the rows of two ranges merge to the rows of both together, in any order and any number of steps. They can
stay in a lake for years and be summed there. All kinds share one schema; columns that a kind lacks are null.

    kind      one row per                               measures
    traffic   topic, queue_id, tags, minute (`time`)    messages, bytes, body_bytes, sizes, latency
    pulse     time step: `at` ms long, from `time`      messages, bytes
    trend     topic, time step as in a pulse            messages; only of splits shorter than ten minutes, not in lakes
    retry     topic, consumer group (`name`)            messages: copies in the group's topic %RETRY%…
    dead      topic, consumer group (`name`)            messages: copies in the group's topic %DLQ%…
    size      topic, size from `at` up to twice that    messages
    latency   topic, latency from `at` ms               messages
    keys      topic                                     messages: number of their keys; sketch; error: see below
    key       topic, frequent key (`name`)              messages; error
    damage    damaged range from offset `at`            messages: 1; bytes; `name` is the reason

Latency is the time from born to store, in ms, clipped to [0, 2^31]: clocks differ, and some producers set no time.

A split lists only the TOP_KEYS most frequent keys of a topic, and none that occurs only once. `error` in its row `keys`
is the most often that an omitted key occurs, and each of its rows `key` carries the same number. So after rows were
summed, a key occurs at least `messages` times, and at most `messages` + `error` of the topic - `error` of the key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.lake.tables import STATS
from mqlake.spark.jobs.sketch import merged

Numbers = np.ndarray[Any, np.dtype[Any]]

PLACE = pa.schema(list(STATS)[:9])
_EXTREMES = {"min_size": "min", "max_size": "max", "max_latency_ms": "max"}
MEASURES = {field.name: (_EXTREMES.get(field.name, "sum"), field.type) for field in list(STATS)[9:-1]}
"""How each measure adds up, and its type."""
ROWS = STATS

OTHER_TAGS = "*"
"""Stands for tags that are too many to list. To consumers `*` means all tags."""
STEPS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
"""Step lengths of a pulse. Each is a multiple of those before it."""
MAX_LATENCY_MS = 1 << 31
FINE_LATENCY_MS = 8
"""Below this each millisecond has its own bucket. Above it each doubling has four."""


def rows(kind: str, store: str, **columns: Any) -> pa.Table:
    """Return rows of one kind. Columns not given are null, and a single value applies to all rows."""
    count = len(next(column for column in columns.values() if not isinstance(column, bool)))
    columns = {"internal": False, **columns, "kind": kind, "store": store}
    return pa.table([_column(columns.get(field.name), field.type, count) for field in ROWS], schema=ROWS)


def _column(values: Any, kind: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, kind)
    if isinstance(values, str | bool):
        return pa.repeat(pa.scalar(values, kind), count)
    return (values if isinstance(values, pa.Array) else pa.array(values)).cast(kind)


def merge(tables: list[pa.Table]) -> pa.Table:
    """Merge rows of the same place, and sort by place."""
    table = pa.concat_tables([ROWS.empty_table(), *tables]).combine_chunks()
    numbered = table.drop_columns(["sketch"]).append_column("row", pa.array(np.arange(table.num_rows)))
    measures = [(name, how) for name, (how, _) in MEASURES.items()]
    grouped = numbered.group_by(PLACE.names).aggregate([*measures, ("row", "list")])
    sketches = _merged_sketches(table.column("sketch"), grouped.column("row_list").combine_chunks())
    columns = [grouped.column(field.name) for field in PLACE]
    columns += [grouped.column(f"{name}_{how}") for name, how in measures]
    made = pa.table([column.cast(field.type) for column, field in zip([*columns, sketches], ROWS, strict=True)], ROWS)
    return made.sort_by([(name, "ascending") for name in PLACE.names])


def _merged_sketches(sketches: pa.ChunkedArray, groups: pa.ListArray) -> pa.Array:
    """Return the merged sketch of each group of rows. Most groups have none."""
    has_sketch = pc.is_valid(sketches)
    having = pc.filter(pc.list_parent_indices(groups), has_sketch.take(pc.list_flatten(groups)))
    found: list[bytes | None] = [None] * len(groups)
    for number in pc.unique(having).to_pylist():
        found[number] = merged(sketches.take(groups[number].values).drop_null().to_pylist())
    return pa.array(found, pa.binary())


# ---- buckets


def size_buckets(sizes: Numbers) -> Numbers:
    """Return the bucket of each size. Bucket n begins at 2^n."""
    return np.frexp(sizes.astype(np.float64))[1].astype(np.int64) - 1


def latency_buckets(latencies: Numbers) -> Numbers:
    """Return the bucket of each latency. `latency_at` says where it begins."""
    doublings = np.frexp(np.maximum(latencies, 1).astype(np.float64))[1].astype(np.int64) - 1
    quarter = (latencies >> np.maximum(doublings - 2, 0)) & 3
    return np.where(latencies < FINE_LATENCY_MS, latencies, FINE_LATENCY_MS + (doublings - 3) * 4 + quarter)


def latency_at(buckets: Numbers) -> Numbers:
    """Return where buckets begin, in ms."""
    above = np.maximum(buckets - FINE_LATENCY_MS, 0)
    return np.where(buckets < FINE_LATENCY_MS, buckets, (4 + above % 4) << (above // 4 + 1))
