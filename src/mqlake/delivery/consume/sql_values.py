"""Values of SQL expressions and their comparisons, with RocketMQ's rules. An expression is a tree of functions.

A property is a string, or None if it is missing. Compared with a number, it is parsed as a number of the same kind: an
integer of 32 bits (`int`) or 64 bits (`long`), or a `double`. If it does not parse, the whole expression does not match
(`Unfit`). Two properties are ordered as doubles and tested for equality as strings. An ordering with None is None,
which is neither true nor false. `missing = x` is None too, but `x = missing` is false, and two missing properties are
equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any

Value = str | int | float | bool | None
Evaluate = Callable[[dict[str, str]], Value]
Read = Callable[[str], float]

WHOLE = re.compile(r"[+-]?\d+")
DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?=[fFdD]?\Z)", re.ASCII)
HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+(?=[fFdD]?\Z)", re.ASCII)
NAMED = {"NaN": math.nan, "Infinity": math.inf}
BLANK = "".join(map(chr, range(33)))
"""The characters that Java's `String.trim` removes."""
NUMBERS = frozenset({"int", "long", "double"})
TEXTS = frozenset({"property", "text"})
LONGEST = 1000
"""Digits that may be parsed: Python refuses numbers of several thousand. Zeros in other scripts count too."""
WIDEST = 64
"""Characters between two % of a LIKE pattern, if there is a _ among them: each is compared at each place of a text."""
ORDERS: dict[str, Callable[[Any, Any], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}


class TooWide(Exception):
    """A LIKE pattern that would take the product of its length and the text's to evaluate."""


class Unfit(Exception):
    """Two values cannot be compared. As in RocketMQ, the message then does not match."""


@dataclass(slots=True)
class Node:
    """A part of an expression: the kind of its value, its position in the text, and how to evaluate it."""

    kind: str
    """`property`, `text`, `int`, `long`, `double`, `boolean`; `nothing` is always None."""
    at: int
    evaluate: Evaluate
    is_constant: bool = False
    value: Value = None
    depth: int = 0
    """How many calls its evaluation takes inside of each other."""

    @property
    def is_boolean(self) -> bool:
        return self.kind == "boolean"


def constant(kind: str, value: Value, at: int) -> Node:
    return Node(kind, at, lambda properties: value, True, value)


def property_of(name: str, at: int) -> Node:
    return Node("property", at, lambda properties: properties.get(name))


def negative(node: Node, at: int) -> Node:
    """Return the negative of a number; of anything else None. As in RocketMQ, the result is not a constant."""
    value = node.value
    if node.kind in NUMBERS and isinstance(value, (int, float)):
        negated = -value
        return Node(node.kind, at, lambda properties: negated, value=negated)
    return Node("nothing", at, lambda properties: None)


def boolean(node: Node) -> Node:
    """Return a property used as a condition: false for any string, None if it is missing."""
    inner = node.evaluate
    return Node("boolean", node.at, lambda properties: None if inner(properties) is None else False)


def negation(node: Node) -> Node:
    inner = node.evaluate

    def evaluate(properties: dict[str, str]) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return Node("boolean", node.at, evaluate)


def every(*nodes: Node) -> Node:
    """Join conditions with AND: false once one of them is, None if one of them is None."""
    return _joined(nodes, decisive=False)


def either(*nodes: Node) -> Node:
    """Join conditions with OR: true once one of them is, None if one of them is None."""
    return _joined(nodes, decisive=True)


def _joined(nodes: tuple[Node, ...], *, decisive: bool) -> Node:
    parts = [node.evaluate for node in nodes]

    def evaluate(properties: dict[str, str]) -> Value:
        is_unknown = False
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            is_unknown |= value is None
        return None if is_unknown else not decisive

    return Node("boolean", nodes[0].at, evaluate)


def is_null(node: Node) -> Node:
    inner = node.evaluate
    return Node("boolean", node.at, lambda properties: inner(properties) is None)


def member(node: Node, texts: frozenset[str], *, negated: bool) -> Node:
    inner = node.evaluate

    def evaluate(properties: dict[str, str]) -> Value:
        value = inner(properties)
        return None if value is None else (value in texts) is not negated

    return Node("boolean", node.at, evaluate)


def searching(word: str, node: Node, wanted: str, *, negated: bool) -> Node:
    """Evaluate CONTAINS, STARTSWITH, ENDSWITH: false for a missing property, a non-string, or an empty search."""
    inner = node.evaluate
    search: Callable[[str, str], bool] = {
        "CONTAINS": str.__contains__,
        "STARTSWITH": str.startswith,
        "ENDSWITH": str.endswith,
    }[word]

    def evaluate(properties: dict[str, str]) -> Value:
        value = inner(properties)
        return isinstance(value, str) and bool(wanted) and search(value, wanted) is not negated

    return Node("boolean", node.at, evaluate)


def like(node: Node, pattern: str, escape: str | None, *, negated: bool) -> Node:
    """Evaluate LIKE: % matches any text, _ one character, after `escape` each matches itself; None if missing."""
    inner = node.evaluate
    matches = _like_matcher(pattern, escape)

    def evaluate(properties: dict[str, str]) -> Value:
        value = inner(properties)
        return None if value is None else matches(str(value)) is not negated

    return Node("boolean", node.at, evaluate)


def _like_matcher(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Return a function that tells whether a text matches.

    One regular expression with a `.*` for each % would take exponential time for some texts. The parts between them
    have a fixed length, so the first place where each fits, after the one before it, is always a good one.
    """
    parts, sizes, wild, letters = [""], [0], [False], iter(pattern)
    for letter in letters:
        if letter == "%" and letter != escape:
            parts.append("")
            sizes.append(0)
            wild.append(False)
            continue
        is_any = letter == "_" and letter != escape
        parts[-1] += "." if is_any else re.escape(next(letters, letter) if letter == escape else letter)
        sizes[-1] += 1
        wild[-1] = wild[-1] or is_any
    first, *middle = [re.compile(part, re.DOTALL) for part in parts]
    if not middle:
        return lambda text: first.fullmatch(text) is not None
    last = middle.pop()
    if any(size > WIDEST and has_any for size, has_any in zip(sizes[1:-1], wild[1:-1], strict=True)):
        raise TooWide

    def matches(text: str) -> bool:
        if first.match(text) is None:
            return False
        at = sizes[0]
        for part in middle:
            found = part.search(text, at)
            if found is None:
                return False
            at = found.end()
        return len(text) - sizes[-1] >= at and last.match(text, len(text) - sizes[-1]) is not None

    return matches


def ordering(sign: str, left: Node, right: Node) -> Node:
    first, second, compare = left.evaluate, right.evaluate, ORDERS[sign]
    read_first, read_second = _as_number(left, right), _as_number(right, left)

    def evaluate(properties: dict[str, str]) -> Value:
        one, other = first(properties), second(properties)
        if one is None or other is None:
            return None
        low, high = read_first(one), read_second(other)
        if low == high or low != low or high != high:  # Java also orders 0.0 and -0.0, and NaN
            return compare(_java_order(low), _java_order(high))
        return compare(low, high)

    return Node("boolean", left.at, evaluate)


def equal(left: Node, right: Node) -> Node:
    first, second, compare = left.evaluate, right.evaluate, _equality(left, right)

    def evaluate(properties: dict[str, str]) -> Value:
        one, other = first(properties), second(properties)
        if one is None:
            return True if other is None else None
        return False if other is None else compare(one, other)

    return Node("boolean", left.at, evaluate)


def _equality(left: Node, right: Node) -> Callable[[Value, Value], bool]:
    """Return the function that compares two values of these kinds, neither of them None."""
    kinds = {left.kind, right.kind}
    if kinds & NUMBERS:
        if "boolean" in kinds:
            return lambda one, other: False
        read, read_other = _as_number(left, right), _as_number(right, left)
        return lambda one, other: _java_order(read(one)) == _java_order(read_other(other))
    if right.kind == "boolean" and left.kind in TEXTS:
        return lambda one, other: (str(one).lower() == "true") is other
    if left.kind == "boolean" and right.kind in TEXTS:
        return _unfit
    return lambda one, other: one == other


def _unfit(one: Value, other: Value) -> bool:
    raise Unfit


def _as_number(node: Node, other: Node) -> Callable[[Value], float]:
    """Return the function that converts a node's value to a number comparable with the other node's."""
    if node.kind in TEXTS:
        return READERS.get(other.kind, read_double)  # type: ignore[return-value]
    return float if node.kind != "double" and other.kind == "double" else _as_is  # type: ignore[return-value]


def _as_is(value: float) -> float:
    return value


def read_int(text: str) -> int:
    return _read_whole(text, 1 << 31)


def read_long(text: str) -> int:
    return _read_whole(text, 1 << 63)


def _read_whole(text: str, limit: int) -> int:
    if WHOLE.fullmatch(text) and len(text.lstrip("+-0")) < LONGEST:
        number = int(text)
        if -limit <= number < limit:
            return number
    raise Unfit


def read_double(text: str) -> float:
    text = text.strip(BLANK)
    if match := DECIMAL.match(text):
        return float(match.group())
    if match := HEXADECIMAL.match(text):
        return float.fromhex(match.group())
    sign = -1.0 if text.startswith("-") else 1.0
    named = NAMED.get(text[1:] if text[:1] in ("+", "-") else text)
    if named is None:
        raise Unfit
    return sign * named


def _java_order(value: float) -> tuple[float, int]:
    """Return a key that sorts as Java's `Double.compare`: -0.0 before 0.0, NaN after everything and equal to itself."""
    if value != value:
        return math.inf, 1
    return value, -1 if value == 0 and math.copysign(1.0, value) < 0 else 0


READERS: dict[str, Read] = {"int": read_int, "long": read_long, "double": read_double}
