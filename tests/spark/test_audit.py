"""An audit finds what a check finds, for any store, any cut into parts, and any order of tasks."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

import mqlake
import mqlake.inspect.piece as pieces
import mqlake.spark
from mqlake import ConsumeQueueConfig
from mqlake.cli.audit import audit, write_rows
from mqlake.cli.check import EXIT_USAGE
from mqlake.errors import ChangedUnderRead, NotAStore
from mqlake.inspect.findings import MAX_ROWS
from mqlake.lake.tables import FINDINGS
from mqlake.spark.jobs.audit import findings_table, reports
from mqlake.spark.jobs.check_split import check_split
from mqlake.spark.options import parse_options
from mqlake.spark.plan import plan
from mqlake.spark.split import Split
from mqlake.torture.faults.damage import damage
from tests.golden.stores import NAMES, GoldenStore
from tests.helpers import LOG_FILE, message, open_small
from tests.inspect.rebuilding import KINDS, make_store
from tests.spark.auditing import audit_here, check_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACES = ("**/*", "commitlog/*", "consumequeue/**/*", "index/*")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store("plain", tmp_path_factory.mktemp("audit") / "whole", 1)


@pytest.mark.parametrize("name", NAMES)
def test_an_audit_of_a_rocketmq_store_finds_what_a_check_finds(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path)
    wanted = mqlake.check(golden.path, config=golden.config)
    found = audit_here(golden.path, grid=1000, part_size=3000, config=golden.config)
    assert found[1:-1] == wanted[1:-1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_of_any_kind_of_store_finds_what_a_check_finds(kind: str, tmp_path: Path) -> None:
    store = make_store(kind, tmp_path / "store", 4)
    assert audit_here(store, grid=4096, part_size=4096).findings == mqlake.check(store).findings


def test_a_deleted_topic_is_not_a_finding(tmp_path: Path) -> None:
    """Neither for an audit nor for a check of each split: the log still has its records, but no queue does."""
    path = make_store("deleted topics", tmp_path / "store", 3)
    assert len(splits_of(path, "3k")) > 5
    assert audit_here(path, grid=1000, part_size=3000).findings == ()
    assert all(check_split(split).num_rows == 0 for split in splits_of(path, "3k"))


@pytest.mark.parametrize("seed", range(24))
def test_an_audit_of_a_damaged_store_finds_what_a_check_finds(seed: int, whole: Path, tmp_path: Path) -> None:
    draw = random.Random(seed)
    store, places = tmp_path / "store", PLACES[seed % len(PLACES)]
    harmless = ["clock.json", "times", "scrub.json", *(["seals"] if places == "**/*" else [])]  # none of them is missed
    shutil.copytree(whole, store, ignore=shutil.ignore_patterns(*harmless))
    for _ in range(1 + seed % 4):
        damage(store, draw.randrange(1 << 30), files=places)
    for grid, part_size in ((4096, 4096), (10_000, 50_000), (1 << 24, 1 << 30)):
        wanted = check_here(store, grid=grid)
        assert audit_here(store, grid=grid, part_size=part_size).findings == wanted
        assert wanted


def test_an_audit_inspects_the_log_itself_if_every_guessed_boundary_is_wrong(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    shutil.copytree(whole, store)
    damage(store, 5, files="commitlog/*", kind="flip_bit")
    wanted = check_here(store, grid=4096)
    monkeypatch.setattr(pieces, "boundary_behind", lambda file, target, limit: min(limit, target + 3))
    assert audit_here(store, grid=4096, part_size=8192).findings == wanted != ()


def test_findings_above_the_limit_are_counted(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", consume_queue=ConsumeQueueConfig(file_size_bytes=20_000)) as store:
        for number in range(700):
            store.put(message(number, queue_id=0))
    queue = tmp_path / "store" / "consumequeue" / "orders" / "0" / f"{0:020d}"
    queue.write_bytes(b"!" * 20 * 650 + queue.read_bytes()[20 * 650 :])
    store_path, grid = tmp_path / "store", 40_000
    for found in (check_here(store_path, grid=grid), audit_here(store_path, grid=grid, part_size=1).findings):
        listed = [row for row in found if row.what == "queue-entry"]
        assert (len(listed), listed[-1].found, listed[99].offset) == (MAX_ROWS + 1, "550 more of these", 20 * 99)


def test_a_store_with_a_writer_is_audited_up_to_its_dispatched_end(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for number in range(400):
            store.put(message(number, queue_id=0, body=bytes(500)))
        store.wait_dispatched()
        found = audit_here(tmp_path / "store", grid=4096, part_size=8192)
        assert found.live and found.holds and found.end_offset == store.end_offset


def splits_of(store: Path, size: str) -> list[Split]:
    options = parse_options({"path": str(store), "via": "scan", "splitSize": size, "includeInternal": "true"})
    return [split for made in plan(options) for split in made.splits]


@pytest.mark.parametrize("size", ["3k", "70k", "1g"])
def test_checks_of_all_splits_find_what_a_check_finds_in_log_and_queues(size: str, whole: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(whole, store)
    assert all(check_split(split).num_rows == 0 for split in splits_of(store, size))
    splits = splits_of(store, size)
    for seed in range(5):
        damage(store, seed, files="commitlog/*", kind="flip_bit")
    for queue_id in range(2):
        with (store / "consumequeue" / "orders" / str(queue_id) / f"{0:020d}").open("r+b") as queue:
            queue.seek(20 * 7 + 3)
            queue.write(b"!")
    tables = [check_split(split) for split in splits]
    assert all(table.schema == FINDINGS for table in tables)
    found = {(row["promise"], row["file"], row["offset"]) for table in tables for row in table.to_pylist()}
    report = mqlake.check(store)
    wanted = {(row.what, row.file, row.offset) for row in report.findings}
    compared = {"queue-entry", *(f"record-{part}" for part in ("crc", "magic", "size", "lengths", "offset", "host"))}
    assert {row for row in wanted if row[0] in compared} == {row for row in found if row[0] in compared}
    assert len(found) >= 5
    without = pa.concat_tables(check_split(split, queues=False) for split in splits)
    assert not [row for row in without.to_pylist() if row["topic"] is not None]


def test_a_split_whose_file_is_gone_is_an_error(whole: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(whole, store)
    split = splits_of(store, "1g")[0]
    (store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(ChangedUnderRead, match="it was deleted after"):
        check_split(split)


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(400)
def test_spark_workers_audit_a_fleet_of_stores(spark: SparkSession, whole: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(whole, tmp_path / name)
    damage(tmp_path / "a", 1, files="commitlog/*", kind="flip_bit")
    damage(tmp_path / "a", 2, files="index/*", kind="flip_bit")
    damage(tmp_path / "b", 3, files="consumequeue/orders/*/*", kind="truncate")
    rows = mqlake.spark.audit(spark, tmp_path / "*", part_size=LOG_FILE)
    wanted = pa.concat_tables(findings_table(mqlake.check(tmp_path / name)) for name in "ab")
    assert rows.toArrow().to_pylist() == wanted.to_pylist()
    assert {row["store"] for row in wanted.to_pylist()} == {str(tmp_path / name) for name in "ab"}


def test_a_finding_has_a_physical_offset_or_a_queue_offset(whole: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(whole, store)
    for place, at in ((f"commitlog/{LOG_FILE:020d}", 200), (f"consumequeue/orders/1/{2000:020d}", 45)):
        data = bytearray((store / place).read_bytes())
        data[at] ^= 1
        (store / place).write_bytes(data)
    rows = findings_table(mqlake.check(store)).to_pylist()
    entry = next(row for row in rows if row["promise"] == "queue-entry" and row["queue_id"] == 1)
    assert (entry["topic"], entry["queue_offset"], entry["offset"]) == ("orders", 102, 40)
    record = next(row for row in rows if row["file"] == f"commitlog/{LOG_FILE:020d}")
    assert record["physical_offset"] == LOG_FILE + record["offset"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_command_writes_rows_and_exits_with_the_worst_severity(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "store")
    damage(tmp_path / "store", 1, files="commitlog/*", kind="flip_bit")
    command = [sys.executable, "-m", "mqlake", "audit", str(whole), str(tmp_path / "store"), "--master", "local[1]"]
    command += ["--json", "--out", str(tmp_path / "rows.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["severity"] for line in printed if line["kind"] == "verdict"] == ["note", "error"]
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert rows == findings_table(mqlake.check(tmp_path / "store")).to_pylist()
    assert len(rows) == len([line for line in printed if line["kind"] == "finding"])


def test_the_suffix_of_the_output_file_selects_its_format(whole: Path, tmp_path: Path) -> None:
    rows = findings_table(mqlake.check(make_store("torn tail", tmp_path / "store", 1)))
    assert rows.num_rows
    write_rows(rows, tmp_path / "rows.json")
    assert [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()] == rows.to_pylist()
    done = CliRunner().invoke(audit, [str(whole), "--out", "x.csv"])
    assert done.exit_code == EXIT_USAGE and ".parquet or .json" in done.output


def test_a_path_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="no folder matches"):
        reports(None, str(tmp_path / "*"))  # type: ignore[arg-type]
