"""Makes `spark.read.format("mqlake")` known: Spark looks for packages of this name when it starts."""

from mqlake.spark.source import MqlakeSource as DefaultSource

__all__ = ["DefaultSource"]
