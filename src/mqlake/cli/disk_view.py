"""How `mqlake bench disk` shows what it measured: tables with the spread, advice, the plot's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mqlake.cli import show
from mqlake.cli.bench_disk import WAYS, Measured
from mqlake.cli.disk_advice import advise, block_name, crossings, rate_text
from mqlake.cli.disk_plot import NAMES, TITLES, write_plot
from mqlake.errors import MissingExtra

LEFT_OUT = "–"


def print_tables(cases: Sequence[Measured]) -> None:
    """Print one table for each kind of access, and what to make of them."""
    console = show.console()
    found = {(case.kind, case.way, case.block): case for case in cases}
    for kind, ways in WAYS.items():
        made = show.table("block>", *(f"{NAMES[way]}>" for way in ways), title=TITLES[kind])
        blocks = sorted({case.block for case in cases})
        for block in blocks:
            row = [found[kind, way, block] for way in ways]
            fastest = max(case.rate for case in row)
            made.add_row(
                "whole file" if block == blocks[-1] else block_name(block), *(_cell(case, fastest) for case in row)
            )
        console.print(made)
        click.echo()
    if any(not case.rates for case in cases):
        click.echo(f"{LEFT_OUT} one block alone would take too much of the time; give more with --seconds\n")
    for line in crossings(cases):
        click.echo(line)
    click.echo("\nAdvice for this disk")
    for advice in advise(cases):
        click.echo(f"  {advice.name}: {advice.choice} ({advice.settings})\n    {advice.reason}")


def _cell(case: Measured, fastest: float) -> str:
    if not case.rates:
        return LEFT_OUT
    text = rate_text(case.rate)
    shown = f"[bold]{text}[/]" if case.rate == fastest else text
    return f"{shown} ±{100 * case.spread:.0f}%".ljust(len(shown) + 6) if len(case.rates) > 1 else shown


def print_json(cases: Sequence[Measured]) -> None:
    """Print a line for each case, and one for each piece of advice."""
    for case in cases:
        place = {"blockBytes": case.block, "kind": case.kind, "way": case.way}
        rates = {
            "bytesPerSecond": round(case.rate) if case.rates else None,
            "slowest": round(min(case.rates)) if case.rates else None,
            "fastest": round(max(case.rates)) if case.rates else None,
        }
        show.print_json({**place, **rates, "rounds": len(case.rates)})
    for advice in advise(cases):
        show.print_json({"advice": advice.name, **{k: v for k, v in advice._asdict().items() if k != "name"}})


def draw(cases: Sequence[Measured], base: Path, caption: str, *, err: bool) -> None:
    """Write the plot, and say where it is, or what it needs."""
    try:
        paths = write_plot(cases, base, caption)
    except MissingExtra as missing:
        click.echo(f"\nNo plot: {missing}", err=err)
    else:
        click.echo(f"\nPlot: {' and '.join(map(str, paths))}", err=err)
