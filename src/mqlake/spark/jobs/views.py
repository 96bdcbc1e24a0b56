"""`views(spark, stores, lake)`: register the tables for SQL.

    messages    the messages of the stores' logs, as `spark.read.format("mqlake")` returns them
    queues      one row per queue: its first and its next offset, and the times of its first and last message
    stats       traffic by topic, queue, tag and minute, counted in the workers
    archive     the messages of the lake, if there is one

`Views.sql` reads only what a query needs from `messages` (`narrow.py`). `spark.sql` works too, but reads all columns.
Each statement through `Views.sql` sees the stores as they are at that time, and runs once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from mqlake.errors import InvalidConfig
from mqlake.spark.jobs.narrow import narrowed, need_of
from mqlake.spark.jobs.queues import QUEUES, queues_of, stores_of
from mqlake.spark.jobs.statement import copy_of, moved, plan_query
from mqlake.spark.jobs.stats import TRAFFIC, plans_of
from mqlake.spark.jobs.stats_lake import LakeRows, lake_rows
from mqlake.spark.jobs.stats_rows import MEASURES, ROWS
from mqlake.spark.jobs.stats_split import stats_split
from mqlake.spark.jobs.tasks import lazily
from mqlake.spark.options import parse_options
from mqlake.spark.reach import reach

PLACE = ("store", "topic", "queue_id", "tags", "time")


def views(spark: SparkSession, stores: str | Sequence[str] = (), lake: str | None = None) -> Views:
    """Register the tables of stores (paths or patterns), of a lake, or of both."""
    if lake is not None:
        reach(spark, lake)
    paths = stores_of((stores,) if isinstance(stores, str) else tuple(stores))
    if not paths and lake is None:
        raise InvalidConfig("stores", stores, "name a store's folder, or a lake")
    made = Views(spark, paths, lake)
    made.register()
    return made


class Views:
    """The tables of some stores in one session."""

    def __init__(self, spark: SparkSession, paths: list[str], lake: str | None) -> None:
        self.spark, self.paths, self.lake = spark, paths, lake
        made: dict[str, Callable[[], DataFrame] | None] = {
            "messages": self.messages if paths else None,
            "queues": self.queues if paths else None,
            "stats": self.stats,
            "archive": self.archive if lake is not None else None,
        }
        self._made = {name: make for name, make in made.items() if make is not None}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._made)

    def register(self) -> None:
        """Register all tables, for the stores as they are now."""
        for name, make in self._made.items():
            make().createOrReplaceTempView(name)

    def sql(self, query: str) -> DataFrame:
        """Return the result of a statement, as `spark.sql` does.

        A query is planned with the registered `messages`, which is never read: a DataFrame is a snapshot at its first
        action. Then it is planned again, in a copy of the session, with a `messages` that reads only what it needs. So
        nobody else sees that one. Other statements run once, in the session itself.
        """
        planned = plan_query(self.spark, query)
        self._renew(query if planned is None else f"{query}\n{planned.analyzed().treeString()}")
        if planned is None:
            if "messages" in self._made:
                self.messages().createOrReplaceTempView("messages")
            return self.spark.sql(query)
        need = need_of(planned.optimizedPlan()) if "messages" in self._made else None
        if need is None:
            return self.spark.sql(query)
        own = copy_of(self.spark)
        narrowed(own, self.paths, need).createOrReplaceTempView("messages")
        return moved(own.sql(query), self.spark)

    def _renew(self, text: str) -> None:
        """Register anew the other tables that a text names, for the stores as they are now."""
        for name, make in self._made.items():
            if name != "messages" and re.search(rf"\b{name}\b", text, re.IGNORECASE):
                make().createOrReplaceTempView(name)

    def messages(self) -> DataFrame:
        return self.spark.read.format("mqlake").load(self.paths)

    def queues(self) -> DataFrame:
        return lazily(self.spark, self.paths, queues_of, QUEUES)

    def stats(self) -> DataFrame:
        """Return traffic by minute: what the lake has counted, and the rest counted now."""
        known = lake_rows(self.lake, self.paths) if self.lake is not None else LakeRows()
        plans = [made for path in self.paths for made in plans_of(path, known.covered.get(path))]
        rows = lazily(self.spark, [split for made in plans for split in made.splits], stats_split, ROWS)
        if known.rows.num_rows:
            rows = rows.union(self.spark.createDataFrame(known.rows, from_arrow_schema(ROWS)))
        rows = rows.where("kind = 'traffic' and not internal").withColumnRenamed("time", "minute")
        place = ["minute" if name == "time" else name for name in PLACE]
        return rows.groupBy(*place).agg(*(F.expr(f"{MEASURES[name][0]}({name})").alias(name) for name in TRAFFIC))

    def archive(self) -> DataFrame:
        """Return the lake's messages, without those that the source leaves out too."""
        from mqlake.lake import Lake
        from mqlake.spark.jobs.lake_table import LakeTable

        assert self.lake is not None
        opened = Lake.open(self.lake)
        return LakeTable(opened, opened.snapshot(), None, parse_options({"path": "-"})).frame(self.spark)
