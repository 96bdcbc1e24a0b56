"""The cards about a lake: what the pipeline's check found, how its last run went, what is archived."""

from __future__ import annotations

from html import escape

from mqlake.report import scales
from mqlake.report.blocks import badge, counted, cut, figures, section, store_table, table
from mqlake.report.charts import Span, spans
from mqlake.report.data import LakeFacts, Report
from mqlake.report.times import moment, moments


def check(report: Report) -> str:
    """Return what the pipeline found when it read the log; `damage` shows the log as it is now."""
    if report.lake is None or report.lake.check is None:
        return ""
    found = report.lake.check
    note = f"Records and queue entries in {scales.size(found.bytes)} of log, as they were when the pipeline read them."
    if not found.counts:
        return section("Check", note, badge("No broken promise found", "good"))
    many = ", ".join(counted(n, name) for name, n in found.counts.items())
    heads = ("", "what", "store", "where", "found", "cost")
    rows = [(row.severity, row.promise, row.store, row.place, row.found, row.cost) for row in found.worst]
    parts = [badge(many, "bad" if found.counts.get("error") else "warn"), store_table(report, heads, rows)]
    if (left := sum(found.counts.values()) - len(rows)) > 0:
        parts.append(f'<p class="note">and {scales.count(left)} more in the lake\'s table findings</p>')
    return section("Check", note, *parts)


def pipeline(report: Report) -> str:
    if report.lake is None:
        return ""
    lake = report.lake
    at = "" if lake.committed_ms is None else f", last commit {moment(lake.committed_ms)} UTC"
    note = f"Lake {lake.path}, version {lake.version}{at}."
    rows = [(t.name, scales.count(t.file_count), scales.count(t.rows), scales.size(t.bytes)) for t in lake.tables]
    parts = [_run(lake)]
    if lake.stages:
        lines = [
            (
                *(stage.name, scales.count(stage.messages), scales.size(stage.bytes)),
                "" if stage.rows_per_s is None else scales.short(stage.rows_per_s),
                *(stage.position, scales.size(stage.lag_bytes)),
                "" if stage.at_ms is None else moment(stage.at_ms),
                stage.last_error or "none",
            )
            for stage in lake.stages
        ]
        heads = ("stage", "messages>", "log>", "rows/s per worker>", "position", "lag>", "at (UTC)", "last error")
        parts.append(table(heads, lines))
    parts += ["<h3>Tables</h3>", table(("table", "files>", "rows>", "size>"), rows)] if rows else []
    return section("Pipeline", note, *parts, _archived(report, lake))


def _run(lake: LakeFacts) -> str:
    """Return how the last run went."""
    if lake.run is None:
        return '<p class="note">No pipeline has run on this lake.</p>'
    run = lake.run
    kind = "bad" if run.last_error or run.state in ("failed", "died") else "good"
    started, at = moments([run.started_ms, run.at_ms])
    facts = [("batches", scales.count(run.batches)), ("started", f"{started} UTC"), ("last update", f"{at} UTC")]
    error = "" if run.last_error is None else f"<p>{cut(run.last_error)}</p>"
    return f"<h3>Last run</h3>{badge(run.state, kind)}{error}{figures(facts)}"


def _archived(report: Report, lake: LakeFacts) -> str:
    """Return the archived range of each log."""
    logs = {store.path: (store.log_start, store.log_end) for store in report.stores}
    named = len({*logs, *(store.name for store in lake.stores)}) > 1
    parts = []
    for store in lake.stores:
        first, last = logs.get(store.name, (store.start, store.end))
        start, end = min(first, store.start), max(last, store.end)
        drawn = [
            Span(first, last, f"log: {first} to {last}", "first"),
            Span(store.start, store.end, f"in the lake: {store.start} to {store.end}", "third"),
        ]
        left = scales.size(max(0, last - store.end))
        text = f"{scales.size(store.end - store.start)} in the lake (below), {left} of the log (above) not yet archived"
        name = f"{store.name}: {text}" if named else text
        parts.append(f'<p class="note">{escape(name)}</p>{spans(drawn, start, end, name)}')
    return f"<h3>Archived ranges</h3>{''.join(parts)}" if parts else ""
