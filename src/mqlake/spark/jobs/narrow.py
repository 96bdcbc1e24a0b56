"""Find out which columns and rows of the view `messages` a query needs, from Spark's optimized plan.

Spark does not tell a Python source which columns and rows a query needs, but its optimized plan shows it. The
projection and the filter stand right above each read, and nothing above them sees more. So

- a column that neither of them names cannot change the result, whatever it holds. The view returns a constant instead,
  with the same name, type and nullability, so the query keeps its meaning;
- a row that fails the filter cannot change the result either. Parts of the filter become options (`predicate.py`), and
  the filter stays in the query. Only options that a scan decides row by row are used. Times, queue files and the index
  narrow a read by assumptions that usually hold, and here the user did not ask for those.

If the plan has another shape, nothing is narrowed. A query that reads the view several times gets the columns of all
its reads. It gets options only if it has one read, because they would apply to all reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, TimestampType

from mqlake.spark.predicate import options_of
from mqlake.spark.schema import DEFAULT_COLUMNS, spark_schema
from mqlake.spark.topics import is_internal

RELATION = "DataSourceV2ScanRelation"
SHOWN = "RelationV2["
"""How such a node appears in the text of a plan."""
EXACT = ("topics", "tags", "queues", "keys", "startOffset", "endOffset", "failOnDataLoss")
COMPARISONS = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
TURNED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
CHEAPEST = "size"
"""Read if a query needs no column at all."""


@dataclass(frozen=True)
class Need:
    """What a query needs from the source."""

    columns: frozenset[str]
    options: dict[str, str] = field(default_factory=dict)


EVERYTHING = Need(frozenset(DEFAULT_COLUMNS))


def need_of(query: DataFrame) -> Need | None:
    """Return what a query needs from mqlake sources: EVERYTHING if that is unknown, None if it reads none."""
    if not hasattr(query, "_jdf"):  # Spark Connect
        return EVERYTHING
    plan = query._jdf.queryExecution().optimizedPlan()
    shown = plan.treeString().count(SHOWN)
    if not shown:
        return None
    reads = list(_reads(plan, []))
    known = [read for read in reads if read is not None]
    if len(known) != shown:  # one has another shape, or the walk does not reach it
        return EVERYTHING
    columns = frozenset(name for seen, _ in known for name in seen)
    return Need(columns, _options(known[0][1]) if len(known) == 1 else {})


def _options(conditions: list[Any]) -> dict[str, str]:
    """Return the options implied by the conjuncts of a filter that a scan decides row by row."""
    where = " and ".join(text for condition in conditions if (text := _text(condition)) is not None)
    options = {name: text for name, text in options_of(where, "UTC").items() if name in EXACT}
    if any(is_internal(topic) for topic in json.loads(options.get("topics", "[]"))):
        del options["topics"]  # naming such a topic would include it, but the view has no internal topics
    return {**options, "via": "scan"} if options else {}


def _reads(node: Any, above: list[Any]) -> Iterator[tuple[set[str], list[Any]] | None]:
    """Yield, for each of our reads below a node, its columns and the conjuncts of its filter; None if unknown."""
    if _kind(node) == RELATION:
        if node.relation().table().name() == "mqlake":
            yield _asked(node, above)
        return
    for child in _items(node.children()):
        yield from _reads(child, [*above, node])
    for subquery in _items(node.subqueries()):
        yield from _reads(subquery, [])


def _asked(relation: Any, above: list[Any]) -> tuple[set[str], list[Any]] | None:
    """Return what the nodes above a relation see of it: filters, then a projection or an aggregate, or None."""
    columns = {attribute.exprId().id(): attribute.name() for attribute in _items(relation.output())}
    seen: set[str] = set()
    conditions: list[Any] = []
    for node in reversed(above):
        seen |= {columns[a.exprId().id()] for a in _items(node.references().toSeq()) if a.exprId().id() in columns}
        if _kind(node) in ("Project", "Aggregate"):
            return seen, conditions
        if _kind(node) != "Filter":
            return None
        conditions += _conjuncts(node.condition())
    return None


def _conjuncts(condition: Any) -> list[Any]:
    if _kind(condition) == "And":
        return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]
    return [condition]


# ---- Spark expressions as texts that `predicate.py` understands


def _text(expression: Any) -> str | None:
    """Return a conjunct as SQL. None if it is of no use or cannot be written unambiguously."""
    kind, parts = _kind(expression), _items(expression.children())
    if kind in COMPARISONS:
        sign, (left, right) = COMPARISONS[kind], parts
        if _column(left) is None:
            sign, left, right = TURNED[sign], right, left
        name, value = _column(left), _literal(right)
        return f"{name} {sign} {value}" if name and value else None
    if kind == "In":
        name, values = _column(parts[0]), [_literal(part) for part in parts[1:]]
        return f"{name} in ({', '.join(map(str, values))})" if name and values and all(values) else None
    if kind == "ArrayContains":
        name, value = _column(parts[0]), _literal(parts[1])
        return f"array_contains({name}, {value})" if name and value else None
    return None


def _column(expression: Any) -> str | None:
    return str(expression.name()) if _kind(expression) == "AttributeReference" else None


def _literal(expression: Any) -> str | None:
    """Return a literal with only one possible meaning, else None. Times are in microseconds, and in UTC here."""
    if _kind(expression) != "Literal" or expression.value() is None:
        return None
    kind, value = expression.dataType().simpleString(), expression.value()
    if kind == "string":
        text = value.toString()
        return f"'{text}'" if text and "'" not in text and "\\" not in text else None
    if kind in ("int", "bigint"):
        return str(value) if value >= 0 else None
    if kind == "timestamp":
        try:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        except OverflowError:
            return None
        return f"'{moment.isoformat(timespec='microseconds')}'"
    return None


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]


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
    kind = field.dataType
    if field.nullable:
        return F.lit(None).cast(kind)
    if isinstance(kind, ArrayType):
        return F.array(F.lit(None).cast(kind.elementType))
    if isinstance(kind, MapType):
        return F.create_map(F.lit(""), F.lit(None).cast(kind.valueType))
    if isinstance(kind, TimestampType):
        return F.lit(datetime(1970, 1, 1, tzinfo=UTC))
    return F.lit(bytearray() if isinstance(kind, BinaryType) else "" if isinstance(kind, StringType) else 0).cast(kind)
