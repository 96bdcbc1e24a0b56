"""The plot of `mqlake bench disk`: one panel for each kind of access, rates over block sizes, the spread as a band."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mqlake.cli.bench_disk import WAYS, Measured
from mqlake.cli.disk_advice import block_name
from mqlake.errors import MissingExtra

TITLES = {
    "none": "Writes, no sync",
    "end": "Writes, one sync at the end",
    "block": "Writes, one sync a block",
    "read": "Reads from the page cache",
}
NAMES = {"mapped": "mapped file", "write": "write calls", "pool": "pool, then write", "read": "read calls"}
LOOKS = {
    "mapped": ("#2a6fb8", "o", "-"),
    "write": ("#c25e00", "s", "--"),
    "pool": ("#00806a", "^", ":"),
    "read": ("#c25e00", "s", "--"),
}
"""Colour, marker and line: colour is never the only difference."""


def write_plot(cases: Sequence[Measured], base: Path, caption: str) -> list[Path]:
    """Write BASE.png and BASE.svg; MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("the plot", "bench") from None
    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(f"Mapped file and system calls by block size\n{caption}", fontsize=11)
    for axes, kind in zip(figure.subplots(2, 2).flat, WAYS, strict=True):
        _panel(axes, kind, [case for case in cases if case.kind == kind and case.rates])
    paths = [base.with_name(f"{base.name}.{form}") for form in ("png", "svg")]
    base.parent.mkdir(parents=True, exist_ok=True)
    for path in paths:
        figure.savefig(path, dpi=120)
    return paths


def _panel(axes: object, kind: str, cases: Sequence[Measured]) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import FuncFormatter, NullLocator

    assert isinstance(axes, Axes)
    for way in WAYS[kind]:
        line = [case for case in cases if case.way == way]
        colour, marker, style = LOOKS[way]
        blocks = [case.block for case in line]
        axes.plot(
            *(blocks, [case.rate / (1 << 20) for case in line]),
            label=NAMES[way],
            color=colour,
            marker=marker,
            linestyle=style,
            markersize=4,
        )
        low, high = ([pick(case.rates) / (1 << 20) for case in line] for pick in (min, max))
        axes.fill_between(blocks, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(TITLES[kind], fontsize=10)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = sorted({case.block for case in cases})
    names = [block_name(block).replace(" ", "\n") for block in shown]
    axes.set_xticks(shown, [*names[:-1], "whole\nfile"] if names else [], fontsize=7)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel("block", fontsize=8)
    axes.set_ylabel("MiB/s")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
