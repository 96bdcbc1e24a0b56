"""Put the page together: one self-contained HTML file."""

from __future__ import annotations

import re
from html import escape

from mqlake.report import scales
from mqlake.report.banner import banner
from mqlake.report.data import Report
from mqlake.report.operation import damage, lag, retention
from mqlake.report.pipeline import check, pipeline
from mqlake.report.style import STYLE
from mqlake.report.times import axis_of, moment, moments
from mqlake.report.topics import keys, topics
from mqlake.report.traffic import latency, sizes, tiles, traffic

NARROW = (sizes, latency, keys, lag, damage)
SHOWN_PATH = 120


def render(report: Report) -> str:
    """Return the report as HTML."""
    cards = [
        *(traffic(report), topics(report), _packed([card for part in NARROW if (card := part(report))])),
        *(check(report), pipeline(report), retention(report)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(report.title)}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{escape(report.title)}</h1><p class="lead">{escape(_lead(report))}</p></header>'
        f'<main>{banner(report)}{tiles(report)}<div class="cards">{"".join(cards)}</div></main>'
        f"<footer>{escape(_foot(report))}</footer></body></html>\n"
    )


def _packed(cards: list[str]) -> str:
    """Place cards in two columns of similar height: each goes to the one that is shorter by then."""
    columns: list[list[str]] = [[], []]
    heights = [0, 0]
    for card in cards:
        shorter = heights.index(min(heights))
        columns[shorter].append(card)
        heights[shorter] += _height(card)
    return '<div class="pack"><div>' + "</div><div>".join(map("".join, columns)) + "</div></div>"


def _height(card: str) -> int:
    """Return about how many pixels high a card is, without what is folded away."""
    shown = re.sub(r"<details>.*?</details>", "<p>", card)
    rows = shown.count("<tr>") + shown.count('class="row"')
    return 80 + 220 * shown.count('class="chart') + 32 * rows + 34 * shown.count("<p")


def _lead(report: Report) -> str:
    """Return the line under the title: stores and time range."""
    where = ", ".join(store.path[:SHOWN_PATH] for store in report.stores[:3])
    if len(report.stores) > 3:
        where += f" and {len(report.stores) - 3} more"
    if not report.steps:
        return f"{where}: no messages" if where else "no messages"
    whole = axis_of(report.steps, report.step_ms, least=1)
    first = max(whole.start, min(step.time_ms for step in report.steps if step.time_ms >= whole.start))
    last = min(whole.end, max(step.time_ms for step in report.steps if step.time_ms < whole.end) + report.step_ms)
    return f"{where + ', ' if where else ''}{' to '.join(moments([first, last]))} UTC"


def _foot(report: Report) -> str:
    text = f"Made by mqlake on {moment(report.made_ms)} UTC."
    if report.internal_messages:
        text += (
            f" {scales.count(report.internal_messages)} messages of RocketMQ's own topics, half or rolled back, "
            "are in the log but in no figure here."
        )
    return text
