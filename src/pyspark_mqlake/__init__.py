"""Register `spark.read.format("mqlake")`. Spark imports packages of this name pattern when it starts."""

from mqlake.spark.source import MqlakeSource as DefaultSource

__all__ = ["DefaultSource"]
