"""SQL filters select what RocketMQ's own filter selects, and refuse what it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from mqlake import InvalidFilter, Sql
from tests.helpers import covers
from tests.interop.rocketmq import FILTER_VERSIONS, VERSIONS, RocketMQ, available

pytestmark = [
    pytest.mark.skipif(available() is not None, reason=available() or ""),
    pytest.mark.timeout(900),  # the first run builds the Java project
]

VALUES = [
    *(
        "5",
        "-5",
        "+5",
        "05",
        "5.0",
        "5.5",
        "-0",
        "0",
        "0.0",
        "-0.0",
        "1e3",
        " 7 ",
        "5f",
        "5d",
        "0x10",
        "0x1p3",
        ".5",
        "5.",
    ),
    *("2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808", "1e999", "1_000"),
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "inf",
        "nan",
        "",
        " ",
        "x",
        "it's",
        "TRUE",
        "true",
        "False",
        "٣",
        "\u00e9t\u00e9",
        "xyx",
    ),
]
PROPERTY_SETS = [
    {},
    *({"a": value} for value in VALUES),
    *({"a": value, "b": "5", "c": value} for value in VALUES[::2]),
    {"a": "5", "b": "x", "c": "5.5", "TAGS": "paid", "$p_1": "1"},
]
CONSTANTS = [
    *("5", "-5", "+5", "0", "5L", "5.5", "5.", ".5", "5e0", "1E3", "-5.5", "2147483647", "2147483648", "-2147483648"),
    *("9223372036854775807", "'5'", "'x'", "'it''s'", "''", "TRUE", "false", "NULL", "a", "b", "-a", "(5)", "NOT a"),
]
SINGLE = [
    *("a", "NOT a", "TRUE", "FALSE", "NULL", "NOT TRUE", "NOT NULL", "5", "'x'", "a AND b", "a OR TRUE", "a IS NULL"),
    *("a IS NOT NULL", "NOT (a IS NULL)", "a IS NULL IS NULL", "(a > 5) IS NULL", "a = b = c", "c = (a = b)"),
    *("(a = b) = TRUE", "TRUE = (a = b)", "NOT (5 = a)", "NOT (a = 5)", "NOT a = 5", "a <> b OR c IS NULL"),
    *("a > 5 OR b = 5", "b = 5 OR a > 5", "a > 5 AND b > 4", "NOT (a > 5)", "a > 5 > 3", "a = 5 AND NOT b = 'x'"),
    *("a BETWEEN 1 AND 5", "a BETWEEN 5 AND 1", "a NOT BETWEEN 1 AND 5", "a NOT BETWEEN 5 AND 1", "a BETWEEN -9 AND 9"),
    *("a BETWEEN b AND c", "a BETWEEN 5.5 AND 6", "a BETWEEN NULL AND 5", "a BETWEEN 'x' AND 'y'", "5 BETWEEN a AND b"),
    *("a BETWEEN 1 AND 5 AND b = 5", "a NOT BETWEEN -1 AND 1.5", "a BETWEEN 5 AND 2147483648"),
    *("a IN ('5')", "a IN ('x', '5', 'it''s')", "a NOT IN ('5', 'x')", "a IN (5)", "5 IN ('5')", "(a) IN ('5')"),
    *("a IN ('1','2','3','4','5','x')", "a NOT IN ('')", "a IN ()", "NOT a IN ('5')", "NOT (a IN ('5'))"),
    *(
        "a = 'x' AND /* a comment */ b = 5",
        "a = 5 -- to the end\n",
        "a = 5 -- no end",
        "  a\t=\n5 ",
        "A = 5",
        "a = 5 and b <> 4",
    ),
    *("$p_1 = 1", "_x IS NULL", "a.b = 5", "a == 5", "a != 5", "a = ", "= 5", "(a = 5", "a = 'x", ""),
    *("0.0 = a", "a > 0.0", "1e400 > a", "a = 99999999999999999999", "- - 5 = a", "-(5) = a", "-(a) IS NULL", "+a = 5"),
    *("-'5' IS NULL", "-TRUE IS NULL", "NOT NOT a", "NOT (NOT (a = 5))", "(((a))) = 5", "a IS 5", "a NOT 5", "NOT"),
]
NEW = [
    f"a {negated}{word} {text}"
    for word in ("CONTAINS", "STARTSWITH", "ENDSWITH")
    for negated in ("", "NOT ")
    for text in ("'x'", "''", "'5'", "b", "5", "'it''s'", "'.'")
]
"""Operators that RocketMQ 5 added."""


def compared() -> Iterator[str]:
    for sign in ("=", "<>", ">", ">=", "<", "<="):
        for constant in CONSTANTS:
            yield f"a {sign} {constant}"
            yield f"{constant} {sign} a"
    for left in CONSTANTS[::3]:
        for right in CONSTANTS[::2]:
            yield f"{left} = {right}"
            yield f"{left} < {right}"


def drawn(count: int) -> Iterator[str]:
    """Draw random expressions. More than half of them parse."""
    draw = random.Random(11)

    def value() -> str:
        return draw.choice(["a", "b", "c", "5", "5.5", "-5", "'x'", "TRUE"])

    def condition(depth: int) -> str:
        kind = draw.randrange(8 if depth else 5)
        if kind < 2:
            return f"{value()} {draw.choice(['=', '<>', '>', '<=', '<', '>='])} {value()}"
        if kind == 2:
            return f"{value()} {draw.choice(['IS NULL', 'IS NOT NULL', 'BETWEEN 1 AND 6', 'NOT BETWEEN b AND 6'])}"
        if kind == 3:
            return f"{draw.choice('abc')} {draw.choice(['IN', 'NOT IN'])} ('5', 'x')"
        if kind == 4:
            return value()
        if kind == 5:
            return f"NOT ({condition(depth - 1)})"
        joined = f" {draw.choice(['AND', 'OR'])} ".join(condition(depth - 1) for _ in range(draw.randrange(2, 4)))
        return f"({joined})" if draw.random() < 0.5 else joined

    for _ in range(count):
        yield condition(3)


@covers("P1")
@pytest.mark.parametrize("version", VERSIONS)
def test_expressions_match_the_same_messages_as_in_rocketmq(version: str, record_property: object) -> None:
    expressions = [*SINGLE, *compared(), *drawn(400), *(NEW if version.startswith("5") else [])]
    answers = RocketMQ(version).matches(expressions, PROPERTY_SETS)
    assert len(answers) == len(expressions)
    wrong = []
    taken = 0
    for expression, theirs in zip(expressions, answers, strict=True):
        try:
            ours = Sql(expression)
        except InvalidFilter as error:
            if (
                theirs is not None and "expected the end of the expression" not in error.reason
            ):  # RocketMQ ignores the rest
                wrong.append((expression, "refused here", str(error)))
            continue
        if theirs is None:
            wrong.append((expression, "refused by RocketMQ", ""))
            continue
        taken += 1
        found = [ours.matches(properties) for properties in PROPERTY_SETS]
        wrong += [
            (expression, str(properties), f"here {mine}")
            for properties, mine, other in zip(PROPERTY_SETS, found, theirs, strict=True)
            if mine != other
        ]
    assert not wrong, f"{len(wrong)} differ: {wrong[:12]}"
    assert taken > 500
    record_property(  # type: ignore[operator]
        f"compared: filters of mqlake and of RocketMQ {FILTER_VERSIONS[version]}",
        {"expressions": len(expressions), "decisions": taken * len(PROPERTY_SETS)},
    )
