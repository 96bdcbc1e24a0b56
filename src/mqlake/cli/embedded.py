"""SQL in this process, by DuckDB: when it is used, and how its answers are printed as Spark's are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mqlake.cli.answers import TABLE_ROWS, write_csv, write_json, write_table
from mqlake.errors import NotAStore
from mqlake.files.place import exists, local_path

if TYPE_CHECKING:
    from mqlake.embedded.tables import EmbeddedTables

SMALL_BYTES = 2 << 30
"""Logs up to this size are read here: Spark takes longer to start than this takes to scan (docs/pipeline.md)."""
NUMBERS = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*)")


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

    def cut(self, text: str) -> tuple[list[str], str]:
        return self._tables.cut(text)

    def answer(self, text: str) -> int:
        """Print the rows of a query; return how many there were."""
        from mqlake.embedded.values import shape_of, shaped

        found = self._tables.query(text)
        if found is None:
            return 0
        names, kinds, rows = self._tables.rows_of(found)
        shapes = [shape_of(kind, with_zone=self._form != "table") for kind in kinds]
        shown = ([shaped(shape, value) for shape, value in zip(shapes, row, strict=True)] for row in rows)
        if self._form == "table":
            are_numbers = [NUMBERS.fullmatch(str(kind)) is not None for kind in kinds]
            return write_table(names, are_numbers, list(itertools.islice(shown, TABLE_ROWS + 1)))
        return {"csv": write_csv, "json": write_json}[self._form](names, shown)

    def columns(self, table: str) -> Iterator[tuple[str, str, str]]:
        return ((name, kind.lower(), "") for name, kind in self._tables.columns_of(table))
