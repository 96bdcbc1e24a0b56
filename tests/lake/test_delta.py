"""The tables of a lake as Delta tables: other engines read the same rows at the same versions."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("polars")
pytest.importorskip("duckdb")

import deltalake
import duckdb
import polars

from mqlake import MessageStore
from mqlake.errors import BadFile, VersionGone
from mqlake.lake import Lake
from mqlake.lake.delta import entry_name
from mqlake.lake.delta_read import live_files
from mqlake.lake.entries import TABLES
from mqlake.lake.manifest import SNAPSHOT_EVERY
from mqlake.lake.parquet import read_table
from mqlake.lake.tables import MESSAGES, SCHEMAS
from mqlake.lake.verify import verify
from mqlake.spark.jobs.archive import archive
from mqlake.spark.jobs.compact import compact
from tests.lake.jobs import NO_SPARK, assert_holds, here
from tests.lake.test_lake import file_of, part
from tests.spark.tables import put_messages, rows_of, write_store

pytestmark = pytest.mark.usefixtures("here")
__all__ = ["here"]


def fingerprint(table: pa.Table) -> str:
    """Return a hash of all rows of the table messages, in whatever order they come."""
    table = table.select(MESSAGES.names).cast(MESSAGES)
    rows = table.sort_by([("store", "ascending"), ("physical_offset", "ascending")]).to_pylist(maps_as_pydicts="strict")
    return f"{len(rows)} rows, {hashlib.sha256(repr(rows).encode()).hexdigest()}"


def by_mqlake(lake: Lake, version: int) -> str:
    files = lake.snapshot(version).files("messages")
    tables = [read_table(lake.storage, file, MESSAGES) for file in files]
    return fingerprint(pa.concat_tables([MESSAGES.empty_table(), *tables]))


def by_deltalake(place: str, version: int, options: dict[str, str] | None = None) -> str:
    table = deltalake.DeltaTable(f"{place}/messages", version=version, storage_options=options)
    return fingerprint(pa.table(table.to_pyarrow_table()))


def by_polars(place: str, version: int, options: dict[str, str] | None = None) -> str:
    frame = polars.read_delta(f"{place}/messages", version=version, storage_options=options)
    return fingerprint(normalized(frame.to_arrow()))


def normalized(table: pa.Table) -> pa.Table:
    """Return the types of other engines as ours: they have 64-bit lists, and maps as lists of pairs."""
    columns = []
    for field in MESSAGES:
        column = table.column(field.name)
        if pa.types.is_map(field.type) and not pa.types.is_map(column.type):
            rows = [[(pair["key"], pair["value"]) for pair in row] for row in column.to_pylist()]
            column = pa.array(rows, field.type)
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=MESSAGES)


def by_duckdb(paths: list[str]) -> str:
    """DuckDB reads the files that the Delta log lists: its own Delta extension would have to be downloaded."""
    with duckdb.connect() as connection:
        return fingerprint(normalized(connection.sql(f"select * from read_parquet({paths!r})").to_arrow_table()))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with three versions to pin: a part of the store, all of it, and all of it compacted."""
    store, path = tmp_path / "store", tmp_path / "lake"
    write_store(store, 400)
    archive(NO_SPARK, str(store), str(path), split_size="50k")
    with MessageStore.open(store) as opened:
        put_messages(opened, 400, 300)
    archive(NO_SPARK, str(store), str(path), split_size="50k")
    compact(NO_SPARK, str(path))
    return Lake.open(path)


def test_mqlake_deltalake_polars_and_duckdb_read_the_same_rows_at_every_version(lake: Lake, tmp_path: Path) -> None:
    newest = lake.snapshot().version
    assert newest == 3
    for version in range(1, newest + 1):
        expected = by_mqlake(lake, version)
        assert expected.startswith("400 rows" if version == 1 else "700 rows")
        assert by_deltalake(lake.place, version) == expected
        assert by_polars(lake.place, version) == expected
        paths = [f"{lake.place}/{path}" for path in live_files(lake.storage, "messages", version)]
        assert by_duckdb(paths) == expected
    rows = [row["body"] for row in rows_of(tmp_path / "store", includeInternal="true")]
    assert len(rows) == 700
    with pytest.raises(VersionGone, match="there are 1 to 3"):
        lake.snapshot(9)


def test_every_table_has_the_same_versions_and_its_own_columns(lake: Lake) -> None:
    for table in TABLES:
        opened = deltalake.DeltaTable(f"{lake.place}/{table}")
        assert opened.version() == lake.snapshot().version
        names = [field.name for field in opened.schema().fields]
        assert names == SCHEMAS[table].names
        assert opened.to_pyarrow_table().num_rows == sum(file.rows for file in lake.snapshot().files(table))


def test_other_engines_skip_files_by_exact_statistics(lake: Lake, tmp_path: Path) -> None:
    actions = [json.loads(line) for line in Path(lake.place, entry_name("messages", 2)).read_text().splitlines()]
    added = [action["add"] for action in actions if "add" in action]
    assert added
    for add in added:
        stats = json.loads(add["stats"])
        table = read_table(lake.storage, lake.snapshot(2).by_path[f"messages/{add['path']}"], MESSAGES)
        for name in ("store", "topic", "physical_offset"):
            bounds = pc.min_max(table.column(name)).as_py()
            assert (stats["minValues"][name], stats["maxValues"][name]) == (bounds["min"], bounds["max"])
        times = pc.min_max(table.column("store_timestamp")).as_py()
        assert datetime.fromisoformat(stats["minValues"]["store_timestamp"]) == times["min"]
        assert stats["numRecords"] == table.num_rows
    frame = polars.scan_delta(f"{lake.place}/messages").filter(polars.col("topic") == "topic-1")
    expected = [row for row in rows_of(tmp_path / "store", includeInternal="true") if row["topic"] == "topic-1"]
    assert frame.select(polars.len()).collect().item() == len(expected) > 0


def test_a_job_killed_after_its_commit_leaves_delta_entries_that_the_next_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.open(tmp_path, create=True)
    for kill_at in range(6):
        number = lake.snapshot().version
        with monkeypatch.context() as patch:
            patch.setattr(lake._delta, "_write", dying(lake._delta._write, kill_at))
            try:
                lake.commit([part(number, number + 1)], [file_of(lake, number, number + 1)])
            except KeyboardInterrupt:
                assert kill_at < 4
        assert lake.snapshot().version == number + 1, "the manifest is the truth"
        lake = Lake.open(tmp_path)
        lake.commit([part(number + 1, number + 2)], [file_of(lake, number + 1, number + 2)])
    for table in TABLES:
        assert deltalake.DeltaTable(f"{tmp_path}/{table}").version() == lake.snapshot().version
    expected = {file.path: file.bytes for file in lake.snapshot().files("messages")}
    assert live_files(lake.storage, "messages", lake.snapshot().version) == expected


def dying(write: Callable[..., None], works: int) -> Callable[..., None]:
    """Return a function that is killed after it has worked some times."""
    left = iter(range(works))

    def wrapped(*given: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        write(*given)

    return wrapped


def test_an_entry_is_the_same_whoever_writes_it_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    lake.commit([part(0, 100)], [file_of(lake, 0, 100)])
    entry = tmp_path / entry_name("messages", 1)
    content = entry.read_bytes()
    entry.unlink()
    Lake.open(tmp_path, create=True)
    assert entry.read_bytes() == content
    foreign = tmp_path / entry_name("messages", 2)
    foreign.write_text("{}\n")
    with pytest.raises(BadFile, match="other engines may read a lake, not change it"):
        Lake.open(tmp_path).commit([part(100, 200)], [file_of(lake, 100, 200)])
    assert lake.snapshot().version == 1, "it is noticed before the commit"
    with pytest.raises(BadFile, match="other engines may read a lake, not change it"):
        lake.commit([part(100, 200)], [file_of(lake, 100, 200)])
    with pytest.raises(BadFile, match="other engines may read a lake, not change it"):
        Lake.open(tmp_path).commit([part(200, 300)], [])


def test_checkpoints_replace_old_entries_for_every_reader(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    with lake.lock():
        for number in range(2 * SNAPSHOT_EVERY):
            lake.commit([part(number, number + 1)], [file_of(lake, number, number + 1)])
            if number == 10:
                merged = [file_of(lake, 0, 10, "merged")]
                lake.commit([], merged, [f"messages/{old}.parquet" for old in range(10)])
        expected = {file.path: file.bytes for file in lake.snapshot().files("messages")}
        for file in tmp_path.rglob("*"):
            if file.is_file():
                os.utime(file, (0, 0))
        for number in range(2 * SNAPSHOT_EVERY, 3 * SNAPSHOT_EVERY):
            lake.commit([part(number, number + 1)], [])
    kept = sorted(path.name for path in (tmp_path / "messages" / "_delta_log").glob("*.json"))
    assert kept[0] == f"{2 * SNAPSHOT_EVERY:020d}.json", "older entries are in the checkpoint"
    newest = lake.snapshot().version
    assert live_files(lake.storage, "messages", newest) == expected
    opened = deltalake.DeltaTable(f"{tmp_path}/messages")
    assert opened.version() == newest
    found = {path.rpartition("/")[2] for path in opened.file_uris()}
    assert found == {path.rpartition("/")[2] for path in expected}


def test_check_finds_a_delta_table_that_differs_from_the_manifest(lake: Lake) -> None:
    assert_holds(Path(lake.place))
    entry = Path(lake.place, entry_name("index", 3))
    lines = entry.read_text().splitlines()
    entry.write_text("\n".join(line for line in lines if '"add"' not in line))
    (finding,) = verify(lake)
    assert (finding.what, finding.where) == ("delta", "index")
    entry.unlink()
    (finding,) = verify(lake)
    assert finding.what == "delta" and "the next job writes" in finding.expected
    Lake.open(lake.place, create=True)
    assert_holds(Path(lake.place))
