"""`mqlake bench`: measure this machine. Two measurements, each in its own module."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import mqlake
from mqlake.cli import show
from mqlake.cli.options import byte_count, json_option
from mqlake.kernel import KERNEL

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Measure mqlake, or the disk itself, on your own disk."""


def directory_option(command: Command) -> Command:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        default=tempfile.gettempdir(),
        show_default=True,
        help="Folder on the disk to measure. Files written there are removed.",
    )(command)


@bench.command("store")
@directory_option
@click.option(
    "--seconds", type=click.FloatRange(min=0.05), default=3.0, show_default=True, help="Time for each operation."
)
@click.option(
    "--body", "body_bytes", type=byte_count, metavar="SIZE", default="1024", show_default=True, help="Size of a body."
)
@click.option(
    "--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of threads that put."
)
@click.option("--sync", is_flag=True, help="Puts return when the message is on disk.")
@json_option
def bench_store(directory: Path, seconds: float, body_bytes: int, threads: int, sync: bool, as_json: bool) -> None:
    """Measure put, put_many, read, find and seek_time.

    Writes as much as the disk takes: one or two gigabytes in the default time.
    """
    from mqlake.cli.bench_store import StoreBench

    with tempfile.TemporaryDirectory(prefix="mqlake-bench-", dir=directory) as folder:
        results = StoreBench(Path(folder) / "store", seconds, body_bytes, threads, sync=sync).run()
    if as_json:
        for result in results:
            show.print_json(result.as_json())
        return
    safety = "each on disk before put returns" if sync else "flushed in the background"
    putting = "1 thread puts" if threads == 1 else f"{threads} threads put"
    _print_machine(directory, f"bodies of {show.counted(body_bytes, 'byte')}, {putting}, {safety}")
    made = show.table("operation", "messages/s>", "MiB/s>", "calls/s>", "p50>", "p99>", "slowest>")
    for result in results:
        made.add_row(*result.as_row())
    show.console().print(made)


@bench.command("disk")
@directory_option
@click.option(
    "--size", "file_bytes", type=byte_count, metavar="SIZE", default="256m", show_default=True, help="Size of the file."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.01), default=0.5, show_default=True, help="Time limit for each cell."
)
@json_option
def bench_disk(directory: Path, file_bytes: int, seconds: float, as_json: bool) -> None:
    """Compare a mapped file with write calls, for blocks of 64 bytes to 1 MiB.

    Run it before you turn on the transient pool, which replaces mapped files with write calls.
    """
    from mqlake.cli.bench_disk import BLOCK_SIZES, COLUMNS, measure

    if not as_json:
        what = f"sequential blocks over a new file of {show.size(file_bytes)}; MiB/s, the faster of each pair in bold"
        _print_machine(directory, what)
    rows = []
    with show.progress("measuring", len(BLOCK_SIZES) * len(COLUMNS)) as step:
        for block in BLOCK_SIZES:
            rates = measure(directory, block, file_bytes, seconds, step.advance)
            rows.append((block, rates))
    if as_json:
        for block, rates in rows:
            show.print_json({"blockBytes": block, **{name: round(rate) for name, rate in rates.items()}})
        return
    made = show.table("block>", *(f"{title}>" for title in COLUMNS.values()))
    for block, rates in rows:
        made.add_row(_block_name(block), *_cells(list(rates.values())))
    show.console().print(made)


def _cells(rates: list[float]) -> list[str]:
    """Format MiB/s; the faster of each pair is bold."""
    cells = []
    for at, rate in enumerate(rates):
        mebibytes = rate / (1 << 20)
        text = f"{mebibytes:,.0f}" if mebibytes >= 100 else f"{mebibytes:.1f}" if mebibytes >= 1 else f"{mebibytes:.3f}"
        cells.append(f"[bold]{text}[/]" if rate >= rates[at ^ 1] else text)
    return cells


def _block_name(block: int) -> str:
    """Format a block size. All are powers of two, so there are no fractions."""
    return show.size(block).replace(".0", "")


def _print_machine(directory: Path, what: str) -> None:
    """Print the machine: without it, a number says little."""
    machine = f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}"
    click.echo(f"mqlake {mqlake.__version__} ({KERNEL} kernel), {machine}\n{directory}: {what}\n")
