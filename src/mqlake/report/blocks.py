"""Building blocks of the page: cards, tables, lists of bars. Each escapes every text that it is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mqlake.report import scales
from mqlake.report.charts import share
from mqlake.report.data import Report

TABLE_ROWS = 1_000
LONG, LONGEST = 120, 2_000
WIDE = 24
"""Columns with longer texts than this are not squeezed: the table scrolls instead."""


class Markup(str):
    """HTML that a table shows as it is."""

    __slots__ = ()


def section(title: str, note: str, *parts: str) -> str:
    shown = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{shown}{''.join(parts)}</section>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    """Return a table. A heading that ends in `>` marks a column of numbers. Long tables are cut, with a note."""
    kinds = [_kind(head, [row[place] for row in rows[:TABLE_ROWS]]) for place, head in enumerate(heads)]
    top = "".join(f"<th{kind}>{escape(head.rstrip('>'))}</th>" for head, kind in zip(heads, kinds, strict=True))
    lines = [
        "".join(f"<td{kind}>{cut(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        for row in rows[:TABLE_ROWS]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p class=note>and {scales.count(len(rows) - TABLE_ROWS)} more</p>" if len(rows) > TABLE_ROWS else ""
    made = f"<table{f' class={kind}' if kind else ''}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{made}</div>{more}'


def _kind(head: str, cells: Sequence[str]) -> str:
    """Return the class of a column: numbers, or texts that need a width to be read in."""
    if head.endswith(">"):
        return " class=n"
    return " class=w" if any(len(cell) > WIDE for cell in cells if not isinstance(cell, Markup)) else ""


def store_table(report: Report, heads: Sequence[str], rows: Sequence[Sequence[str]], shown: int = 10) -> str:
    """Return a table of which further rows are folded away. Its column `store` is shown if there are several."""
    column = list(heads).index("store")
    if len({store.path for store in report.stores} | {row[column] for row in rows}) <= 1:
        heads, *rows = ([*line[:column], *line[column + 1 :]] for line in (heads, *rows))
    more = details(f"{scales.count(len(rows) - shown)} more", heads, rows[shown:]) if len(rows) > shown else ""
    return table(heads, rows[:shown]) + more


def cut(text: str) -> str:
    """Return the text of a cell. If it is too long, the tooltip shows the rest."""
    if isinstance(text, Markup):
        return text
    if len(text) <= LONG:
        return escape(text)
    return f'<span title="{escape(text[:LONGEST])}">{escape(text[:LONG])}…</span>'


def details(summary: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    return f"<details><summary>{escape(summary)}</summary>{table(heads, rows, kind=kind)}</details>"


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    return f'<div class="figures">{"".join(f"<div>{escape(n)} <b>{escape(v)}</b></div>" for n, v in pairs)}</div>'


def bar_list(rows: Sequence[tuple[str, float, str, str]], *, tone: str) -> str:
    """Return rows with a name, a bar, a number and, if any row has one, a second number."""
    highest = max((value for _, value, _, _ in rows), default=0)
    seconds = any(second for *_, second in rows)
    drawn = []
    for name, value, number, second in rows:
        bar = share(value, highest, f"{name}: {number}", tone)
        last = f'<span class="num soft">{escape(second)}</span>' if seconds else ""
        shown = f'<span class="name" title="{escape(name)}">{escape(name)}</span>'
        cells = f'{shown}<span class="bar">{bar}</span><span class="num">{escape(number)}</span>{last}'
        drawn.append(f'<div class="row">{cells}</div>')
    return f'<div class="bars{"" if seconds else " three"}">{"".join(drawn)}</div>'


def badge(text: str, kind: str) -> str:
    return f'<p><span class="badge {kind}">{escape(text)}</span></p>'


def counted(number: int, name: str, names: str = "") -> str:
    """Return a number with its noun, in the singular or the plural."""
    return f"{scales.count(number)} {name if number == 1 else names or name + 's'}"
