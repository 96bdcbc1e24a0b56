"""`read(spark, path, where=…)`: turn parts of a predicate into options. Spark still filters by the whole predicate.

Spark reads the predicate: it is analysed and optimized over an empty table with the columns of the source. Conjuncts of
the optimized filter that compare a column with literals become options. An option may select more rows than its
conjunct, never fewer, whatever the log holds. So the result is that of `read(…).where(…)`:

- only a scan is used, unless `via` is given: queues and index have what was dispatched, which can be less than the log;
- topics that a read leaves out are not named, because naming one would include it;
- what an option cannot express, such as an empty text, stays a filter;
- an option that the user gave is not changed, and those that belong to it are not added;
- if damage is to be reported, all of the log is read.

A session of Spark Connect does not show its plans. There the predicate is only a filter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from mqlake.spark.bodies import BodySchema, needed, with_values
from mqlake.spark.catalyst import Value, comparison, conjuncts, items, kind, name_of
from mqlake.spark.options import MAX_QUEUE_ID
from mqlake.spark.schema import DEFAULT_COLUMNS, checked_columns, spark_schema
from mqlake.spark.topics import is_internal
from mqlake.store.scan import RAW_BODY

SETS = {("topic", "="): "topics", ("tags", "="): "tags", ("queue_id", "="): "queues", ("keys", "has"): "keys"}
BOUNDS = {"store_timestamp": "Time", "physical_offset": "Offset"}
NO_ROWS = {"startOffset": "0", "endOffset": "0", "failOnDataLoss": "false"}
LARGEST = 10**15
"""Larger bounds stay a filter: options take at most 15 digits."""
TOGETHER = (
    {"topics", "topicsPattern", "keys"},
    {"tags"},
    {"queues"},
    {"startTime", "endTime"},
    {"startOffset", "endOffset", "failOnDataLoss"},
)
"""Options that belong together: if the user gave one of a group, the predicate adds none of it."""


def read(
    spark: SparkSession,
    path: str | Sequence[str],
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    schema: BodySchema | None = None,
    **options: object,
) -> DataFrame:
    """Return the messages of one or more stores for which a predicate holds, with the given columns.

    `options` are those of the source. The result is that of a read with these options and a filter after it. With a
    `schema`, bodies are parsed as JSON, see `bodies.py`.
    """
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    table = _table(where or "", columns, with_damage=_given(given, "onDamage") == "rows")
    asked = asked_by(spark, where, table) if where is not None else Asked([], set())
    given = {**added(asked.conditions, given), **given}
    if columns is not None:
        wanted = {*columns, *asked.columns, *needed(schema)}
        given["columns"] = json.dumps([name for name in table.names if name in wanted])
    rows = spark.read.format("mqlake").options(**given).load([path] if isinstance(path, str) else list(path))
    if where is not None:
        rows = rows.where(where)
    if schema is not None:
        same: dict[str, Any] = options

        def bodies(topic: str | None) -> DataFrame:
            return read(spark, path, where=_of_topic(where, topic), columns=["body"], **same)

        return with_values(rows, schema, table.names if columns is None else columns, bodies)
    return rows if columns is None else rows.select(*columns)


def _of_topic(where: str | None, topic: str | None) -> str | None:
    """Return a predicate for the messages of one topic, or of all for None."""
    if topic is None:
        return where
    escaped = topic.replace("\\", "\\\\").replace("'", "\\'")
    return f"topic = '{escaped}'" + (f" and ({where}\n)" if where is not None else "")  # it may end with a comment


def _table(where: str, columns: Sequence[str] | None, *, with_damage: bool) -> StructType:
    """Return the schema of the table that the predicate is about: all columns, in the order of the source."""
    checked = checked_columns(columns, with_damage=with_damage)
    raw = RAW_BODY in checked or (columns is not None and RAW_BODY in where.lower())
    names = (*DEFAULT_COLUMNS, RAW_BODY) if raw else DEFAULT_COLUMNS
    return spark_schema(checked_columns(names, with_damage=with_damage))


class Asked(NamedTuple):
    """What a predicate asks of a table."""

    conditions: list[Any]
    """Conjuncts that every wanted row fulfils."""
    columns: set[str]
    """The columns that it uses."""


def asked_by(spark: SparkSession, where: str, table: StructType) -> Asked:
    """Return what a predicate asks of a table. Raises as `DataFrame.where` does if the predicate is wrong."""
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect
        return Asked([], {*table.names})
    empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), table)
    planned = empty.where(where)._jdf.queryExecution()
    names = {name_of(attribute) for attribute in items(planned.analyzed().references().toSeq())}
    best = planned.optimizedPlan()
    simple = kind(best) == "Filter" and not items(best.child().children())
    return Asked(conjuncts(best.condition()) if simple else [], names)


def added(conditions: list[Any], given: dict[str, str]) -> dict[str, str]:
    """Return the options that a predicate adds to those that the user gave."""
    if (_given(given, "onDamage") or "skip") != "skip":
        return {}
    options = options_of(conditions, with_internal=_given(given, "includeInternal") == "true")
    for group in TOGETHER:
        if any(_given(given, name) is not None for name in group):
            options = {name: text for name, text in options.items() if name not in group}
    return {"via": "scan", **options} if {"topics", "keys"} & {*options} else options


def _given(given: dict[str, str], name: str) -> str | None:
    """Return the value of an option that the user gave, in small letters. Names may be in any case."""
    return next((text.lower() for known, text in given.items() if known.lower() == name.lower()), None)


def options_of(conditions: list[Any], *, with_internal: bool = False) -> dict[str, str]:
    """Return options that select at least the rows that fulfil all conditions.

    `with_internal` says that the table has internal topics.
    """
    sets: dict[str, set[Value]] = {}
    bounds: dict[str, int] = {}
    for found in filter(None, map(comparison, conditions)):
        name = SETS.get((found.column, "=" if found.sign == "in" else found.sign))
        if name is not None and all(map(_fits, found.values)):
            sets[name] = sets.get(name, {*found.values}) & {*found.values}
        elif found.column in BOUNDS and isinstance(found.values[0], int) and found.sign != "in":
            _narrow(bounds, found.column, found.sign, found.values[0])
    if "topics" in sets and not with_internal:
        sets["topics"] = {topic for topic in sets["topics"] if not is_internal(str(topic))}
    options = {name: str(bound) for name, bound in bounds.items()}
    if not all(sets.values()) or _empty(bounds, "Time") or _empty(bounds, "Offset"):
        return NO_ROWS
    options |= {name: json.dumps(sorted(map(str, values))) for name, values in sets.items()}
    if "startOffset" in options or "endOffset" in options:
        options["failOnDataLoss"] = "false"  # a bound is only a filter here: the log need not reach that far
    return options


def _fits(value: Value) -> bool:
    """Return whether an option can express a value. The character is what bytes that are no text become."""
    if isinstance(value, int):
        return 0 <= value <= MAX_QUEUE_ID
    return value != "" and "\ufffd" not in value


def _narrow(bounds: dict[str, int], column: str, sign: str, value: int) -> None:
    """Narrow the half-open range of a column by a comparison. A range of times is in whole milliseconds."""
    what, low = BOUNDS[column], value // 1000 if column == "store_timestamp" else value
    if sign in ("=", ">", ">=") and 0 <= low < LARGEST:
        bounds[f"start{what}"] = max(bounds.get(f"start{what}", 0), low)
    if sign in ("=", "<", "<=") and low + 1 < LARGEST:
        bounds[f"end{what}"] = min(bounds.get(f"end{what}", LARGEST), max(0, low + 1))


def _empty(bounds: dict[str, int], what: str) -> bool:
    return bounds.get(f"start{what}", 0) > bounds.get(f"end{what}", LARGEST)
