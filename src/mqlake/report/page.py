"""Put the page together: one self-contained HTML file."""

from __future__ import annotations

from html import escape

from mqlake.report import scales, sections
from mqlake.report.data import Report
from mqlake.report.style import STYLE

PARTS = (
    sections.traffic,
    sections.sizes,
    sections.latency,
    sections.topics,
    sections.keys,
    sections.lag,
    sections.damage,
    sections.check,
    sections.pipeline,
    sections.retention,
)


def render(report: Report) -> str:
    """Return the report as HTML."""
    cards = "".join(part(report) for part in PARTS)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(report.title)}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{escape(report.title)}</h1><p class="lead">{escape(_lead(report))}</p></header>'
        f'<main>{sections.tiles(report)}<div class="cards">{cards}</div></main>'
        f"<footer>{escape(_foot(report))}</footer></body></html>\n"
    )


def _lead(report: Report) -> str:
    """Return the line under the title: stores and time range."""
    where = ", ".join(store.path[: sections.LONG] for store in report.stores[:3])
    if len(report.stores) > 3:
        where += f" and {len(report.stores) - 3} more"
    if not report.steps:
        return f"{where}: no messages" if where else "no messages"
    first = min(step.time_ms for step in report.steps)
    last = max(step.time_ms for step in report.steps) + report.step_ms
    return f"{where + ', ' if where else ''}{scales.moment(first)} to {scales.moment(last)} UTC"


def _foot(report: Report) -> str:
    text = f"Made by mqlake on {scales.moment(report.made_ms)} UTC."
    if report.internal_messages:
        text += (
            f" {scales.count(report.internal_messages)} messages of RocketMQ's own topics, half or rolled back, "
            "are in the log but in no figure here."
        )
    return text
