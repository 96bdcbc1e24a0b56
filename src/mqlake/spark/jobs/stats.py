"""`stats(spark, stores)`: count the traffic of stores in the workers, one task per split.

With a lake, ranges that its pipeline has counted come from there, and only the rest of the log is read. `Stats.counted`
names the byte ranges in the figures. Nothing is counted twice. What is in neither the log nor the lake is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import InvalidConfig
from mqlake.spark.jobs.queues import LAG, QUEUES, lag_of, queues_of, stores_of
from mqlake.spark.jobs.sketch import estimate
from mqlake.spark.jobs.stats_lake import LakeRows, lake_rows
from mqlake.spark.jobs.stats_rows import MEASURES, ROWS, merge
from mqlake.spark.jobs.stats_split import stats_split
from mqlake.spark.jobs.tasks import run_tasks
from mqlake.spark.options import parse_options
from mqlake.spark.plan import StorePlan, plan
from mqlake.spark.reach import reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

By = Literal["store", "topic", "queue_id", "tags", "time"]
DIMENSIONS: tuple[By, ...] = ("store", "topic", "queue_id", "tags", "time")
TRAFFIC = ("messages", "bytes", "body_bytes", "min_size", "max_size", "latency_ms", "max_latency_ms")


class Counted(NamedTuple):
    """A counted range [start, end) of a store's log. `source` is `log` or `lake`."""

    store: str
    start: int
    end: int
    source: str


@dataclass(frozen=True)
class Stats:
    """The figures of some stores. `rows` holds all that adds up (`stats_rows.py`); the methods are views of it.

    RocketMQ's own topics, half and rolled-back messages are left out unless `internal` is set.
    """

    rows: pa.Table
    counted: tuple[Counted, ...]
    logs: dict[str, tuple[int, int]]
    """The first offset and the end of each store's log."""
    queues: pa.Table
    lag: pa.Table

    def kind(self, kind: str, *, internal: bool = False) -> pa.Table:
        """Return the rows of one kind."""
        chosen = pc.equal(self.rows["kind"], kind)
        return self.rows.filter(chosen if internal else pc.and_not(chosen, self.rows["internal"]))

    def traffic(self, *by: By, internal: bool = False) -> pa.Table:
        """Return messages, bytes, sizes and latency for each value of the given dimensions, or in one row without."""
        for name in by:
            if name not in DIMENSIONS:
                raise InvalidConfig("by", name, f"one of {', '.join(DIMENSIONS)}")
        measures = [(name, MEASURES[name][0]) for name in TRAFFIC]
        found = self.kind("traffic", internal=internal).group_by(list(by)).aggregate(measures)
        found = found.rename_columns([*by, *TRAFFIC])
        return found.sort_by([(name, "ascending") for name in by]) if by else found

    def histogram(self, kind: Literal["size", "latency"], *by: By, internal: bool = False) -> pa.Table:
        """Return the message count of each bucket. `at` is where a bucket begins, in bytes or ms."""
        found = self.kind(kind, internal=internal).group_by([*by, "at"]).aggregate([("messages", "sum")])
        return found.rename_columns([*by, "at", "messages"]).sort_by([(name, "ascending") for name in (*by, "at")])

    def keys(self) -> pa.Table:
        """Return, for each topic over all stores, how many keys its messages have and about how many are distinct."""
        found = self._over_stores("keys")
        distinct = [estimate(sketch) for sketch in found["sketch"].to_pylist()]
        return found.select(["topic", "messages", "error"]).append_column("distinct", pa.array(distinct, pa.int64()))

    def top_keys(self) -> pa.Table:
        """Return the most frequent keys. Each occurs at least `messages` and at most `at_most` times."""
        bounds = dict(zip(*(self._over_stores("keys")[name].to_pylist() for name in ("topic", "error")), strict=True))
        found = self._over_stores("key")
        unseen = np.array([bounds[topic] for topic in found["topic"].to_pylist()], np.int64) - found["error"].to_numpy()
        at_most = pa.array(found["messages"].to_numpy() + unseen, pa.int64())
        order = [("topic", "ascending"), ("messages", "descending"), ("name", "ascending")]
        return found.select(["topic", "name", "messages"]).append_column("at_most", at_most).sort_by(order)

    def _over_stores(self, kind: str) -> pa.Table:
        """Return rows of a kind as if all stores were one."""
        found = self.kind(kind)
        return merge([found.set_column(1, ROWS.field("store"), pa.repeat("", found.num_rows))])


def stats(
    spark: SparkSession | None,
    stores: str | Sequence[str] = (),
    *,
    lake: str | None = None,
    split_size: int | None = None,
) -> Stats:
    """Count the traffic of stores (paths or patterns), of a lake, or of both. Without a session: in this process."""
    paths = stores_of((stores,) if isinstance(stores, str) else tuple(stores))
    if not paths and lake is None:
        raise InvalidConfig("stores", stores, "name a store's folder, or a lake")
    if lake is not None and spark is not None:
        reach(spark, lake)
    known = lake_rows(lake, paths) if lake is not None else LakeRows()
    plans = [made for path in paths for made in plans_of(path, known.covered.get(path), split_size)]
    counted = [Counted(made.store, made.start, made.stop, "log") for made in plans if made.start < made.stop]
    counted += [Counted(store, *part, "lake") for store, part in known.covered.items()]
    found = run_tasks(spark, [split for made in plans for split in made.splits], stats_split, ROWS)
    return Stats(
        merge([known.rows, found]),
        tuple(sorted(counted)),
        {made.store: (made.first, made.end) for made in plans},
        run_tasks(spark, paths, queues_of, QUEUES),
        run_tasks(spark, paths, lag_of, LAG),
    )


def plans_of(path: str, covered: tuple[int, int] | None, split_size: int | None = None) -> list[StorePlan]:
    """Return splits for a log, without the part that is already counted."""
    given = {"path": path, "via": "scan", "includeInternal": "true", "failOnDataLoss": "false"}
    if split_size is not None:
        given["splitSize"] = str(split_size)
    if covered is None:
        return plan(parse_options(given))
    parts = ({"endOffset": str(covered[0])}, {"startOffset": str(covered[1])})
    return [made for part in parts for made in plan(parse_options({**given, **part}))]
