"""Find out which columns and rows of the view `messages` a query needs, from Spark's optimized plan.

Spark does not tell a Python source which columns and rows a query needs, but its optimized plan shows it. The
projection and the filter stand right above each read, and nothing above them sees more. So

- a column that neither of them names cannot change the result, whatever it holds. The view returns a constant instead,
  with the same name, type and nullability, so the query keeps its meaning;
- a row that fails the filter cannot change the result either. Parts of the filter become options (`predicate.py`), and
  the filter stays in the query. The read is a scan, which decides row by row: queue files and the index have what was
  dispatched, which can be less than the log, and here the user did not ask for those.

If the plan has another shape, nothing is narrowed. A query that reads the view several times gets the columns of all
its reads. It gets options only if it has one read, because they would apply to all reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, TimestampType

from mqlake.spark.catalyst import conjuncts, items, kind
from mqlake.spark.predicate import options_of
from mqlake.spark.schema import DEFAULT_COLUMNS, spark_schema

RELATION = "DataSourceV2ScanRelation"
SHOWN = "RelationV2["
"""How such a node appears in the text of a plan."""
CHEAPEST = "size"
"""Read if a query needs no column at all."""


@dataclass(frozen=True)
class Need:
    """What a query needs from the source."""

    columns: frozenset[str]
    options: dict[str, str] = field(default_factory=dict)


EVERYTHING = Need(frozenset(DEFAULT_COLUMNS))


def need_of(plan: Any) -> Need | None:
    """Return what an optimized plan needs from mqlake sources: EVERYTHING if that is unknown, None if it reads none."""
    shown = plan.treeString().count(SHOWN)
    if not shown:
        return None
    reads = list(_reads(plan, []))
    known = [read for read in reads if read is not None]
    if len(known) != shown:  # one has another shape, or the walk does not reach it
        return EVERYTHING
    columns = frozenset(name for seen, _ in known for name in seen)
    options = options_of(known[0][1]) if len(known) == 1 else {}
    return Need(columns, {"via": "scan", **options} if options else {})


def _reads(node: Any, above: list[Any]) -> Iterator[tuple[set[str], list[Any]] | None]:
    """Yield, for each of our reads below a node, its columns and the conjuncts of its filter; None if unknown."""
    if kind(node) == RELATION:
        if node.relation().table().name() == "mqlake":
            yield _asked(node, above)
        return
    for child in items(node.children()):
        yield from _reads(child, [*above, node])
    for subquery in items(node.subqueries()):
        yield from _reads(subquery, [])


def _asked(relation: Any, above: list[Any]) -> tuple[set[str], list[Any]] | None:
    """Return what the nodes above a relation see of it: filters, then a projection or an aggregate, or None."""
    columns = {attribute.exprId().id(): attribute.name() for attribute in items(relation.output())}
    seen: set[str] = set()
    conditions: list[Any] = []
    for node in reversed(above):
        seen |= {columns[a.exprId().id()] for a in items(node.references().toSeq()) if a.exprId().id() in columns}
        if kind(node) in ("Project", "Aggregate"):
            return seen, conditions
        if kind(node) != "Filter":
            return None
        conditions += conjuncts(node.condition())
    return None


# ---- the view


def narrowed(spark: SparkSession, paths: list[str], need: Need) -> DataFrame:
    """Read what is needed from the source. Every other column is a constant."""
    schema = spark_schema(DEFAULT_COLUMNS)
    wanted = [name for name in schema.names if name in need.columns]
    given = {"columns": json.dumps(wanted or [CHEAPEST]), **need.options}
    rows = spark.read.format("mqlake").options(**given).load(paths)
    return rows.select(
        [F.col(f.name) if f.name in wanted else _constant(f).alias(f.name) for f in schema.fields],
    )


def _constant(field: StructField) -> Column:
    """Return any valid value of the column. It is null only if the column is nullable."""
    of = field.dataType
    if field.nullable:
        return F.lit(None).cast(of)
    if isinstance(of, ArrayType):
        return F.array(F.lit(None).cast(of.elementType))
    if isinstance(of, MapType):
        return F.create_map(F.lit(""), F.lit(None).cast(of.valueType))
    if isinstance(of, TimestampType):
        return F.lit(datetime(1970, 1, 1, tzinfo=UTC))
    return F.lit(bytearray() if isinstance(of, BinaryType) else "" if isinstance(of, StringType) else 0).cast(of)
