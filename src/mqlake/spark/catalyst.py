"""Read Spark's plans and expressions: which nodes they have, and which conditions compare a column with literals.

Spark itself has parsed, typed and simplified what is read here, so quotes, cases, types and time zones mean what they
mean to Spark. A condition that is not plainly a comparison is not interpreted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Value = str | int
"""A literal. Times are in microseconds since 1970."""

COMPARISONS = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
MIRRORED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


class Comparison(NamedTuple):
    """`column sign value`. The sign is that of a comparison, `in` for a list, or `has` for an element of an array."""

    column: str
    sign: str
    values: list[Value]


def kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]


def name_of(attribute: Any) -> str:
    """Return the name of one of our columns, which are in small letters. Spark has it as the query writes it."""
    return str(attribute.name()).lower()


def conjuncts(condition: Any) -> list[Any]:
    if kind(condition) == "And":
        return [*conjuncts(condition.left()), *conjuncts(condition.right())]
    return [condition]


def comparison(condition: Any) -> Comparison | None:
    """Return a conjunct as a comparison of a column with literals that are not null. None if it is something else."""
    what, parts = kind(condition), items(condition.children())
    if what in COMPARISONS:
        sign, (left, right) = COMPARISONS[what], parts
        if kind(right) == "AttributeReference":
            sign, left, right = MIRRORED[sign], right, left
        return _compared(left, sign, [_literal(right)])
    if what == "In":
        return _compared(parts[0], "in", [_literal(part) for part in parts[1:]])
    if what == "InSet":  # how Spark writes a long list
        of = parts[0].dataType().simpleString()
        return _compared(parts[0], "in", [_value(item, of) for item in items(condition.hset().toSeq())])
    if what == "ArrayContains":
        return _compared(parts[0], "has", [_literal(parts[1])])
    return None


def _compared(column: Any, sign: str, values: list[Value | None]) -> Comparison | None:
    known = [value for value in values if value is not None]
    if kind(column) != "AttributeReference" or not known or len(known) < len(values):
        return None
    return Comparison(name_of(column), sign, known)


def _literal(expression: Any) -> Value | None:
    if kind(expression) != "Literal":
        return None
    return _value(expression.value(), expression.dataType().simpleString())


def _value(value: Any, of: str) -> Value | None:
    if value is None:
        return None
    if of == "string":  # with a collation the type has another name
        return str(value.toString())
    return int(value) if of in ("int", "bigint", "timestamp") else None
