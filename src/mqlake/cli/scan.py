"""`mqlake scan`: print the log as rows or JSON, or write it to a Parquet or Arrow file."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqlake import MessageStore
from mqlake.cli import show
from mqlake.cli.options import json_option, open_reader, store_command
from mqlake.cli.output_file import whole_file, written

if TYPE_CHECKING:
    import pyarrow

TABLE_COLUMNS = ("physical_offset", "topic", "queue_id", "queue_offset", "store_timestamp", "tags", "body")
"""Default columns of a table: not all columns fit a terminal."""
TABLE_LIMIT = 50
BLOCK_ROWS = 500
"""So many rows are aligned and printed together."""
NUMBERS = frozenset({"physical_offset", "queue_id", "queue_offset", "size", "flag", "sys_flag", "body_crc"})
SUFFIXES = (".parquet", ".arrow")


@click.command()
@store_command
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--start", type=click.IntRange(min=0), help="Physical offset of the first record.")
@click.option("--end", type=click.IntRange(min=0), help="Physical offset to stop before.")
@click.option("--columns", help="Columns, separated by commas.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write FILE.parquet or FILE.arrow.")
@click.option(
    "--limit", type=click.IntRange(min=0), help=f"At most this many rows, 0 for all. Default for tables: {TABLE_LIMIT}."
)
@json_option
def scan(
    store: Path,
    config: Path | None,
    topics: tuple[str, ...],
    start: int | None,
    end: int | None,
    columns: str | None,
    out: Path | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Read every record in the order of the log, including those of unfinished transactions.

    Prints a table; --json prints one object a row, with bodies in base64; --out writes all rows to a file.
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise click.BadParameter(f"{str(out)!r}; expected a name ending in .parquet or .arrow", param_hint="--out")
    names = tuple(name.strip() for name in columns.split(",")) if columns else None
    if names is None and out is None and not as_json:
        names = TABLE_COLUMNS
    if limit is None and out is None and not as_json:
        limit = TABLE_LIMIT
    with open_reader(store, config) as opened:
        rows = Rows(opened, topics, start, end, names, limit or None)
        if out is not None:
            _write(rows, out)
        elif as_json:
            for batch in rows.batches():
                for row in as_rows(batch):
                    show.print_json({name: _json_value(name, value) for name, value in row.items()})
        else:
            _print_table(rows)


class Rows:
    """A scan that ends after `limit` rows."""

    def __init__(
        self,
        store: MessageStore,
        topics: tuple[str, ...],
        start: int | None,
        end: int | None,
        columns: tuple[str, ...] | None,
        limit: int | None,
    ) -> None:
        self.columns = columns
        self._start = store.first_offset if start is None else start
        self._end = store.end_offset if end is None else end
        self._store = store
        self._topics = topics or None
        self._limit = limit
        self.cut = False
        """Whether there was more than `limit`."""

    @property
    def size(self) -> int:
        """Log bytes that the scan covers."""
        return self._end - self._start

    def batches(self, step: show.Step | None = None) -> Iterator[pyarrow.RecordBatch]:
        """Yield the batches, and report the log bytes that they cover to `step`."""
        left = self._limit
        batch_bytes = 32 << 20 if left is None else 1 << 20
        for batch in self._store.scan(
            start=self._start, end=self._end, columns=self._scanned(), topics=self._topics, batch_bytes=batch_bytes
        ):
            if left is not None and batch.num_rows > left:
                self.cut = True
                batch = batch.slice(0, left)
            if step is not None and batch.num_rows:
                step.done(batch.column("physical_offset")[-1].as_py() - self._start)
            if batch.num_rows:
                yield batch.select(self.columns) if self.columns is not None else batch
            if left is not None:
                left -= batch.num_rows
                if self.cut:
                    return

    def _scanned(self) -> tuple[str, ...] | None:
        """Return the requested columns, and the one that gives the position of the scan."""
        if self.columns is None or "physical_offset" in self.columns:
            return self.columns
        return (*self.columns, "physical_offset")


# ---- a file


def _write(rows: Rows, out: Path) -> None:
    row_count = 0
    with whole_file(out) as path, show.progress(f"scanning to {out.name}", rows.size, bytes_done=True) as step:
        writer = None
        for batch in rows.batches(step):
            plain = _without_dictionaries(batch)
            writer = writer or _open_writer(path, out.suffix, plain.schema)
            writer.write_batch(plain)
            row_count += plain.num_rows
        if writer is None:
            writer = _open_writer(path, out.suffix, _empty_schema(rows.columns))
        writer.close()
    click.echo(f"{show.counted(row_count, 'row')}, {written(out)}", err=True)


def _open_writer(path: Path, suffix: str, schema: pyarrow.Schema) -> Any:
    import pyarrow
    import pyarrow.parquet

    if suffix == ".parquet":
        return pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")
    return pyarrow.ipc.new_file(path, schema)


def _without_dictionaries(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Decode dictionaries: each batch has its own, and an Arrow file can hold only one for a column."""
    import pyarrow

    arrays = [
        column.dictionary_decode() if hasattr(column, "dictionary_decode") else column for column in batch.columns
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _empty_schema(columns: tuple[str, ...] | None) -> pyarrow.Schema:
    import pyarrow

    from mqlake.store.scan import schema

    fields = schema(columns)
    plain = [
        field.with_type(field.type.value_type) if pyarrow.types.is_dictionary(field.type) else field for field in fields
    ]
    return pyarrow.schema(plain)


# ---- rows


def as_rows(batch: pyarrow.RecordBatch) -> list[dict[str, Any]]:
    """Return plain Python values; times as milliseconds since 1970."""
    import pyarrow

    columns = []
    for column in batch.columns:
        values = column.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(column.type) else column
        columns.append(values.to_pylist())
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _json_value(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return dict(value) if name == "properties" else value


def _print_table(rows: Rows) -> None:
    """Print a table block by block: whoever reads it sees the first rows at once, and may leave."""
    names = rows.columns or ()
    last = names[-1] if names else ""
    marks = {
        name: ">" if name in NUMBERS else "*" if name in ("body", "properties") and name == last else ""
        for name in names
    }
    table = show.Blocks([f"{name}{marks[name]}" for name in names])
    found = itertools.chain.from_iterable(map(as_rows, rows.batches()))
    while block := list(itertools.islice(found, BLOCK_ROWS)):
        table.print([[_cell(name, value) for name, value in row.items()] for row in block])
    if not table.row_count:
        table.print([])
    if rows.cut:
        click.echo(f"the first {show.counted(table.row_count, 'row')}; --limit 0 shows all", err=True)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return show.body(value)
    if name.endswith("_timestamp"):
        return show.moment(value)
    if name == "properties":
        value = [f"{key}={text}" for key, text in value]
    return show.printable(" ".join(value) if isinstance(value, list) else str(value))
