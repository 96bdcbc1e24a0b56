"""The commit log as a table of Spark, without a jar.

    spark = mqlake.spark.session("local[*]")
    spark.read.format("mqlake").option("topics", "orders").load("data/store")
    mqlake.spark.read(spark, "data/store", where="topic = 'orders' and store_timestamp >= '2026-01-01'")
    print(mqlake.spark.explain("data/store", topics="orders"))

Selection travels as options. Spark's own filter push-down is not used: a read that it planned is shared by all scans
of one DataFrame, and one scan's filter would silently be applied to the others.
"""

from mqlake.errors import MissingExtra

try:
    import pyspark  # noqa: F401
except ImportError:
    raise MissingExtra("mqlake.spark", "spark") from None

from mqlake.spark.archive import archive
from mqlake.spark.audit import audit
from mqlake.spark.check_split import check_split
from mqlake.spark.compact import compact
from mqlake.spark.pipeline import pipeline
from mqlake.spark.predicate import read
from mqlake.spark.rebuild import rebuild
from mqlake.spark.replay import replay
from mqlake.spark.report_job import report
from mqlake.spark.session import session
from mqlake.spark.source import MqlakeSource, explain
from mqlake.spark.stats_job import Stats, stats
from mqlake.spark.stream import lag
from mqlake.spark.union import union
from mqlake.spark.views import Views, views

__all__ = [
    "MqlakeSource",
    "Stats",
    "Views",
    "archive",
    "audit",
    "check_split",
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
