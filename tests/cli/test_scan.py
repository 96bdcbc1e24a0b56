"""`mqlake scan`."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from mqlake import Message
from tests.cli.conftest import Cli

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def read_file(path: Path) -> list[dict[str, object]]:
    table = parquet.read_table(path) if path.suffix == ".parquet" else pyarrow.ipc.open_file(path).read_all()
    rows: list[dict[str, object]] = table.to_pylist()
    return rows


def test_scan_shows_the_records_in_log_order(orders: Cli) -> None:
    lines = orders.ok("scan", orders.store).splitlines()
    assert lines[0].split()[:3] == ["physical_offset", "topic", "queue_id"]
    assert [line.split()[-1] for line in lines[1:7]] == [str(number) for number in range(6)]
    assert "0xfffe00" in lines[7]


def test_scan_prints_one_object_per_row_with_all_columns(orders: Cli) -> None:
    rows = orders.json("scan", orders.store)
    assert [base64.b64decode(row["body"]) for row in rows[:2]] == [b"order 0", b"order 1"]
    assert rows[0]["keys"] == ["o0", "all"]
    assert rows[0]["properties"] == {"KEYS": "o0 all", "TAGS": "created"}
    assert rows[-1]["properties"] == {}
    assert rows[-1]["tags"] is None


def test_scan_respects_topic_range_columns_and_limit(orders: Cli) -> None:
    offsets = [row["physical_offset"] for row in orders.json("scan", orders.store)]
    assert len(orders.json("scan", orders.store, "--topic", "clicks")) == 1
    assert len(orders.json("scan", orders.store, "--start", offsets[1], "--end", offsets[4])) == 3
    assert orders.json("scan", orders.store, "--columns", "topic, queue_id", "--limit", 1) == [
        {"topic": "orders", "queue_id": 0}
    ]


def test_a_truncated_table_of_a_scan_says_that_it_is_truncated(cli: Cli) -> None:
    cli.put(*(Message("orders", b"%d" % number) for number in range(60)))
    result = cli.run("scan", cli.store)
    assert len(result.stdout.splitlines()) == 51
    assert "--limit 0 shows all" in result.stderr
    assert len(cli.ok("scan", cli.store, "--limit", 0).splitlines()) == 61


def test_a_scan_of_all_rows_prints_as_it_goes_and_ends_when_its_reader_leaves(cli: Cli) -> None:
    with cli.open() as store:
        for start in range(0, 20_000, 1_000):
            store.put_many([Message("orders", b"%d" % number, queue_id=0) for number in range(start, start + 1_000)])
    process = cli.process("scan", cli.store, "--limit", 0)
    assert process.stdout is not None and process.stderr is not None
    lines = [process.stdout.readline() for _ in range(1_002)]
    assert [len(line.split("  orders")[0]) for line in lines[1:]] == [len("physical_offset")] * 1_001
    assert [int(line.split()[-1]) for line in lines[1:]] == list(range(1_001))
    process.stdout.close()
    assert (process.wait(timeout=100), process.stderr.read()) == (141, "")


def test_the_names_of_a_table_of_many_blocks_are_printed_once(cli: Cli) -> None:
    with cli.open() as store:
        store.put_many([Message("orders", b"%d" % number, queue_id=0) for number in range(1_200)])
    lines = cli.ok("scan", cli.store, "--limit", 0).splitlines()
    assert len(lines) == 1_201 and sum("physical_offset" in line for line in lines) == 1


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_scan_writes_all_rows_and_columns_to_a_file(orders: Cli, suffix: str) -> None:
    out = orders.folder / f"orders{suffix}"
    result = orders.run("scan", orders.store, "--out", out)
    assert result.exit_code == 0, result.output
    rows = read_file(out)
    assert [row["body"] for row in rows[:6]] == [b"order %d" % number for number in range(6)]
    assert rows[0]["topic"] == "orders"
    assert len(rows[0]) == 18
    assert "7 rows" in result.stderr


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_scan_of_many_files_has_one_schema(cli: Cli, suffix: str) -> None:
    """Each file of the log gives a batch with its own dictionaries."""
    cli.put(*(Message(f"topic-{number // 50}", bytes(20_000)) for number in range(200)))
    out = cli.folder / f"all{suffix}"
    cli.ok("scan", cli.store, "--columns", "topic,queue_offset", "--out", out)
    assert [row["topic"] for row in read_file(out)] == [f"topic-{number // 50}" for number in range(200)]


def test_scan_of_nothing_writes_a_file_without_rows(orders: Cli) -> None:
    out = orders.folder / "none.parquet"
    orders.ok("scan", orders.store, "--topic", "nix", "--out", out)
    assert read_file(out) == []
    assert parquet.read_table(out).num_columns == 18


def test_a_failed_scan_keeps_the_existing_file(orders: Cli) -> None:
    out = orders.folder / "old.parquet"
    out.write_bytes(b"as it was")
    result = orders.run("scan", orders.store, "--start", 1, "--out", out)
    assert result.exit_code == 3
    assert out.read_bytes() == b"as it was"
    assert [file.name for file in orders.folder.glob(".*.partial")] == []


def test_scan_refuses_unknown_columns_and_formats_and_names_the_known_ones(orders: Cli) -> None:
    suffix = orders.run("scan", orders.store, "--out", orders.folder / "x.csv")
    assert (suffix.exit_code, ".parquet or .arrow" in suffix.stderr) == (2, True)
    column = orders.run("scan", orders.store, "--columns", "nix")
    assert (column.exit_code, "queue_offset" in column.stderr) == (3, True)
