"""Charts: inline SVG for shapes, HTML for text.

The SVG of a chart stretches with the page (`preserveAspectRatio="none"`). Its labels are HTML elements placed in
percent, so letters keep their size from a phone to a wide screen, and no script is needed. Every mark has a <title>,
which browsers show as a tooltip and screen readers read. A table with the same numbers follows each chart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from mqlake.report.scales import ticks

WIDTH, HEIGHT = 1000, 100
EDGE = 2
"""A label closer than this to the right edge, in percent, ends there. On the left is room, under the other axis."""
NEAR = 12
"""A label closer than this is moved a little from the right edge where the screen is narrow."""


class Bar(NamedTuple):
    """A value and its tooltip."""

    value: float
    tooltip: str


class Label(NamedTuple):
    """A text under a chart, at a position in percent."""

    place: float
    text: str


def columns(
    bars: Sequence[Bar],
    labels: Sequence[Label],
    *,
    name: str,
    text: Callable[[float], str],
    tone: str,
    base: int = 10,
    whole: bool = False,
) -> str:
    """Draw vertical bars on a common baseline, with round numbers on the axis."""
    marks = ticks(max((bar.value for bar in bars), default=0) or 1, base=base, whole=whole)
    top = marks[-1]
    grid = "".join(f'<line x1="0" x2="{WIDTH}" y1="{_y(mark, top)}" y2="{_y(mark, top)}"/>' for mark in marks)
    step = WIDTH / max(1, len(bars))
    shapes = "".join(_column(bar, number * step, step, top) for number, bar in enumerate(bars))
    beside = "".join(f'<span style="bottom:{100 * mark / top:.1f}%">{escape(text(mark))}</span>' for mark in marks)
    return (
        f'<div class="chart {tone}"><div class="y" aria-hidden="true">{beside}</div>'
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(name)}"><g class="grid">{grid}</g>{shapes}</svg>'
        f'<div class="x" aria-hidden="true">{"".join(map(_label, range(len(labels)), labels))}</div></div>'
    )


def _y(value: float, top: float) -> str:
    return f"{HEIGHT * (1 - value / top):.2f}"


def _column(bar: Bar, x: float, step: float, top: float) -> str:
    height = HEIGHT * bar.value / top
    height = max(height, 0.8) if bar.value > 0 else 0  # keep small values visible
    gap = min(step * 0.12, 3)
    return (
        f'<g class="mark"><rect class="hit" x="{x:.2f}" y="0" width="{step:.2f}" height="{HEIGHT}"/>'
        f'<rect x="{x + gap:.2f}" y="{HEIGHT - height:.2f}" width="{step - 2 * gap:.2f}" height="{height:.2f}"/>'
        f"<title>{escape(bar.tooltip)}</title></g>"
    )


def _label(number: int, label: Label) -> str:
    side = "right" if label.place > 100 - EDGE else "middle"
    minor = " minor" if number % 2 else ""
    near = " late" if label.place > 100 - NEAR else ""
    return f'<span class="{side}{near}{minor}" style="left:{label.place:.2f}%">{escape(label.text)}</span>'


def share(value: float, highest: float, tooltip: str, tone: str = "first") -> str:
    """Draw one horizontal bar whose full width is `highest`."""
    width = 0.0 if highest <= 0 else max(WIDTH * value / highest, 3 if value > 0 else 0)
    return (
        f'<svg class="share {tone}" viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<g class="mark"><rect class="hit" width="{WIDTH}" height="10"/><rect width="{width:.1f}" height="10"/>'
        f"<title>{escape(tooltip)}</title></g></svg>"
    )


SPARK_WIDTH, SPARK_HEIGHT = 120, 20


def sparkline(values: Sequence[int], tooltip: str) -> str:
    """Draw a small line with its area, as high as its highest value; nothing for a single step, which has no course.

    Coordinates are whole numbers: a page has many such lines.
    """
    highest = max(values, default=0)
    if not highest or len(values) < 2:
        return ""
    step = SPARK_WIDTH / (len(values) - 1)
    heights = [SPARK_HEIGHT - (value and max(1, round((SPARK_HEIGHT - 2) * value / highest))) - 1 for value in values]
    line = " ".join(f"{round(number * step)} {height}" for number, height in enumerate(heights))
    return (
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" preserveAspectRatio="none">'
        f'<path d="M0 {SPARK_HEIGHT}L{line} {SPARK_WIDTH} {SPARK_HEIGHT}z"/><polyline points="{line}"/>'
        f"<title>{escape(tooltip)}</title></svg>"
    )


class Span(NamedTuple):
    """A part [start, end) of a line."""

    start: int
    end: int
    tooltip: str
    tone: str


def spans(parts: Sequence[Span], start: int, end: int, name: str) -> str:
    """Draw parts of one range, each on its own line below the previous one."""
    whole = max(1, end - start)
    drawn = []
    for number, part in enumerate(parts):
        x = WIDTH * (part.start - start) / whole
        width = max(WIDTH * (part.end - part.start) / whole, 3)
        drawn.append(
            f'<g class="mark {part.tone}"><rect x="{min(x, WIDTH - 3):.1f}" y="{number * 10}" '
            f'width="{width:.1f}" height="9"/>'
            f"<title>{escape(part.tooltip)}</title></g>"
        )
    return (
        f'<svg class="spans" viewBox="0 0 {WIDTH} {10 * len(parts)}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(name)}">{"".join(drawn)}</svg>'
    )
