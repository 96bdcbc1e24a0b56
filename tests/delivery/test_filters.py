"""Filters: tags, and SQL expressions with RocketMQ's rules. The error for a bad one points at the position."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake import InvalidFilter, Sql, StoredMessage, Tags
from mqlake.delivery.consume.sql import compile_sql
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
    """As in RocketMQ, the whole expression does not match if a string compared with a number is not a number."""
    assert not Sql(expression).matches(PROPERTIES)


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("", 0, "expected a value, a property or (, found the end"),
        ("a >", 3, "expected a value, a property or (, found the end"),
        ("a = 5 b", 6, "expected the end of the expression, found b"),
        ("a = 007", 5, "expected the end of the expression, found 0"),
        ("a > 'x'", 4, "> compares numbers and properties only"),
        ("a = NULL", 4, "use IS NULL"),
        ("TRUE = 5", 0, "cannot be compared with a number"),
        ("5", 0, "neither true nor false"),
        ("a = 1 AND 'x'", 10, "neither true nor false"),
        ("a BETWEEN 5 AND 4", 10, "BETWEEN needs the smaller value first"),
        ("a BETWEEN 5 OR 4", 12, "expected AND, found OR"),
        ("a IN (5)", 6, "expected a string in '...', found 5"),
        ("5 IN ('5')", 0, "IN needs a property"),
        ("a IN ('x'", 9, "expected ) or ,, found the end"),
        ("(a = 1", 6, "expected )"),
        ("a = 'x", 4, "without its closing '"),
        ("a # 1", 2, "unexpected character '#'"),
        ("a = 9223372036854775808", 4, "the largest number is"),
        ("a = " + "9" * 5000, 4, "the largest number is"),
        ("a > 0.0", 4, "write 0 for zero"),
        ("a LIKE 5", 7, "expected a string in '...', found 5"),
        ("5 LIKE 'x'", 0, "LIKE needs a property or a string"),
        ("a LIKE 'x' ESCAPE '!!'", 18, "ESCAPE needs exactly one character"),
        ("a > 5 > 3", 0, "> compares numbers and properties only"),
        ("a CONTAINS b", 11, "expected a string in '...'"),
    ],
)
def test_the_error_for_a_bad_expression_points_at_the_position(expression: str, position: int, reason: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        Sql(expression)
    assert caught.value.position == position and reason in str(caught.value)
    assert str(caught.value).splitlines()[-1] == " " * (2 + position) + "^"


def test_the_caret_is_below_the_line_with_the_error() -> None:
    with pytest.raises(InvalidFilter) as caught:
        Sql("a = 1\n  AND b >> 2\nAND c = 3")
    assert str(caught.value).splitlines()[1:] == ["    AND b >> 2", "           ^"]


def test_any_text_either_compiles_or_raises_invalid_filter() -> None:
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


def test_tags_are_compared_by_hash_and_then_exactly() -> None:
    wanted = Tags(" Aa ||b|| ")
    assert wanted.tags == {"Aa", "b"} and wanted.codes is not None
    assert java_hash("Aa") == java_hash("BB") and list(memoryview(wanted.codes).cast("q")) == [98, java_hash("Aa")]
    messages = [stored(tags=tags) for tags in ("Aa", "BB", "b", None)]
    assert [message.tags for message in wanted.select(messages)] == ["Aa", "b"]
    assert Tags("*").codes is None and Tags().select(messages) == messages
    one_hash = Tags("Aa || BB").codes
    assert one_hash is not None and len(one_hash) == 8


@pytest.mark.parametrize(("expression", "position"), [("||", 0), (5, 0)])
def test_the_error_for_a_bad_tag_expression_points_at_the_position(expression: Any, position: int) -> None:
    with pytest.raises(InvalidFilter) as caught:
        Tags(expression)
    assert caught.value.position == position


def test_like_takes_time_in_proportion_to_the_text_whatever_the_pattern() -> None:
    """As one regular expression, twelve wildcards on five thousand letters would run for years."""
    matches = compile_sql("a LIKE '" + "%a" * 12 + "b'")
    assert not matches({"a": "a" * 5000}) and matches({"a": "a" * 5000 + "b"})


def test_like_with_a_wide_part_of_any_characters_is_refused() -> None:
    """It would be compared at each place of a text: seconds for each message."""
    with pytest.raises(InvalidFilter, match="at most 64 characters may be between two %") as caught:
        compile_sql("a LIKE '%" + "a_" * 33 + "%'")
    assert caught.value.position == 7
    assert compile_sql("a LIKE '%" + "a_" * 32 + "%'")({"a": "b" + "a" * 64})
    assert compile_sql("a LIKE '" + "_" * 99 + "%" + "a" * 99 + "%" + "_" * 99 + "'")({"a": "a" * 297})
    assert compile_sql("a LIKE '%" + "!_" * 99 + "%' ESCAPE '!'")({"a": "_" * 99})


@given(pattern=st.text("ab%_!", max_size=8), text=st.text("ab%_", max_size=8))
def test_like_agrees_with_a_regular_expression(pattern: str, text: str) -> None:
    letters, parts = iter(pattern), []
    for letter in letters:
        wild = {"%": ".*", "_": "."}.get(letter)
        parts.append(re.escape(next(letters, letter)) if letter == "!" else wild or re.escape(letter))
    expected = re.fullmatch("".join(parts), text, re.DOTALL) is not None
    assert compile_sql(f"a LIKE '{pattern}' ESCAPE '!'")({"a": text}) is expected


@pytest.mark.parametrize("joint", ["AND", "OR"])
def test_any_number_of_conditions_can_be_joined(joint: str) -> None:
    assert compile_sql(f" {joint} ".join(["a = '1'"] * 5000))({"a": "1"})


@pytest.mark.parametrize(
    "expression",
    ["(" * 1000 + "a" + ")" * 1000, "NOT " * 1000 + "a", "+" * 1000 + "1 = 1", "a = 'b'" + " = TRUE" * 1000],
    ids=["parentheses", "NOT", "signs", "comparisons"],
)
def test_an_expression_that_is_nested_too_deeply_is_refused(expression: str) -> None:
    with pytest.raises(InvalidFilter, match="nested too deeply; the most is 64 levels"):
        compile_sql(expression)


def test_a_comment_ends_with_its_line_and_signs_on_the_last_line_are_signs() -> None:
    assert compile_sql("a = 5 -- ' \n AND -- x\r b = 'x'")(PROPERTIES) and compile_sql("a = 5 --\nAND a = --5")(
        PROPERTIES
    )
    with pytest.raises(InvalidFilter, match="expected the end of the expression, found -"):
        compile_sql("a = 5 -- no end")


def test_signs_take_time_in_proportion_to_their_number() -> None:
    """If each of them looked for the end of a comment, these would take hours."""
    with pytest.raises(InvalidFilter, match="nested too deeply"):
        compile_sql("a = " + "-" * 1_000_000)


def test_the_error_shows_a_part_of_a_long_expression() -> None:
    with pytest.raises(InvalidFilter) as caught:
        compile_sql("a = '" + "x" * 5_000 + "' AND b >> 2 OR " + "c" * 5_000)
    shown, caret = str(caught.value).splitlines()[1:]
    assert len(shown) < 200 and shown[caret.index("^") - 1 :].startswith(">> 2")


def test_a_property_of_thousands_of_digits_is_no_number() -> None:
    assert not compile_sql("a > 1")({"a": "9" * 10_000}) and compile_sql("a > 1")({"a": "0" * 900 + "2"})
