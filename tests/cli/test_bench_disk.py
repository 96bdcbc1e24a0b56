"""`mqlake bench disk`: what it measures, what it advises, and that it stays within its bounds."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from mqlake.cli import bench_disk
from mqlake.cli.bench_disk import BLOCK_SIZES, WAYS, DiskBench, Measured
from mqlake.cli.disk_advice import Advice, advise, crossings
from mqlake.cli.disk_plot import write_plot
from mqlake.cli.disk_view import print_tables
from tests.cli.conftest import Cli

MIB = 1 << 20
SMALL = ("bench", "disk", "--size", "1m", "--seconds", 5, "--rounds", 1)


def made_up(rates: dict[str, float], spread: float = 0.0) -> list[Measured]:
    """Return measurements from rates in MiB/s for `kind`, `kind/way` or `kind/way/block`; the others are 100."""
    cases = []
    for block in BLOCK_SIZES:
        for kind, ways in WAYS.items():
            for way in ways:
                rate = MIB * rates.get(f"{kind}/{way}/{block}", rates.get(f"{kind}/{way}", rates.get(kind, 100.0)))
                cases.append(Measured(block, kind, way, [rate * (1 - spread), rate, rate * (1 + spread)]))
    return cases


def advice_on(rates: dict[str, float], spread: float = 0.0) -> dict[str, Advice]:
    return {advice.name: advice for advice in advise(made_up(rates, spread))}


# ---- measuring


def test_every_block_size_is_written_and_read_in_every_way(cli: Cli) -> None:
    lines = cli.json(*SMALL, "--dir", cli.folder)
    cases = [line for line in lines if "advice" not in line]
    blocks = [*(block for block in BLOCK_SIZES if block < MIB), MIB]
    assert blocks[0] == 16 and BLOCK_SIZES[-1] == 64 * MIB
    expected = {(block, kind, way) for block in blocks for kind in WAYS for way in WAYS[kind]}
    assert {(line["blockBytes"], line["kind"], line["way"]) for line in cases} == expected
    for line in cases:
        if line["rounds"]:
            assert 0 < line["slowest"] <= line["bytesPerSecond"] <= line["fastest"]
    assert any(line["rounds"] > 0 for line in cases)
    assert [path.name for path in cli.folder.iterdir()] == ["broker.conf"], "no file is left, and no plot with --json"


def test_each_run_has_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = 0
    real = tempfile.TemporaryFile

    def counted(**options: Any) -> Any:
        nonlocal files
        files += 1
        return real(**options)

    monkeypatch.setattr(tempfile, "TemporaryFile", counted)
    bench = DiskBench(tmp_path, 256 << 10, 5.0, 2)
    steps: list[None] = []
    cases = bench.run(lambda: steps.append(None))
    assert files == 1 + sum(len(case.rates) for case in cases), "one more, to see how fast the disk is"
    assert len(steps) == bench.run_count == 2 * len(cases), "a step of the bar for each run"


def test_all_ways_of_writing_leave_the_same_bytes_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that leaves something out would look fast."""
    size = 64 << 10
    seen: dict[tuple[int, str, str], bytes] = {}
    real = bench_disk._access

    def looked_at(run: Any, case: Measured) -> Any:
        access, finish = real(run, case)

        def finish_and_look(end: int) -> None:
            finish(end)
            if case.kind != "read":
                seen[case.block, case.kind, case.way] = os.pread(run.descriptor, size, 0)

        return access, finish_and_look

    monkeypatch.setattr(bench_disk, "_access", looked_at)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)  # thousands of syncs would show nothing more
    DiskBench(tmp_path, size, 1_000.0, 1).run(lambda: None)
    for block in (16, 4096, size):
        ways = [data for (written, kind, _), data in seen.items() if written == block and kind != "block"]
        assert len(ways) == 6 and len(set(ways)) == 1 and len(ways[0].strip(b"\0")) > size - 8
    assert len({data for (block, _, _), data in seen.items() if block == size}) == 1, "with a sync per block too"


def test_a_run_ends_when_its_time_is_over_once_every_case_was_measured(tmp_path: Path) -> None:
    bench = DiskBench(tmp_path, 4 * MIB, 0.2, 100)
    began = time.perf_counter()
    cases = bench.run(lambda: None)
    assert time.perf_counter() - began < 20
    assert all(case.rates for case in cases if case.kind == "none")
    assert max(len(case.rates) for case in cases) < 100


def test_a_block_that_would_take_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskBench, "_probe", lambda self, data: 1000.0)
    cases = DiskBench(tmp_path, 64 << 10, 1.0, 1).run(lambda: None)
    left_out = {(case.kind, case.block) for case in cases if not case.rates}
    assert left_out == {(kind, block) for kind in ("end", "block") for block in (256, 1024, 4096, 16384, 65536)}
    assert [advice.name for advice in advise(cases)] == [], "no advice without figures"


# ---- advice


def test_the_pool_is_advised_where_it_is_faster_by_more_than_the_spread() -> None:
    on = advice_on({"end/pool": 150.0})["pool"]
    assert (on.choice, on.settings) == ("on", "transientStorePoolEnable=true")
    assert "pool 150, mapped 100 MiB/s (1.50 times; spread ±0 %)" in on.reason and "killed process" in on.reason
    assert advice_on({"end/pool": 150.0}, spread=0.3)["pool"].choice == "off", "the rounds differ as much"
    assert advice_on({"end/pool": 105.0})["pool"].choice == "off", "too little for what it costs"
    assert advice_on({"end/pool": 60.0})["pool"].reason.endswith("no gain")
    assert advice_on({"end/pool/67108864": 900.0})["pool"].choice == "off", "no message is so large"


def test_least_pages_are_the_smallest_write_that_is_about_as_fast_as_any() -> None:
    saturates = {f"end/write/{block}": min(block, 16384) / 100 for block in BLOCK_SIZES}
    pages = advice_on(saturates)["least pages"]
    assert pages.choice == "4", "RocketMQ's default, from the published comparison"
    assert pages.settings == "flushCommitLogLeastPages=4, commitCommitLogLeastPages=4"
    assert "16 KiB" in pages.reason
    assert advice_on({})["least pages"].choice == "1", "all are equal"
    assert int(advice_on({f"end/write/{b}": float(b) for b in BLOCK_SIZES})["least pages"].choice) <= 64


@pytest.mark.parametrize(
    ("sync_ms", "choice", "reason"),
    [(0.1, "sync", "10,000 messages/s"), (5.0, "async", "200 messages/s"), (0.001, "unknown", "this is memory")],
)
def test_syncs_are_advised_where_they_are_cheap(sync_ms: float, choice: str, reason: str) -> None:
    advice = advice_on({"block": 4096 / (sync_ms / 1000) / MIB})["sync mode"]
    assert advice.choice == choice and reason in advice.reason


def test_where_the_ways_change_places_is_told_only_beyond_the_spread() -> None:
    rates = {f"none/write/{block}": 50.0 if block < 4096 else 200.0 for block in BLOCK_SIZES}
    assert crossings(made_up(rates)) == [
        "Writes without a sync: the mapped file is ahead with 16 B to 1 KiB; "
        "write calls are ahead with 4 KiB to 64 MiB.",
        "Reads from the page cache: all differences are within the spread.",
    ]
    assert "the rest is within the spread" in crossings(made_up({**rates, "none/write/16": 100.0}))[0]


# ---- what is shown


def test_a_run_ends_with_tables_advice_and_a_plot(cli: Cli) -> None:
    pytest.importorskip("matplotlib")
    shown = cli.ok(*SMALL, "--dir", cli.folder, "--plot", cli.folder / "plots.of" / "mine")
    assert "Plot: " in shown
    for expected in ("Writes, no sync", "Writes, one sync at the end", "Writes, one sync a block", "Reads from"):
        assert expected in shown
    for expected in (
        "16 B",
        "16 KiB",
        "whole file",
        "Advice for this disk",
        "pool: ",
        "least pages: ",
        "sync mode",
    ):
        assert expected in shown
    assert (cli.folder / "plots.of" / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(cli.folder / "plots.of" / "mine.svg").getroot().tag.endswith("svg")


def test_tables_show_the_spread_of_the_rounds_and_what_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    cases = made_up({"none/mapped": 250.0}, spread=0.1)
    next(case for case in cases if case.kind == "end").rates.clear()
    print_tables(cases)
    shown = capsys.readouterr().out
    assert "250 ±10%" in shown and "– one block alone would take too much of the time" in shown
    print_tables([Measured(case.block, case.kind, case.way, [1.0]) for case in cases])
    assert "±" not in capsys.readouterr().out, "one round has no spread"


def test_a_plot_shows_every_way_with_other_lines_than_the_others(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        _, svg = write_plot(made_up({"none/pool": 300.0}, spread=0.1), tmp_path / "plot", "this machine")
    texts = svg.read_text()
    for expected in ("mapped file", "write calls", "pool, then write", "read calls", "MiB/s", "whole", "this machine"):
        assert expected in texts


def test_without_matplotlib_tables_and_advice_come_with_a_sentence_about_the_plot(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    shown = cli.ok(*SMALL, "--dir", cli.folder, "--plot", cli.folder / "mine")
    assert "Advice for this disk" in shown
    assert "No plot: the plot needs an optional package: pip install 'mqlake[bench]'" in shown
    assert [path.name for path in cli.folder.iterdir()] == ["broker.conf"]
