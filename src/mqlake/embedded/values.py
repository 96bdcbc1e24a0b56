"""Values of DuckDB as Spark would print them: its types looked through, and what changes the values of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

HUGE = ("hugeint", "uhugeint")
"""DuckDB's type of a sum of whole numbers, which Arrow has as a decimal."""
Shape = Callable[[Any], Any]
_TIME = re.compile(r"(-?\d+-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([+-]\d\d)(?::?(\d\d))?)?( \(BC\))?")


def is_time(kind: DuckDBPyType) -> bool:
    return kind.id.startswith("timestamp")


def parts_of(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """Return names and types of what lists, maps and structs of this type consist of."""
    return [(name, cast("DuckDBPyType", of)) for name, of in kind.children]


def with_texts(kind: DuckDBPyType) -> str:
    """Return a type with texts instead of the times in it."""
    if is_time(kind):
        return "VARCHAR"
    if kind.id == "list":
        return f"{with_texts(parts_of(kind)[0][1])}[]"
    if kind.id == "map":
        keys, values = (with_texts(of) for _, of in parts_of(kind))
        return f"MAP({keys}, {values})"
    if kind.id == "struct":
        fields = (f'"{name.replace(chr(34), chr(34) * 2)}" {with_texts(of)}' for name, of in parts_of(kind))
        return f"STRUCT({', '.join(fields)})"
    return str(kind)


def shape_of(kind: DuckDBPyType, *, with_zone: bool) -> Shape | None:
    """Return what makes a value of this type as Spark would print it: sums of whole numbers as such, times with or
    without their zone, also inside of others. None if it is so already."""
    if is_time(kind):
        return partial(_time, with_zone=with_zone)
    if kind.id in HUGE:
        return int
    if kind.id == "list":
        item = shape_of(parts_of(kind)[0][1], with_zone=with_zone)
        return item and (lambda values: [shaped(item, value) for value in values])
    if kind.id == "map":
        (_, names), (_, items) = parts_of(kind)
        name = shape_of(names, with_zone=True)  # without its zone, two keys may have the same text
        item = shape_of(items, with_zone=with_zone)
        if name is None and item is None:
            return None
        return lambda values: {shaped(name, key): shaped(item, value) for key, value in values.items()}
    if kind.id == "struct":
        fields = {of: shape_of(child, with_zone=with_zone) for of, child in parts_of(kind)}
        if not any(fields.values()):
            return None
        return lambda values: {of: shaped(fields[of], value) for of, value in values.items()}
    return None


def shaped(shape: Shape | None, value: Any) -> Any:
    return value if shape is None or value is None else shape(value)


def _time(text: str, *, with_zone: bool) -> str:
    """Return a time that DuckDB wrote, in CSV and JSON (`with_zone`) in ISO format. Some times have no zone."""
    found = _TIME.fullmatch(text)
    if found is None:
        return text
    day, clock, fraction, hours, minutes, _ = found.groups()
    if hours is None:
        return f"{day}{'T' if with_zone else ' '}{clock}{f'.{fraction:0<6}' if fraction else ''}"
    if not with_zone:
        return f"{day} {clock}{f'.{fraction}' if fraction else ''}"
    zone = "Z" if hours == "+00" and (minutes or "00") == "00" else f"{hours}:{minutes or '00'}"
    return f"{day}T{clock}.{(fraction or ''):0<6}{zone}"
