"""`read(spark, path, where=…)`: turn parts of a predicate into options. Spark still filters by the whole predicate.

So options can only make a read smaller, never wrong. Understood are comparisons of selectable columns with literals,
and IN lists of literals, joined by AND. Any other part is left to Spark. With OR, CASE or BETWEEN outside parentheses,
splitting at AND would be wrong, so nothing is turned into options.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import DataFrame, SparkSession

TOKEN = re.compile(
    r"""\s*(?:(?P<text>'[^'\\]*'(?!'))|(?P<number>\d+(?![\w.]))|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign><=>|<=|>=|==|<|>|=|\(|\)|,)|(?P<other>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`[^`]*`|\S))"""
)
MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?(Z|[+-]\d\d:\d\d)?")
LOOSE = {"OR", "CASE", "BETWEEN"}
COMPARISONS = {"=", "==", "<", "<=", ">", ">="}
SETS = {"topic": "topics", "tags": "tags", "queue_id": "queues"}


class Token(NamedTuple):
    kind: str
    text: str


def read(
    spark: SparkSession,
    path: str | Sequence[str],
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    **options: object,
) -> DataFrame:
    """Return the messages of one or more stores for which a predicate holds, with the given columns.

    `options` are those of the source. They take precedence over what `where` says.
    """
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    if where is not None:
        zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
        given = {**options_of(where, zone), **given}
    if columns is not None:
        given["columns"] = json.dumps([*columns, *sorted(columns_in(where or "") - {*columns})])
    rows = spark.read.format("mqlake").options(**given).load([path] if isinstance(path, str) else list(path))
    if where is not None:
        rows = rows.where(where)
    return rows if columns is None else rows.select(*columns)


def options_of(where: str, zone: str) -> dict[str, str]:
    """Return the part of a predicate that options can express. `zone` is the time zone of Spark's session."""
    sets: dict[str, list[set[str]]] = {}
    bounds: dict[str, list[int]] = {}
    for conjunct in conjuncts(tokens_of(where)):
        for name, value in understood(conjunct, zone):
            if isinstance(value, set):
                sets.setdefault(name, []).append(value)
            else:
                bounds.setdefault(name, []).append(value)
    options = {name: json.dumps(sorted(set.intersection(*found) or found[0])) for name, found in sets.items()}
    options |= {name: str(max(0, (max if name.startswith("start") else min)(found))) for name, found in bounds.items()}
    for start, end in (("startTime", "endTime"), ("startOffset", "endOffset")):
        if start in options and end in options and int(options[start]) > int(options[end]):
            del options[end]  # no row can match; Spark's filter drops them all
    if "startOffset" in options or "endOffset" in options:
        options["failOnDataLoss"] = "false"  # a bound is only a filter here: the log need not reach that far
    return options


def tokens_of(where: str) -> list[Token]:
    return [Token(str(match.lastgroup), match[match.lastgroup or 0]) for match in TOKEN.finditer(where)]


def columns_in(where: str) -> set[str]:
    """Return the columns that a predicate may use."""
    from mqlake.spark.schema import ALL_COLUMNS

    return {name for name in ALL_COLUMNS if re.search(rf"\b{name}\b", where, re.IGNORECASE)}


def conjuncts(tokens: list[Token]) -> list[list[Token]]:
    """Return the parts between the ANDs outside parentheses. Empty if AND does not bind the parts."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text == "(") - (token.text == ")")
        word = token.text.upper() if token.kind == "name" and depth == 0 else ""
        if word in LOOSE or token.text in ("-", "/", "*") or depth < 0:  # these signs may begin a comment
            return []
        if word == "AND":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def understood(part: list[Token], zone: str) -> Iterator[tuple[str, Any]]:
    """Yield options implied by one conjunct; they may select more than it does. Nothing if it has another form."""
    words = [token.text.lower() if token.kind in ("name", "sign") else token.kind for token in part]
    if words == ["array_contains", "(", "keys", ",", "text", ")"]:
        yield "keys", {_literal(part[4])}
        return
    if len(part) < 3 or part[0].kind != "name":
        return
    column, sign = words[0], words[1]
    if words[2] == "timestamp" and sign in COMPARISONS:
        part, words = [*part[:2], *part[3:]], [*words[:2], *words[3:]]
    if column in SETS:
        literals = [part[2]] if sign in ("=", "==") and len(part) == 3 else _listed(part)
        kind = "number" if column == "queue_id" else "text"
        if literals and all(token.kind == kind and _literal(token) and _fits(token) for token in literals):
            yield SETS[column], {_literal(token) for token in literals}
    elif len(part) == 3 and sign in COMPARISONS:
        if column == "physical_offset" and words[2] == "number" and len(part[2].text) < 18:
            yield from _bounds("Offset", sign, int(part[2].text), int(part[2].text))
        elif column == "store_timestamp" and words[2] == "text" and MOMENT.fullmatch(_literal(part[2])):
            with contextlib.suppress(ValueError):  # no such date
                yield from _bounds("Time", sign, *_moments(_literal(part[2]), zone))


def _literal(token: Token) -> str:
    return token.text[1:-1] if token.kind == "text" else token.text


def _fits(token: Token) -> bool:
    return token.kind == "text" or len(token.text) < 10


def _listed(part: list[Token]) -> list[Token]:
    """Return the literals of `column IN (a, b)`."""
    if part[1].text.upper() != "IN" or len(part) < 5 or part[2].text != "(" or part[-1].text != ")":
        return []
    inside = part[3:-1]
    if len(inside) % 2 == 0 or any(token.text != "," for token in inside[1::2]):
        return []
    return inside[::2]


def _bounds(what: str, sign: str, low: int, high: int) -> Iterator[tuple[str, int]]:
    """Turn a comparison with a value in [low, high] into bounds of a half-open range."""
    if sign in ("=", "==", ">", ">="):
        yield f"start{what}", low
    if sign in ("=", "==", "<", "<="):
        yield f"end{what}", high + 1


def _moments(text: str, zone: str) -> tuple[int, int]:
    """Return the earliest and the latest milliseconds that a time can mean: it is ambiguous when clocks change."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        try:
            moment = moment.replace(tzinfo=ZoneInfo(zone))
        except (ZoneInfoNotFoundError, ValueError):  # a zone that only Java knows
            moment = moment.replace(tzinfo=ZoneInfo("UTC"))
            return _ms(moment - timedelta(hours=18)), _ms(moment + timedelta(hours=18))
    stamps = [_ms(moment.replace(fold=fold)) for fold in (0, 1)]
    return min(stamps), max(stamps)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000 // 1)
