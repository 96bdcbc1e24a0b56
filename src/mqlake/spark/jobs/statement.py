"""Plan a query without running anything.

`spark.sql` executes commands (INSERT, CREATE, CACHE, SET …) while it plans them, and to analyse a statement can be
enough to execute it (EXECUTE IMMEDIATE). So a text is only parsed at first. It is planned here if it is a query: a tree
of the nodes below, which all just read. Any other statement is for `spark.sql`, once.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mqlake.spark.catalyst import items, kind

READING = re.compile(
    "Aggregate|Distinct|Except|Filter|Generate|GlobalLimit|Intersect|Join|LateralJoin|LocalLimit|LocalRelation|Offset"
    "|OneRowRelation|PipeOperator|Pivot|Project|RepartitionByExpression|Sample|Sort|SubqueryAlias|Union|Unpivot"
    "|WithWindowDefinition|Unresolved(Having|Hint|InlineTable|Relation|SubqueryColumnAliases|TVFAliases"
    "|TableValuedFunction|With)"
)
"""What Spark's parser makes of queries. A query with another node is run all the same, but not planned here."""


def plan_query(spark: SparkSession, text: str) -> Any:
    """Return Spark's plan of a query, None if the text is not known to be one. Raises if it cannot be parsed."""
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect does not show its plans
        return None
    state = spark._jsparkSession.sessionState()
    parsed = state.sqlParser().parsePlan(text)
    if not _only_reads(parsed):
        return None
    return state.executePlan(parsed, _classes(spark).execution.CommandExecutionMode.SKIP())


def _only_reads(node: Any) -> bool:
    return READING.fullmatch(kind(node)) is not None and all(map(_only_reads, items(node.children())))


def copy_of(spark: SparkSession) -> SparkSession:
    """Return a session with the same settings, views and functions. What is registered in it does not show here."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def moved(query: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a query of a copied session as one of the session itself."""
    planned = query._jdf.queryExecution().analyzed()
    return DataFrame(_classes(spark).classic.Dataset.ofRows(spark._jsparkSession, planned), spark)


def _classes(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql
