"""`mqlake torture`: inject faults on your own disk, and print what was lost. It must be nothing."""

from __future__ import annotations

import random
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from mqlake.cli import show
from mqlake.cli.options import json_option

if TYPE_CHECKING:
    from mqlake.torture.run import Failure, Progress, Result

EXIT_PROMISE_BROKEN = 1
SHOWN_FAILURES = 10
COLUMNS = {
    "faults": "faults",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "invented": "invented",
    "refused": "refused starts",
    "gaps": "queue gaps",
    "false_acks": "false acks",
    "undetected": "undetected",
    "errors": "errors",
}
EVERYWHERE = ("faults", "acknowledged", "lost", "invented", "refused", "errors")


def row_names(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[str]:
    from mqlake.torture.rows import ROWS

    names = list(ROWS) if text is None else text.split(",")
    for name in names:
        if name not in ROWS:
            raise click.BadParameter(f"{name!r}; expected some of {', '.join(ROWS)}, with commas between them")
    return names


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--seed", type=click.IntRange(min=0), help="Repeat the faults of this seed. Default: a random seed.")
@click.option(
    "--minutes", type=click.FloatRange(min=0.01), default=3.0, show_default=True, help="Total time for all rows."
)
@click.option("--full", is_flag=True, help="Run every fault, however long it takes.")
@click.option(
    "--only",
    callback=row_names,
    metavar="ROW,…",
    help="Run only these rows: shapes, cuts, full, syncs, flips, heal, partition, kill, power, sink, pipeline.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Rows that run at the same time."
)
@click.option("--case", type=click.IntRange(min=0), help="Run only this case of one row; keep its folder.")
@json_option
def torture(
    directory: Path,
    seed: int | None,
    minutes: float,
    full: bool,
    only: list[str],
    jobs: int,
    case: int | None,
    as_json: bool,
) -> None:
    """Break stores under DIR in every way that disks and machines do, and count what is lost.

    Kills, power cuts, truncated and damaged files, failing syncs, a full disk, a network that is cut. Every
    acknowledged message must survive. Files are removed afterwards, unless a promise was broken: then they stay, and
    the command that repeats the case is printed. Exit code 0 means that every count is zero.
    """
    from mqlake.torture.run import Torture

    if case is not None and len(only) != 1:
        raise click.BadParameter("a case belongs to one row: name it with --only", param_hint="--case")
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"mqlake-torture-{seed}-", dir=directory))
    seconds = None if full or case is not None else minutes * 60
    if not as_json:
        click.echo(f"seed {seed}, in {folder}" + (f", {minutes:g} min" if seconds else ""))
    run = Torture(folder, seed, jobs)
    try:
        with _progress(only) as run.progress:
            run.run(only, seconds, case)
    except KeyboardInterrupt:
        if not as_json:
            click.echo("interrupted; of the cases that were finished:")
        raise
    finally:
        _print(run.results, directory, seed, as_json=as_json)
    if case is not None:
        click.echo(f"The files of the case are in {folder / only[0] / f'case-{case}'}", err=True)
    if not all(result.is_good for result in run.results):
        click.get_current_context().exit(EXIT_PROMISE_BROKEN)


@contextmanager
def _progress(rows: list[str]) -> Iterator[Progress]:
    """Show one progress bar a row on standard error, or a line when a row ends if that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown = Console(stderr=True)
    if not shown.is_terminal:
        yield _tell_end
        return
    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    wrong = TextColumn("[red]{task.fields[wrong]}")
    with Progress(*columns, wrong, console=shown, transient=True) as running:
        bars = {row: running.add_task(row, total=None, start=False, wrong="") for row in rows}

        def told(result: Result) -> None:
            bar = bars[result.row]
            running.start_task(bar)
            wrong = f"{len(result.failures)} broken" if result.failures else ""
            running.update(bar, total=result.cases, completed=result.tried, wrong=wrong)

        yield told


def _tell_end(result: Result) -> None:
    if result.tried == result.cases:
        cases = show.counted(result.tried, "case")
        click.echo(f"{result.row}: {cases}, {len(result.failures)} broken", err=True)


def _print(results: list[Result], directory: Path, seed: int, *, as_json: bool) -> None:
    if as_json:
        for result in results:
            failures = [{**f.as_json(), "again": _command(f, directory, seed)} for f in result.failures]
            show.print_json({**result.as_json(), "seed": seed, "failures": failures})
        return
    console = show.console()
    console.print(table_of(results))
    for result in results:
        if result.skipped is not None:
            click.echo(f"{result.row}: not allowed here, skipped: {result.skipped}")
        for failure in result.failures[:SHOWN_FAILURES]:
            click.echo(f"\n{failure.row} case {failure.case}: {'; '.join(failure.broken)}")
            click.echo(f"  kept in {failure.folder}\n  again:  {_command(failure, directory, seed)}")
        if len(result.failures) > SHOWN_FAILURES:
            click.echo(f"\n{result.row}: {len(result.failures) - SHOWN_FAILURES} more cases broke a promise")


def table_of(results: list[Result]) -> object:
    """Return the table. A dot marks a column that does not apply to a row."""
    from mqlake.torture.rows import ROWS

    made = show.table("row", "what was done*", *(f"{title}>" for title in COLUMNS.values()), "took>")
    for result in results:
        meant = (*EVERYWHERE, *ROWS[result.row].applies)
        cells = [_cell(name, getattr(result.total, name)) if name in meant else "·" for name in COLUMNS]
        made.add_row(result.row, ROWS[result.row].title, *cells, f"{result.took_s:.0f} s")
    return made


def _cell(name: str, number: int) -> str:
    is_bad = number and name not in ("faults", "acknowledged")
    return f"[bold red]{number:,}[/]" if is_bad else f"{number:,}"


def _command(failure: Failure, directory: Path, seed: int) -> str:
    where = shlex.quote(str(directory))
    return f"mqlake torture {where} --only {failure.row} --case {failure.case} --seed {seed}"
