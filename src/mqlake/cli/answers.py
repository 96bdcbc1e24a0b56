"""Print the rows of a query: as a table for people, as CSV or JSON for programs.

Spark itself turns times and dates into texts, in the time zone of its session. In Python times would be in the zone of
this process, and years after 9999 would be an error.
"""

from __future__ import annotations

import base64
import csv
import datetime
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from mqlake.cli import show

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

TABLE_ROWS = 1_000
LONG = 40
"""Wider columns shrink if the screen is too narrow for all."""
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
WITH_ZONE = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
TIMES = re.compile(r"\b(timestamp|date)\b")


def print_answer(answer: DataFrame, form: str) -> int:
    """Print the rows of a result; return how many there were."""
    if not answer.columns:
        return 0
    return {"table": print_table, "csv": print_csv, "json": print_json}[form](answer.columns, answer)


def print_table(names: list[str], answer: DataFrame) -> int:
    rows = with_texts(answer, lambda time: time.cast("string")).take(TABLE_ROWS + 1)
    return write_table(names, [kind.split("(")[0] in NUMBERS for _, kind in answer.dtypes], rows)


def write_table(names: list[str], are_numbers: list[bool], rows: Sequence[Sequence[Any]]) -> int:
    """Print at most TABLE_ROWS rows; return how many. One more row than that says that there are more."""
    if len(rows) == len(names) == 1 and isinstance(rows[0][0], str) and "\n" in rows[0][0]:
        print_lines(rows[0][0])  # EXPLAIN and SHOW CREATE TABLE return such a text
        return 1
    cells = [[cell(value) for value in row] for row in rows[:TABLE_ROWS]]
    widths = [max((len(row[place]) for row in cells), default=0) for place in range(len(names))]
    marks = [">" if number else "*" if width > LONG else "" for number, width in zip(are_numbers, widths, strict=True)]
    table = show.table(*(name + mark for name, mark in zip(names, marks, strict=True)))
    for row in cells:
        table.add_row(*map(Text, row))
    show.console().print(table)
    if len(rows) > TABLE_ROWS:
        click.echo(f"the first {TABLE_ROWS:,} rows; --format csv or json prints all, LIMIT fewer", err=True)
    return min(len(rows), TABLE_ROWS)


def print_lines(text: str) -> None:
    for line in text.splitlines():
        click.echo(show.printable(line))


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return show.body(bytes(value))
    if isinstance(value, dict | list | tuple):
        return show.printable(json.dumps(plain(value), ensure_ascii=False))
    return show.printable(str(value))


def print_csv(names: list[str], answer: DataFrame) -> int:
    return write_csv(names, with_texts(answer, with_zone).toLocalIterator())


def write_csv(names: list[str], rows: Iterator[Any]) -> int:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    return _counted(rows, lambda row: writer.writerow([_field(value) for value in row]))


def _field(value: Any) -> Any:
    value = plain(value)
    return json.dumps(value) if isinstance(value, dict | list) else value


def print_json(names: list[str], answer: DataFrame) -> int:
    return write_json(names, with_texts(answer, with_zone).toLocalIterator())


def write_json(names: list[str], rows: Iterator[Any]) -> int:
    own = _own_names(names)

    def write(row: Iterable[Any]) -> None:
        show.print_json(dict(zip(own, map(plain, row), strict=True)))

    return _counted(rows, write)


def _own_names(names: list[str]) -> list[str]:
    """Return a name of its own for each column: `a`, `a_1`. An object of JSON has no two values of one name."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in itertools.count(1))
        found.append(name if name not in found else next(other for other in others if other not in {*found, *names}))
    return found


def _counted(rows: Iterator[Any], write: Callable[[Any], object]) -> int:
    number = 0
    for number, row in enumerate(rows, 1):  # noqa: B007
        write(row)
    return number


def plain(value: Any) -> Any:
    """Return a value for JSON: bytes in base64, times in ISO format, numbers that JSON lacks as texts.

    Maps and structs are in the order of their names: a map of Spark has lost the log's.
    """
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return dict(sorted((str(plain(name)), plain(item)) for name, item in value.items()))
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# ---- times


def with_zone(time: Column) -> Column:
    """Return a time as a text in ISO format that names its zone."""
    from pyspark.sql import functions as F

    return F.date_format(time, WITH_ZONE)


def with_texts(answer: DataFrame, text_of: Callable[[Column], Column]) -> DataFrame:
    """Return the same rows with texts for times, inside of arrays, maps and structs too."""
    from pyspark.sql import functions as F

    kinds = [field.dataType for field in answer.schema.fields]
    if not any(map(_has_time, kinds)):
        return answer
    places = [f"c{place}" for place in range(len(kinds))]  # two columns of a query may have the same name
    columns = [_text(F.col(place), kind, text_of) for place, kind in zip(places, kinds, strict=True)]
    return answer.toDF(*places).select(*columns)


def _has_time(kind: DataType) -> bool:
    return TIMES.search(kind.simpleString()) is not None


def _text(column: Column, kind: DataType, text_of: Callable[[Column], Column]) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, MapType, StructType, TimestampType

    if isinstance(kind, TimestampType):
        return text_of(column)
    if isinstance(kind, DateType):
        return column.cast("string")
    if not _has_time(kind):
        return column
    if isinstance(kind, ArrayType):
        of = kind.elementType
        return F.transform(column, lambda item: _text(item, of, text_of))
    if isinstance(kind, MapType):
        keys, values = kind.keyType, kind.valueType  # a key names its zone: without it, two may have the same text
        pairs = F.transform(
            F.map_entries(column),
            lambda pair: F.struct(_text(pair["key"], keys, with_zone), _text(pair["value"], values, text_of)),
        )
        return F.map_from_entries(pairs)
    if isinstance(kind, StructType):
        parts = [_text(column[field.name], field.dataType, text_of).alias(field.name) for field in kind.fields]
        return F.when(column.isNotNull(), F.struct(*parts))
    return column  # a time without a zone
