"""Read and write commit logs as Spark tables and streams, without a jar.

    spark = mqlake.spark.session("local[*]")
    spark.read.format("mqlake").option("topics", "orders").load("data/store")
    mqlake.spark.read(spark, "data/store", where="topic = 'orders' and store_timestamp >= '2026-01-01'")
    print(mqlake.spark.explain("data/store", topics="orders"))

The selection is passed as options. Spark's filter push-down is not used: all scans of one DataFrame share one planned
read, so the filter of one scan would silently apply to the others.
"""

import importlib
from typing import TYPE_CHECKING

from mqlake.errors import MissingExtra

try:
    import pyspark  # noqa: F401
except ImportError:
    pass  # what counts in this process works without it; every other name says what is missing
else:
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
    from mqlake.spark.jobs.typed import Typed, type_bodies, typed
    from mqlake.spark.jobs.union import union
    from mqlake.spark.jobs.views import Views, views
    from mqlake.spark.predicate import read
    from mqlake.spark.registration import register
    from mqlake.spark.source import MqlakeSource, explain
    from mqlake.spark.stream import lag

PLACES = {
    "MqlakeSource": "source",
    "Stats": "jobs.stats",
    "Typed": "jobs.typed",
    "Views": "jobs.views",
    "archive": "jobs.archive",
    "audit": "jobs.audit",
    "compact": "jobs.compact",
    "explain": "source",
    "lag": "stream",
    "pipeline": "jobs.pipeline",
    "read": "predicate",
    "rebuild": "jobs.rebuild",
    "register": "registration",
    "replay": "jobs.replay",
    "report": "jobs.report",
    "stats": "jobs.stats",
    "type_bodies": "jobs.typed",
    "typed": "jobs.typed",
    "union": "jobs.union",
    "views": "jobs.views",
}
"""The module of each public name. Modules are imported on first use: Spark starts Python processes for every query, and
their imports add to the query's time."""

__all__ = [
    "MqlakeSource",
    "Stats",
    "Typed",
    "Views",
    "archive",
    "audit",
    "compact",
    "explain",
    "lag",
    "pipeline",
    "read",
    "rebuild",
    "register",
    "replay",
    "report",
    "session",
    "stats",
    "type_bodies",
    "typed",
    "union",
    "views",
]


def __getattr__(name: str) -> object:
    if name not in PLACES and name != "session":
        raise AttributeError(f"module 'mqlake.spark' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"mqlake.spark.{PLACES.get(name, name)}"), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] != "pyspark":
            raise
        raise MissingExtra(f"mqlake.spark.{name}", "spark") from None
