"""SQL in this process, by DuckDB: when it is used, and how its answers are printed as Spark's are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqlake.cli.answers import TABLE_ROWS, write_csv, write_json, write_table
from mqlake.errors import NotAStore
from mqlake.files.place import exists, local_path

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

    from mqlake.embedded.tables import EmbeddedTables

SMALL_BYTES = 2 << 30
"""Logs up to this size are read here: Spark takes longer to start than this takes to scan (docs/pipeline.md)."""
NUMBERS = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*)")
HUGE = ("hugeint", "uhugeint")
"""DuckDB's type of a sum of whole numbers, which Arrow has as a decimal."""
Shape = Callable[[Any], Any]
_TIME = re.compile(r"(-?\d+-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([+-]\d\d)(?::?(\d\d))?)?( \(BC\))?")


def folders_of(stores: Sequence[str]) -> list[str]:
    """Return the folders that paths and patterns name to Spark's source too, each once; NotAStore if one names none."""
    import glob

    found: dict[Path, str] = {}
    for text in stores:
        path = str(local_path(text, "store"))
        is_pattern = glob.has_magic(path) and not exists(path)
        matches = sorted(glob.glob(path)) if is_pattern else [path]  # noqa: PTH207  # patterns may be absolute
        if not matches:
            raise NotAStore(Path(path), "no folder matches this pattern", "check the path")
        for match in matches:
            if not exists(match):
                raise NotAStore(Path(match), "no such folder", "check the path")
            if not Path(match).is_dir():
                raise NotAStore(Path(match), "it is a file", "name the folder of a store")
            found.setdefault(Path(match).resolve(), match)
    return list(found.values())


def is_small(folders: Sequence[str]) -> bool:
    """Tell whether reading the logs takes less time than starting Spark."""
    files = (file for folder in folders for file in (Path(folder) / "commitlog").glob("*"))
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file()) <= SMALL_BYTES


def are_installed(*names: str) -> bool:
    """Tell whether these packages are there, without importing them."""
    try:
        return all(find_spec(name) is not None for name in names)
    except ValueError:  # a program has said that one must not be imported
        return False


class EmbeddedAnswers:
    """Answers queries of the command and of the shell."""

    def __init__(self, tables: EmbeddedTables, form: str) -> None:
        self._tables = tables
        self._form = form

    @property
    def names(self) -> tuple[str, ...]:
        return self._tables.names

    def answer(self, text: str) -> int:
        """Print the rows of a query; return how many there were."""
        found = self._tables.query(text)
        if found is None:
            return 0
        names, kinds, rows = self._tables.rows_of(found)
        shapes = [_shape(kind, with_zone=self._form != "table") for kind in kinds]
        shown = ([_shaped(shape, value) for shape, value in zip(shapes, row, strict=True)] for row in rows)
        if self._form == "table":
            are_numbers = [NUMBERS.fullmatch(str(kind)) is not None for kind in kinds]
            return write_table(names, are_numbers, list(itertools.islice(shown, TABLE_ROWS + 1)))
        return {"csv": write_csv, "json": write_json}[self._form](names, shown)

    def columns(self, table: str) -> Iterator[tuple[str, str, str]]:
        return ((name, kind.lower(), "") for name, kind in self._tables.columns_of(table))


def _shape(kind: DuckDBPyType, *, with_zone: bool) -> Shape | None:
    """Return what makes a value of this type as Spark would print it: sums of whole numbers as such, times with or
    without their zone, also inside of others. None if it is so already."""
    from mqlake.embedded.tables import is_time, parts_of

    if is_time(kind):
        return partial(_time, with_zone=with_zone)
    if kind.id in HUGE:
        return int
    if kind.id == "list":
        item = _shape(parts_of(kind)[0][1], with_zone=with_zone)
        return item and (lambda values: [_shaped(item, value) for value in values])
    if kind.id == "map":
        (_, names), (_, items) = parts_of(kind)
        name = _shape(names, with_zone=True)  # without its zone, two keys may have the same text
        item = _shape(items, with_zone=with_zone)
        if name is None and item is None:
            return None
        return lambda values: {_shaped(name, key): _shaped(item, value) for key, value in values.items()}
    if kind.id == "struct":
        fields = {of: _shape(child, with_zone=with_zone) for of, child in parts_of(kind)}
        if not any(fields.values()):
            return None
        return lambda values: {of: _shaped(fields[of], value) for of, value in values.items()}
    return None


def _shaped(shape: Shape | None, value: Any) -> Any:
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
