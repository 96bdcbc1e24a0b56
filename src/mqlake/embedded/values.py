"""Values of DuckDB as Spark would print them: its types looked through, and what changes the values of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

WHOLE = re.compile(r"null|boolean|u?(tiny|small|big)?int(eger)?|float|double|decimal|varchar|blob|uuid|enum")
"""DuckDB's types whose values all reach Python. Values of other types are made texts by DuckDB: Python has no date
after the year 9999, and Arrow no long interval."""
NESTED = ("list", "array", "map", "struct", "tuple", "union")
HUGE = ("hugeint", "uhugeint")
"""DuckDB's type of a sum of whole numbers."""
Shape = Callable[[Any], Any]
_TIME = re.compile(r"(-?\d+-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([+-]\d\d)(?::?(\d\d))?)?")
_INTERVAL = re.compile(
    r"(?:(-?\d+) years? ?)?(?:(-?\d+) months? ?)?(?:(-?\d+) days? ?)?(?:(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?"
)
_FAR = re.compile(r"\d{5,}-\d\d-\d\d")
_DAY_US = 86_400_000_000


def parts_of(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """Return names and types of what lists, maps and structs of this type consist of."""
    return [(name, cast("DuckDBPyType", of)) for name, of in kind.children if name != "size" or kind.id != "array"]


def is_whole(kind: DuckDBPyType) -> bool:
    """Tell whether all values of a type reach Python. The keys of a map must be hashable there."""
    if kind.id in NESTED:
        parts = [of for _, of in parts_of(kind)]
        return all(map(is_whole, parts)) and (kind.id != "map" or parts[0].id not in NESTED)
    return WHOLE.fullmatch(kind.id) is not None


def with_texts(kind: DuckDBPyType) -> str:
    """Return a type with texts instead of what would not reach Python."""
    if is_whole(kind):
        return str(kind)
    parts = parts_of(kind) if kind.id in NESTED else []
    texts = [with_texts(of) for _, of in parts]
    if kind.id == "list":
        return f"{texts[0]}[]"
    if kind.id == "array":
        return f"{texts[0]}[{dict(kind.children)['size']}]"
    if kind.id == "map":
        return f"MAP({'VARCHAR' if parts[0][1].id in NESTED else texts[0]}, {texts[1]})"
    if kind.id == "tuple":
        return f"TUPLE({', '.join(texts)})"
    if kind.id == "struct":
        names = (name.replace('"', '""') for name, _ in parts)
        fields = (f'"{name}" {text}' for name, text in zip(names, texts, strict=True))
        return f"STRUCT({', '.join(fields)})"
    return "VARCHAR"


def shape_of(kind: DuckDBPyType, *, with_zone: bool) -> Shape | None:
    """Return what makes a value of this type as Spark would print it: sums of whole numbers as such, times with or
    without their zone, also inside of others. None if it is so already."""
    if kind.id.startswith("timestamp"):
        return partial(_time, with_zone=with_zone)
    if kind.id.startswith("time"):
        return _time_of_day
    if kind.id == "date":
        return _day
    if kind.id == "interval":
        return _interval
    if kind.id in HUGE:
        return int
    if kind.id in ("list", "array"):
        item = shape_of(parts_of(kind)[0][1], with_zone=with_zone)
        return item and (lambda values: [shaped(item, value) for value in values])
    if kind.id == "map":
        (_, names), (_, items) = parts_of(kind)
        # a key without its zone may have the text of another; a nested one is a text already
        name = None if names.id in NESTED else shape_of(names, with_zone=True)
        item = shape_of(items, with_zone=with_zone)
        if name is None and item is None:
            return None
        return lambda values: {shaped(name, key): shaped(item, value) for key, value in values.items()}
    if kind.id in ("struct", "tuple"):
        fields = [shape_of(child, with_zone=with_zone) for _, child in parts_of(kind)]
        if not any(fields):
            return None
        return lambda values: {
            name: shaped(field, value) for field, (name, value) in zip(fields, values.items(), strict=True)
        }
    return None


def shaped(shape: Shape | None, value: Any) -> Any:
    return value if shape is None or value is None else shape(value)


def _time(text: str, *, with_zone: bool) -> str:
    """Return a time that DuckDB wrote, in CSV and JSON (`with_zone`) in ISO format. Some times have no zone."""
    found = _TIME.fullmatch(text)
    if found is None:
        return text
    day, clock, fraction, hours, minutes = found.groups()
    day = _day(day)
    if hours is None:
        return f"{day}{'T' if with_zone else ' '}{clock}{f'.{fraction:0<6}' if fraction else ''}"
    if not with_zone:
        return f"{day} {clock}{f'.{fraction}' if fraction else ''}"
    zone = "Z" if hours == "+00" and (minutes or "00") == "00" else f"{hours}:{minutes or '00'}"
    return f"{day}T{clock}.{(fraction or ''):0<6}{zone}"


def _day(text: str) -> str:
    """Return a date that DuckDB wrote. ISO marks a year of five digits with a sign, but 44 BC is `0044-… (BC)` here."""
    return f"+{text}" if _FAR.fullmatch(text) else text


def _time_of_day(text: str) -> str:
    clock, point, fraction = text.partition(".")
    digits = re.match(r"\d*", fraction)[0]  # type: ignore[index]  # it matches everything
    return f"{clock}.{digits:0<6}{fraction[len(digits) :]}" if point else text


def _interval(text: str) -> str:
    """Return an interval as Python writes Spark's. Those with months cannot be read from Spark; their form is ours."""
    found = _INTERVAL.fullmatch(text)
    if found is None:
        return text
    sign, fraction = found[4], found[8] or ""
    years, months, days, hours, minutes, seconds = (int(found[place] or 0) for place in (1, 2, 3, 5, 6, 7))
    clock_us = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(f"{fraction:0<6}")
    days, clock_us = divmod(days * _DAY_US + (-clock_us if sign else clock_us), _DAY_US)
    months += 12 * years
    parts = [
        f"{months} month{'' if abs(months) == 1 else 's'}" if months else "",
        f"{days} day{'' if abs(days) == 1 else 's'}" if days else "",
        str(timedelta(microseconds=clock_us)),
    ]
    return ", ".join(filter(None, parts))
