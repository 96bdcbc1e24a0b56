"""Convert a lake of the older format, which had a folder for each topic and day, into a new one.

The old lake is only read. Its log is taken window by window: the rows that begin in a window, from whatever files hold
them, become one file of the new layout, which is read back and compared row for row. One commit at the end makes
everything count, so a conversion that is killed is repeated from the start. The new lake has the identity of the old
one: the gates in the stores are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import BadFile, NotALake
from mqlake.lake.entries import Gap, LakeFile, LakeRange
from mqlake.lake.gate import move
from mqlake.lake.lake import DESCRIPTION, create_lake
from mqlake.lake.manifest import Manifest
from mqlake.lake.messages import rows_between
from mqlake.lake.messages_file import IN_FILES, MessagesFile
from mqlake.lake.parquet import open_parquet, plain_columns, read_table, write_table
from mqlake.lake.paths import table_path
from mqlake.lake.snapshot import LakeSnapshot, StoreState
from mqlake.lake.storage import Storage, storage_at
from mqlake.lake.tables import MESSAGES, SCHEMAS
from mqlake.lake.verify import check_file

WINDOW_BYTES = 64 << 20
"""Bytes of log whose rows are sorted in memory, and become one file. `compact` merges these files."""
Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class Converted:
    """The result of a conversion."""

    stores: int
    rows: int
    files_before: int
    files_after: int


def convert(old: str, new: str, progress: Progress | None = None) -> Converted:
    """Convert the lake at `old` into a new one at `new`."""
    source, _ = storage_at(old), storage_at(new)  # a place that cannot be is refused first
    before = _snapshot_of(source)
    lake = create_lake(new, json.loads(source.read(DESCRIPTION))["id"])
    if lake.snapshot().version:
        raise NotALake(lake.place, "it already holds a lake with messages", "name an empty or a new folder")
    ranges: list[LakeRange] = []
    files: list[LakeFile] = []
    with lake.lock():
        _check_old(source, before)
        total = sum(state.end - state.start for state in before.stores.values())
        for state in before.stores.values():
            for part, file in _messages(source, lake.storage, before, state):
                ranges.append(part)
                files += [] if file is None else [file]
                if progress is not None:
                    progress(sum(done.end - done.start for done in ranges), total)
            files += _other_tables(source, lake.storage, before, state)
        rows = sum(file.rows for file in files if file.table == "messages")
        expected = sum(file.rows for file in before.files("messages"))
        if rows != expected:
            raise BadFile(source.place, f"{rows} rows in the ranges of its log", f"{expected}, as its manifest says")
        lake.commit(ranges, files)
        move(lake)
    return Converted(len(before.stores), rows, len(before.by_path), len(files))


def _snapshot_of(storage: Storage) -> LakeSnapshot:
    """Return the newest version of a lake of the older format."""
    try:
        format_number = json.loads(storage.read(DESCRIPTION)).get("format")
    except (FileNotFoundError, NotADirectoryError):
        raise NotALake(storage.place, "it holds no lake", "check the path") from None
    if format_number != 1:
        raise NotALake(storage.place, f"its format is {format_number}, not 1", "it needs no conversion")
    return Manifest(storage).load()


def _check_old(storage: Storage, snapshot: LakeSnapshot) -> None:
    for file in snapshot.by_path.values():
        for finding in check_file(storage, file):
            raise BadFile(f"{storage.place}/{file.path}", finding.found, finding.expected)


def _messages(
    old: Storage, new: Storage, snapshot: LakeSnapshot, state: StoreState
) -> Iterator[tuple[LakeRange, LakeFile | None]]:
    """Yield the ranges of a store, which tile its log, and the file of each."""
    files, start = snapshot.files("messages", state.name), state.start
    while start < state.end:
        stop = min(start + WINDOW_BYTES, state.end)
        parts = [MESSAGES.empty_table()]
        for file in files:
            if file.start < stop and file.end > start:
                parts += [rows.cast(MESSAGES) for rows in rows_between(old, file, start, stop)]
        rows = pa.concat_tables(parts).sort_by([("topic", "ascending"), ("physical_offset", "ascending")])
        gaps = tuple(gap for gap in state.gaps if start <= gap.start < stop)
        end = _end(rows, gaps, stop)
        made = _write(new, state, start, end, rows)
        seam = state.seam if end == state.end else None
        yield LakeRange(state.name, state.identity, state.path, start, end, gaps, seam), made
        start = end


def _end(rows: pa.Table, gaps: tuple[Gap, ...], stop: int) -> int:
    """Return where the last record or gap ends that begins before `stop`."""
    ends = [gap.end for gap in gaps]
    if rows.num_rows:
        ends.append(pc.max(pc.add(rows.column("physical_offset"), rows.column("size").cast(pa.int64()))).as_py())
    return max(ends, default=stop)


def _write(storage: Storage, state: StoreState, start: int, end: int, rows: pa.Table) -> LakeFile | None:
    """Write a file and compare what it holds."""
    rows = rows.combine_chunks()
    plain = plain_columns(rows.column("body").chunk(0)) if rows.num_rows else ()
    with MessagesFile(storage, state.name, state.identity, start, end, plain) as file:
        topics = rows.column("topic")
        first = 0
        for run in pc.run_end_encode(topics.combine_chunks()).run_ends.to_pylist() if rows.num_rows else ():
            file.new_topic()
            for batch in rows.slice(first, run - first).to_batches():
                arrays = [_as(field, batch.column(field.name)) for field in IN_FILES]
                file.add(pa.RecordBatch.from_arrays(arrays, schema=IN_FILES))
            first = run
        made = file.close()
    if made is not None and not read_table(storage, made, MESSAGES).equals(rows):
        raise BadFile(f"{storage.place}/{made.path}", "other rows than were written", "the rows of the old lake")
    return made


def _as(field: pa.Field, column: pa.Array) -> pa.Array:
    return column.dictionary_encode() if pa.types.is_dictionary(field.type) else column.cast(field.type)


def _other_tables(old: Storage, new: Storage, snapshot: LakeSnapshot, state: StoreState) -> Iterator[LakeFile]:
    """Copy index, statistics and findings, file by file. The index gets the column `store`."""
    for table in ("index", "stats", "findings"):
        schema = SCHEMAS[table]
        for file in snapshot.files(table, state.name):
            with open_parquet(old, file) as opened:
                rows = opened.read()
            if "store" not in rows.column_names:
                rows = rows.append_column("store", pa.repeat(state.name, rows.num_rows))
            rows = rows.select(schema.names).cast(schema)
            path = table_path(file.table, state.identity, file.start, file.end)
            written = write_table(new, path, rows, rows=1 << 16)
            yield replace(file, path=path, rows=written.rows, bytes=written.bytes, crc=written.crc)
