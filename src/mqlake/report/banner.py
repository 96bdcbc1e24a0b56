"""What needs attention, at the top of the page: damage, failed workers, a failed pipeline, lag."""

from __future__ import annotations

from html import escape

from mqlake.report import scales
from mqlake.report.blocks import LONG, counted
from mqlake.report.data import Report
from mqlake.report.times import moment

MOST = 5
"""Lines for workers. More stores than that rarely fail for different reasons."""


def banner(report: Report) -> str:
    """Return the banner; nothing if all is well."""
    bad = [*_damage(report), *_workers(report), *_pipeline(report)]
    lines = [f"<li>{escape(text)}</li>" for text in bad + _lag(report)]
    if not lines:
        return ""
    tone, head = ("bad", "Needs attention") if bad else ("warn", "Consumers lag")
    return f'<div class="banner {tone}" role="status"><b>{head}</b><ul>{"".join(lines)}</ul></div>'


def _damage(report: Report) -> list[str]:
    if not report.damage:
        return []
    size = sum(row.size or 0 for row in report.damage)
    where = "" if len(report.stores) < 2 else f" of {counted(len({row.store for row in report.damage}), 'store')}"
    return [f"{counted(len(report.damage), 'damaged place')} in the log{where}: readers skip {scales.size(size)}."]


def _workers(report: Report) -> list[str]:
    named = len(report.stores) > 1
    lines = [
        f"{f'{row.store}: ' if named else ''}Worker {row.name} {_state(row.state)} "
        f"since {moment(row.since_ms)} UTC: {row.error}"
        for row in report.workers
    ]
    more = [f"and {counted(len(lines) - MOST, 'more worker')}"] if len(lines) > MOST else []
    return [_short(line) for line in lines[:MOST]] + more


def _state(state: str) -> str:
    return {"failed": "has failed", "retrying": "retries"}.get(state, f"is {state}")


def _pipeline(report: Report) -> list[str]:
    if report.lake is None:
        return []
    lines = []
    run, check = report.lake.run, report.lake.check
    if run is not None and (run.last_error or run.state in ("failed", "died")):
        lines.append(_short(f"The pipeline's last run: {run.state}{f', {run.last_error}' if run.last_error else ''}"))
    if check is not None and check.counts.get("error"):
        lines.append(f"The pipeline's check found {counted(check.counts['error'], 'error')}.")
    return lines


def _lag(report: Report) -> list[str]:
    late = [row for row in report.lag if row.messages]
    if not late:
        return []
    groups = counted(len({row.group for row in late}), "consumer group lags", "consumer groups lag")
    since = min((row.waiting_since_ms for row in late if row.waiting_since_ms is not None), default=None)
    oldest = "" if since is None else f"; the oldest waits for {scales.duration(max(0, report.made_ms - since))}"
    return [f"{groups} by {counted(sum(row.messages for row in late), 'message')}{oldest}."]


def _short(line: str) -> str:
    return line if len(line) <= 2 * LONG else f"{line[: 2 * LONG]}…"
