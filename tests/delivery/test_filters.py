"""Filters: tags, and SQL expressions by RocketMQ's rules; a bad one is an error that points at the place."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mqlake import InvalidFilter, Sql, StoredMessage, Tags
from mqlake.kernel import java_hash
from mqlake.kernel.hosts import pack_host
from mqlake.kernel.reference import Message, encode_record

PROPERTIES = {"a": "5", "b": "x", "price": "5.5", "TAGS": "new", "big": "3000000000", "yes": "TRUE", "blank": " 7 "}


@pytest.mark.parametrize(
    "expression",
    [
        "a = 5",
        "a > 4 AND b = 'x'",
        "A = 5 OR a <= 5",
        "a BETWEEN 5 AND 6",
        "a NOT BETWEEN 6 AND 9",
        "a between -5 and 5",
        "b IN ('x', 'y')",
        "b NOT IN ('y')",
        "c IS NULL",
        "a IS NOT NULL",
        "NOT (c IS NOT NULL)",
        "b CONTAINS 'x' AND TAGS STARTSWITH 'ne' AND TAGS ENDSWITH 'ew' AND TAGS NOT CONTAINS 'z'",
        "price > 5.4 AND price < 5.6",
        "big > 2147483648",
        "a < big",
        "yes = TRUE",
        "TRUE",
        "NOT a",
        "b <> 'y'",
        "'it''s' = 'it''s'",
        "5 > 4",
        "+5 = a",
        "c = d",
        "/* all */ a = 5",
        "NOT (5 = c)",
        "blank > 6.5",
        "a = 5 -- five\n",
        "TAGS LIKE 'n%'",
        "TAGS like '_e_' AND TAGS NOT LIKE '_'",
        "'50%' LIKE '50!%' ESCAPE '!' AND NOT ('505' LIKE '50!%' ESCAPE '!')",
        "'a.c' LIKE 'a.c' AND 'abc' NOT LIKE 'a.c'",
        "like IS NULL AND (NOT (c LIKE '%') OR TRUE)",
    ],
)
def test_expressions_that_match(expression: str) -> None:
    assert Sql(expression).matches(PROPERTIES)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 6",
        "c = 5",
        "c > 5",
        "NOT (c > 5)",
        "c LIKE '%'",
        "NOT (c LIKE '%')",
        "TAGS LIKE 'e'",
        "NOT (c = 5)",
        "c <> 5",
        "b > 5",
        "b > 5 OR a = 5",
        "price > 5",
        "big > 5",
        "blank > 6",
        "a",
        "NULL",
        "FALSE",
        "c NOT IN ('x')",
        "c NOT CONTAINS 'x'",
        "b CONTAINS ''",
        "TRUE = yes",
        "5 = TRUE",
        "-a = 5",
        "NOT a = 5",
    ],
)
def test_expressions_that_do_not_match(expression: str) -> None:
    """A text that cannot be read as the number it meets makes the whole expression no match, as in RocketMQ."""
    assert not Sql(expression).matches(PROPERTIES)


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("", 0, "a value, a property or ( is expected, found the end"),
        ("a >", 3, "a value, a property or ( is expected, found the end"),
        ("a = 5 b", 6, "the expression is over here, found b"),
        ("a = 007", 5, "the expression is over here, found 0"),
        ("a > 'x'", 4, "> compares numbers and properties only"),
        ("a = NULL", 4, "IS NULL asks for it"),
        ("TRUE = 5", 0, "not compared with a number"),
        ("5", 0, "neither true nor false"),
        ("a = 1 AND 'x'", 10, "neither true nor false"),
        ("a BETWEEN 5 AND 4", 10, "BETWEEN begins with the smaller"),
        ("a BETWEEN 5 OR 4", 12, "AND is expected, found OR"),
        ("a IN (5)", 6, "a text in '...' is expected, found 5"),
        ("5 IN ('5')", 0, "IN is asked of a property"),
        ("a IN ('x'", 9, ") or , is expected, found the end"),
        ("(a = 1", 6, ") is expected"),
        ("a = 'x", 4, "without its closing '"),
        ("a # 1", 2, "'#' has no meaning here"),
        ("a = 9223372036854775808", 4, "numbers go up to"),
        ("a > 0.0", 4, "write that as 0"),
        ("a LIKE 5", 7, "a text in '...' is expected, found 5"),
        ("5 LIKE 'x'", 0, "LIKE is asked of a property or a text"),
        ("a LIKE 'x' ESCAPE '!!'", 18, "ESCAPE is followed by one character"),
        ("a > 5 > 3", 0, "> compares numbers and properties only"),
        ("a CONTAINS b", 11, "a text in '...' is expected"),
    ],
)
def test_a_bad_expression_is_an_error_that_points_at_the_place(expression: str, position: int, reason: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        Sql(expression)
    assert caught.value.position == position and reason in str(caught.value)
    assert str(caught.value).splitlines()[-1] == " " * (2 + position) + "^"


def test_the_caret_is_under_its_own_line() -> None:
    with pytest.raises(InvalidFilter) as caught:
        Sql("a = 1\n  AND b >> 2\nAND c = 3")
    assert str(caught.value).splitlines()[1:] == ["    AND b >> 2", "           ^"]


def test_any_text_is_an_expression_or_an_error_and_nothing_else() -> None:
    draw = random.Random(7)
    words = ["a", "b", "NOT", "AND", "OR", "IN", "(", ")", "'x'", "5", "=", "<>", ">", "IS", "NULL", "-", "BETWEEN"]
    matched, outside = 0, []
    for _ in range(5_000):
        expression = " ".join(draw.choices(words, k=draw.randrange(1, 9)))
        try:
            matched += Sql(expression).matches(PROPERTIES)
        except InvalidFilter as error:
            outside += [expression] if not 0 <= error.position <= len(expression) else []
    assert matched > 3 and not outside


def stored(**fields: Any) -> StoredMessage:
    return StoredMessage(encode_record(Message("t", b"", **fields), 0, 0, 0, 1, pack_host("127.0.0.1:1"), False))


def test_tags_choose_by_hash_and_then_exactly() -> None:
    wanted = Tags(" Aa ||b|| ")
    assert wanted.tags == {"Aa", "b"} and wanted.codes is not None
    assert java_hash("Aa") == java_hash("BB") and list(memoryview(wanted.codes).cast("q")) == [98, java_hash("Aa")]
    messages = [stored(tags=tags) for tags in ("Aa", "BB", "b", None)]
    assert [message.tags for message in wanted.select(messages)] == ["Aa", "b"]
    assert Tags("*").codes is None and Tags().select(messages) == messages
    one_hash = Tags("Aa || BB").codes
    assert one_hash is not None and len(one_hash) == 8


@pytest.mark.parametrize(("expression", "position"), [("||", 0), ("amount > 5", 6), ("a || b c", 6), (5, 0)])
def test_tags_that_are_none_are_an_error_that_names_sql(expression: Any, position: int) -> None:
    with pytest.raises(InvalidFilter) as caught:
        Tags(expression)
    assert caught.value.position == position
