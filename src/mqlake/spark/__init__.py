"""The commit log as a table of Spark, without a jar.

    spark = mqlake.spark.session("local[*]")
    spark.read.format("mqlake").option("topics", "orders").load("data/store")
    mqlake.spark.read(spark, "data/store", where="topic = 'orders' and store_timestamp >= '2026-01-01'")
    print(mqlake.spark.explain("data/store", topics="orders"))

Selection travels as options. Spark's own filter push-down is not used: a read that it planned is shared by all scans
of one DataFrame, and one scan's filter would silently be applied to the others.
"""

import importlib
from typing import TYPE_CHECKING

from mqlake.errors import MissingExtra

try:
    import pyspark  # noqa: F401
except ImportError:
    raise MissingExtra("mqlake.spark", "spark") from None

from mqlake.spark.session import session

if TYPE_CHECKING:
    from mqlake.spark.jobs.archive import archive
    from mqlake.spark.jobs.audit import audit
    from mqlake.spark.jobs.compact import compact
    from mqlake.spark.jobs.pipeline import pipeline
    from mqlake.spark.jobs.rebuild import rebuild
    from mqlake.spark.jobs.replay import replay
    from mqlake.spark.jobs.report import report
    from mqlake.spark.jobs.stats import Stats, stats
    from mqlake.spark.jobs.union import union
    from mqlake.spark.jobs.views import Views, views
    from mqlake.spark.predicate import read
    from mqlake.spark.source import MqlakeSource, explain
    from mqlake.spark.stream import lag

PLACES = {
    "MqlakeSource": "source",
    "Stats": "jobs.stats",
    "Views": "jobs.views",
    "archive": "jobs.archive",
    "audit": "jobs.audit",
    "compact": "jobs.compact",
    "explain": "source",
    "lag": "stream",
    "pipeline": "jobs.pipeline",
    "read": "predicate",
    "rebuild": "jobs.rebuild",
    "replay": "jobs.replay",
    "report": "jobs.report",
    "stats": "jobs.stats",
    "union": "jobs.union",
    "views": "jobs.views",
}
"""Where the public names are. A module is imported when one of its names is asked for: Spark starts Python processes of
its own for each query, and what they import is time that the query takes."""

__all__ = [
    "MqlakeSource",
    "Stats",
    "Views",
    "archive",
    "audit",
    "compact",
    "explain",
    "lag",
    "pipeline",
    "read",
    "rebuild",
    "replay",
    "report",
    "session",
    "stats",
    "union",
    "views",
]


def __getattr__(name: str) -> object:
    if name not in PLACES:
        raise AttributeError(f"module 'mqlake.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mqlake.spark.{PLACES[name]}"), name)
