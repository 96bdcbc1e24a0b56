"""`mqlake bench`: measure this machine. Two measurements, each in its own module."""

from __future__ import annotations

import platform
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

import mqlake
from mqlake.cli import show
from mqlake.cli.options import Subcommands, byte_count, json_option
from mqlake.kernel import KERNEL

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(cls=Subcommands)
def bench() -> None:
    """Measure mqlake, or the disk itself, on your own disk."""


def folder_to_measure(ctx: click.Context, parameter: click.Parameter, directory: Path) -> Path:
    """Refuse a folder in which no file can be made."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        raise click.BadParameter(f"no file can be made in {str(directory)!r}: {error.strerror}") from None


def directory_option(command: Command) -> Command:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        default=tempfile.gettempdir(),
        show_default=True,
        callback=folder_to_measure,
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

    with one_interrupt(), tempfile.TemporaryDirectory(prefix="mqlake-bench-", dir=directory) as folder:
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


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C end the block, and later ones do nothing: it closes and removes what it made.

    They do nothing until the process ends, which it is about to do.
    """

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, end)
    yield
    signal.signal(signal.SIGINT, before)


@bench.command("disk")
@directory_option
@click.option(
    *("--size", "file_bytes"),
    type=byte_count,
    metavar="SIZE",
    default="256m",
    show_default=True,
    help="Size of the file. Twice as much memory is used beside it.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Time for all of it. The first round is always completed.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each case, for the spread."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Name of the plot: .png and .svg are added. [default: bench-disk, none with --json]",
)
@json_option
def bench_disk(directory: Path, file_bytes: int, seconds: float, rounds: int, plot: Path | None, as_json: bool) -> None:
    """Compare a mapped file with system calls, and say how to set a store for this disk.

    Blocks of 16 bytes to 64 MiB and the whole file are written to a new file each time: through a mapping, by write
    calls, and collected in memory first as the transient pool does; with no sync, one at the end, and one a block.
    Then they are read, through a mapping and by read calls. Ends with a table, advice for this disk, and a plot.
    """
    from mqlake.cli.bench_disk import DiskBench
    from mqlake.cli.disk_advice import block_name
    from mqlake.cli.disk_view import draw, print_json, print_tables

    what = f"a new file of {block_name(file_bytes)} for each run, {show.counted(rounds, 'round')}"
    if not as_json:
        _print_machine(directory, f"{what}; MiB/s, the fastest in bold, and the spread of the rounds")
    measured = DiskBench(directory, file_bytes, seconds, rounds)
    with show.progress("measuring", measured.run_count) as step:
        cases = measured.run(step.advance)
    if as_json:
        print_json(cases)
    else:
        print_tables(cases)
        plot = plot or Path("bench-disk")
    if plot is not None:
        draw(cases, plot, f"{platform.system()} {platform.machine()}, {what}", err=as_json)


def _print_machine(directory: Path, what: str) -> None:
    """Print the machine: without it, a number says little."""
    machine = f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}"
    click.echo(f"mqlake {mqlake.__version__} ({KERNEL} kernel), {machine}\n{directory}: {what}\n")
