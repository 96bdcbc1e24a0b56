"""Compiles SQL92 expressions over properties, with RocketMQ's grammar: text -> tokens -> one function.

    expression = conjunction { OR conjunction }
    conjunction = equality { AND equality }
    equality   = comparison { ( = | <> ) comparison | IS [NOT] NULL }
    comparison = unary { ( > | >= | < | <= ) unary | [NOT] BETWEEN unary AND unary | [NOT] IN ( text, ... )
                       | [NOT] ( CONTAINS | STARTSWITH | ENDSWITH ) text | [NOT] LIKE text [ESCAPE text] }
    unary      = ( + | - | NOT ) unary | literal | property | ( expression )

As in RocketMQ, NOT binds more tightly than any comparison. Text after a whole expression is an error here; RocketMQ
ignores it. LIKE is our extension: RocketMQ takes it for the name of a property, and so do we if a value may stand
there. Values and comparisons are in `sql_values.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from mqlake.delivery.consume.sql_values import (
    NUMBERS,
    TEXTS,
    WIDEST,
    Node,
    TooWide,
    Unfit,
    boolean,
    constant,
    either,
    equal,
    every,
    is_null,
    like,
    member,
    negation,
    negative,
    ordering,
    property_of,
    searching,
)
from mqlake.errors import InvalidFilter

_TOKEN = r"""(?P<skip>[ \t\n\r\f]+|/\*.*?\*/)
      | (?P<float>\d+\.\d*(?:E[+-]?\d+)?|\.\d+(?:E[+-]?\d+)?|\d+E[+-]?\d+)
      | (?P<whole>0|[1-9]\d*L?)
      | (?P<text>'(?:''|[^'])*')
      | (?P<name>[A-Z_$][A-Z0-9_$]*)
      | (?P<sign><>|>=|<=|[=<>(),+-])"""
_FORM = re.VERBOSE | re.IGNORECASE | re.ASCII | re.DOTALL
LAST_LINE = re.compile(_TOKEN, _FORM)
TOKEN = re.compile(_TOKEN.replace("(?P<skip>", r"(?P<skip>--[^\n\r]*[\n\r]|"), _FORM)
"""A comment after -- needs the end of its line. On the last line it is not looked for: every - would look in vain."""
SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
WORDS = frozenset(["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", *SEARCHES])
ORDERS = (">", ">=", "<", "<=")
LARGEST_LONG = (1 << 63) - 1
LONGEST_LONG = len(str(LARGEST_LONG))
SMALLEST_DOUBLE = 5e-324
DEEPEST = 64
"""Levels of parentheses, signs, NOTs and comparisons of comparisons. Conditions joined by AND or OR are one level."""


class Token(NamedTuple):
    kind: str
    text: str
    at: int


def compile_sql(expression: str) -> Callable[[dict[str, str]], bool]:
    """Return a function that tells whether properties match; InvalidFilter points at an error in the expression.

    If a comparison is impossible, for instance of text with a number, the whole expression does not match.
    """
    if not isinstance(expression, str):
        raise InvalidFilter(repr(expression), 0, "expected a string")
    evaluate = _Parser(expression).whole().evaluate

    def matches(properties: dict[str, str]) -> bool:
        try:
            return evaluate(properties) is True
        except Unfit:
            return False

    return matches


def _tokens(expression: str) -> list[Token]:
    found, at = [], 0
    last_line = 1 + max(expression.rfind("\n"), expression.rfind("\r"))
    while at < len(expression):
        match = (TOKEN if at < last_line else LAST_LINE).match(expression, at)
        if match is None:
            unclosed = expression[at] == "'"
            reason = "a string without its closing '" if unclosed else f"unexpected character {expression[at]!r}"
            raise InvalidFilter(expression, at, reason)
        kind, text = match.lastgroup or "", match.group()
        if kind == "name" and text.upper() in WORDS:
            kind, text = "word", text.upper()
        if kind != "skip":
            found.append(Token(kind, text, at))
        at = match.end()
    found.append(Token("end", "the end", len(expression)))
    return found


class _Parser:
    """A recursive-descent parser for one expression; each method parses one rule of the grammar above."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _tokens(expression)
        self._next = 0
        self._level = 0

    def _wrong(self, reason: str, at: int) -> InvalidFilter:
        return InvalidFilter(self._expression, at, reason)

    def _over(self, node: Node, *parts: Node) -> Node:
        """Return a node that was just made of others; InvalidFilter if it is nested too deeply to be evaluated."""
        depth = 1 + max(part.depth for part in parts)
        self._limit(depth, node.at)
        node.depth = depth
        return node

    def _limit(self, level: int, at: int) -> None:
        if level > DEEPEST:
            raise self._wrong(f"it is nested too deeply; the most is {DEEPEST} levels", at)

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        """Consume the next token if it is one of these words or signs; return its text, or None."""
        token = self._token
        if token.kind not in ("word", "sign") or token.text not in texts:
            return None
        self._next += 1
        return token.text

    def _expect(self, what: str, *texts: str) -> None:
        if self._take(*texts) is None:
            raise self._wrong(f"expected {what}, found {self._token.text}", self._token.at)

    def whole(self) -> Node:
        node = self._disjunction()
        if self._token.kind != "end":
            raise self._wrong(f"expected the end of the expression, found {self._token.text}", self._token.at)
        return self._boolean(node)

    def _boolean(self, node: Node) -> Node:
        if node.kind == "property":
            return self._over(boolean(node), node)
        if not node.is_boolean:
            raise self._wrong("this value is neither true nor false; compare it with something", node.at)
        return node

    def _disjunction(self) -> Node:
        nodes = [self._conjunction()]
        while self._take("OR"):
            nodes.append(self._conjunction())
        return self._joined(either, nodes)

    def _conjunction(self) -> Node:
        nodes = [self._equality()]
        while self._take("AND"):
            nodes.append(self._equality())
        return self._joined(every, nodes)

    def _joined(self, join: Callable[..., Node], nodes: list[Node]) -> Node:
        if len(nodes) == 1:
            return nodes[0]
        conditions = [self._boolean(node) for node in nodes]
        return self._over(join(*conditions), *conditions)

    def _equality(self) -> Node:
        node = self._comparison()
        while sign := self._take("=", "<>", "IS"):
            if sign == "IS":
                negated = self._take("NOT")
                self._expect("NULL", "NULL")
                node = self._over(is_null(node), node)
                node = self._over(negation(node), node) if negated else node
            else:
                node = self._equal(node, self._comparison())
                node = node if sign == "=" else self._over(negation(node), node)
        return node

    def _equal(self, left: Node, right: Node) -> Node:
        for node in (left, right):
            if node.is_constant and node.value is None:
                raise self._wrong("NULL cannot be compared; use IS NULL", node.at)
        if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
            raise self._wrong("TRUE and FALSE cannot be compared with a number or a string", left.at)
        return self._over(equal(left, right), left, right)

    def _comparison(self) -> Node:
        node = self._unary()
        while True:
            sign = self._take(*ORDERS)
            if sign:
                node = self._ordered(sign, node, self._unary())
                continue
            negated = self._token.text == "NOT" and self._is_predicate(self._tokens[self._next + 1])
            self._next += negated
            word = self._take("IN", "BETWEEN", *SEARCHES) or self._take_name("LIKE")
            if word is None:
                return node
            node = self._predicate(word, node, negated=negated)

    @staticmethod
    def _is_predicate(token: Token) -> bool:
        return token.text in ("IN", "BETWEEN", *SEARCHES) or (token.kind == "name" and token.text.upper() == "LIKE")

    def _take_name(self, name: str) -> str | None:
        """Consume a word that is a keyword only here; elsewhere it is the name of a property."""
        if self._token.kind != "name" or self._token.text.upper() != name:
            return None
        self._next += 1
        return name

    def _predicate(self, word: str, node: Node, *, negated: bool) -> Node:
        if word == "BETWEEN":
            low = self._unary()
            self._expect("AND", "AND")
            return self._between(node, low, self._unary(), negated=negated)
        if word == "IN":
            return self._over(member(self._property(node), frozenset(self._texts()), negated=negated), node)
        if word == "LIKE":
            return self._like(node, negated=negated)
        return self._over(searching(word, node, self._text(), negated=negated), node)

    def _like(self, node: Node, *, negated: bool) -> Node:
        if node.kind not in TEXTS:
            raise self._wrong("LIKE needs a property or a string on its left", node.at)
        start, pattern, escape = self._token.at, self._text(), None
        if self._take_name("ESCAPE"):
            at, escape = self._token.at, self._text()
            if len(escape) != 1:
                raise self._wrong("ESCAPE needs exactly one character", at)
        try:
            return self._over(like(node, pattern, escape, negated=negated), node)
        except TooWide:
            raise self._wrong(f"at most {WIDEST} characters may be between two % if a _ is among them", start) from None

    def _ordered(self, sign: str, left: Node, right: Node) -> Node:
        for node in (left, right):
            if node.is_boolean or (node.is_constant and node.kind not in NUMBERS):
                raise self._wrong(f"{sign} compares numbers and properties only", node.at)
        return self._over(ordering(sign, left, right), left, right)

    def _between(self, node: Node, low: Node, high: Node, *, negated: bool) -> Node:
        below = self._ordered("<" if negated else ">=", node, low)
        above = self._ordered(">" if negated else "<=", node, high)
        if negated:
            return self._over(either(below, above), below, above)
        if low.is_constant and high.is_constant and not low.value <= high.value:  # type: ignore[operator]
            raise self._wrong(f"BETWEEN needs the smaller value first: {low.value} is above {high.value}", low.at)
        return self._over(every(below, above), below, above)

    def _property(self, node: Node) -> Node:
        if node.kind != "property":
            raise self._wrong("IN needs a property on its left", node.at)
        return node

    def _texts(self) -> list[str]:
        self._expect("(", "(")
        found = [self._text()]
        while self._take(","):
            found.append(self._text())
        self._expect(") or ,", ")")
        return found

    def _text(self) -> str:
        token = self._token
        if token.kind != "text":
            raise self._wrong(f"expected a string in '...', found {token.text}", token.at)
        self._next += 1
        return token.text[1:-1].replace("''", "'")

    def _unary(self) -> Node:
        self._level += 1
        self._limit(self._level, self._token.at)
        node = self._inner()
        self._level -= 1
        return node

    def _inner(self) -> Node:
        at = self._token.at
        sign = self._take("+", "-", "NOT")
        if sign == "+":
            return self._unary()
        if sign == "-":
            return negative(self._unary(), at)
        if sign == "NOT":
            node = self._boolean(self._unary())
            return self._over(negation(node), node)
        if self._take("("):
            node = self._disjunction()
            self._expect(")", ")")
            return node
        return self._literal()

    def _literal(self) -> Node:
        token = self._token
        if token.kind == "text":
            return constant("text", self._text(), token.at)
        self._next += 1
        if token.kind == "name":
            return property_of(token.text, token.at)
        if token.kind in ("whole", "float"):
            return self._number(token)
        words = {"TRUE": True, "FALSE": False, "NULL": None}
        if token.kind == "word" and token.text in words:
            return constant("boolean", words[token.text], token.at)
        raise self._wrong(f"expected a value, a property or (, found {token.text}", token.at)

    def _number(self, token: Token) -> Node:
        if token.kind == "float":
            value = float(token.text)
            if not SMALLEST_DOUBLE <= value < float("inf"):
                raise self._wrong("a decimal must be above 0 and fit a double; write 0 for zero", token.at)
            return constant("double", value, token.at)
        digits = token.text.rstrip("lL")
        # by its length first: Python refuses to parse thousands of digits
        if len(digits) > LONGEST_LONG or (number := int(digits)) > LARGEST_LONG:
            raise self._wrong(f"the largest number is {LARGEST_LONG}", token.at)
        return constant("int" if number < 1 << 31 else "long", number, token.at)
