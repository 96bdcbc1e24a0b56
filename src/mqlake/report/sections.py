"""The sections of the page, in order. Each function returns HTML for the report and escapes every text in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mqlake.report import scales
from mqlake.report.charts import Bar, Label, Span, columns, share, spans
from mqlake.report.data import Bucket, LakeFacts, Report
from mqlake.report.scales import NBSP

TOP = 15
"""Rows in a bar list. The rest is summed in one row."""
TABLE_ROWS = 1_000
LONG, LONGEST = 120, 2_000
PERCENTILES = ((0.5, "median"), (0.9, f"90{NBSP}%"), (0.99, f"99{NBSP}%"), (0.999, f"99.9{NBSP}%"))


# ---- building blocks


def section(title: str, note: str, *parts: str, half: bool = False) -> str:
    shown = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section{' class=half' if half else ''}><h2>{escape(title)}</h2>{shown}{''.join(parts)}</section>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. A heading that ends in `>` marks a column of numbers. Long tables are cut, with a note."""
    kinds = [" class=n" if head.endswith(">") else "" for head in heads]
    top = "".join(f"<th{kind}>{escape(head.rstrip('>'))}</th>" for head, kind in zip(heads, kinds, strict=True))
    lines = [
        "".join(f"<td{kind}>{cut(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        for row in rows[:TABLE_ROWS]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p class=note>and {scales.count(len(rows) - TABLE_ROWS)} more</p>" if len(rows) > TABLE_ROWS else ""
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def cut(text: str) -> str:
    """Return the text of a cell. If it is too long, the tooltip shows the rest."""
    if len(text) <= LONG:
        return escape(text)
    return f'<span title="{escape(text[:LONGEST])}">{escape(text[:LONG])}…</span>'


def details(summary: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"<details><summary>{escape(summary)}</summary>{table(heads, rows)}</details>"


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


# ---- headline figures


def tiles(report: Report) -> str:
    lag = sum(row.messages for row in report.lag)
    shown = [
        (
            scales.short(report.messages),
            "message" if report.messages == 1 else "messages",
            "",
            scales.count(report.messages),
        ),
        (scales.size(report.bytes), "of records", "", f"{scales.count(report.bytes)} bytes"),
        (scales.short(len(report.topics)), "topic" if len(report.topics) == 1 else "topics", "", ""),
        (scales.short(report.queue_count), "queue" if report.queue_count == 1 else "queues", "", ""),
    ]
    slow = scales.percentile(report.latencies, 0.99)
    if slow is not None:
        shown.append(
            (_at_most_ms(report, slow), f"born to store, 99{NBSP}%", "", "99 of 100 messages were stored in that time")
        )
    if report.lag:
        shown.append((scales.short(lag), "messages of lag", "", scales.count(lag)))
    harm = len(report.damage)
    shown.append((scales.short(harm) if harm else "none", "damage found", "bad" if harm else "good", ""))
    return f'<div class="tiles">{"".join(_tile(*tile) for tile in shown)}</div>'


def _tile(value: str, name: str, kind: str, title: str) -> str:
    hint = f' title="{escape(title)}"' if title else ""
    return f'<div class="tile {kind}"{hint}><b>{escape(value)}</b><span>{escape(name)}</span></div>'


# ---- traffic


def traffic(report: Report) -> str:
    if not report.messages:
        return section("Traffic", "No messages were counted.")
    steps, width = scales.rebinned(report.steps, report.step_ms)
    start, end = steps[0].time_ms, steps[-1].time_ms + width
    labels = [Label(100 * (at - start) / (end - start), text) for at, text in scales.time_ticks(start, end)]
    times = [scales.moment(step.time_ms) for step in steps]
    rates = [step.messages * 1000 / width for step in steps]
    flows = [step.bytes * 1000 / width for step in steps]
    charts = (
        ("Messages per second", rates, scales.short, 10, "first"),
        ("Bytes per second", flows, scales.size, 1024, "second"),
    )
    drawn = "".join(
        f"<h3>{name}</h3>"
        + columns(
            [Bar(value, f"{time} UTC: {text(value)} per second") for time, value in zip(times, values, strict=True)],
            labels,
            name=f"{name} over time",
            text=text,
            base=base,
            tone=tone,
        )
        for name, values, text, base, tone in charts
    )
    note = f"By store time, in steps of {scales.duration(width)}; times are UTC."
    rows = [
        (time, scales.count(step.messages), scales.size(step.bytes), scales.short(rate), scales.size(flow))
        for time, step, rate, flow in zip(times, steps, rates, flows, strict=True)
    ]
    heads = ("from", "messages>", "bytes>", "messages/s>", "bytes/s>")
    return section("Traffic", note, drawn, details("The numbers", heads, rows))


def topics(report: Report) -> str:
    if not report.topics:
        return ""
    found = sorted(report.topics, key=lambda topic: (-topic.messages, topic.name))
    top, rest = (found[:TOP], found[TOP:]) if len(found) > TOP + 1 else (found, [])
    rows = [(t.name, float(t.messages), scales.short(t.messages), scales.size(t.bytes)) for t in top]
    if rest:
        many, size = sum(t.messages for t in rest), sum(t.bytes for t in rest)
        rows.append((f"{scales.count(len(rest))} others", 0.0, scales.short(many), scales.size(size)))
    total = max(1, report.messages)
    heads = ("topic", "messages>", "share>", "bytes>", "mean latency>", "distinct keys>")
    lines = [
        (
            *(t.name, scales.count(t.messages), scales.percent(t.messages / total), scales.size(t.bytes)),
            scales.duration(t.mean_latency_ms),
            "" if t.distinct_keys is None else scales.count(t.distinct_keys),
        )
        for t in found
    ]
    note = "Messages and record bytes per topic, most messages first."
    return section("Topics", note, bar_list(rows, tone="first"), details("All topics", heads, lines), half=True)


def sizes(report: Report) -> str:
    if not report.sizes:
        return ""
    mean = report.bytes / max(1, report.messages)
    share_of_bodies = scales.percent(report.body_bytes / max(1, report.bytes))
    summary = figures([("mean", scales.size(mean)), ("share of bodies", share_of_bodies)])
    buckets = scales.doublings(report.sizes)
    drawn = _histogram(buckets, "Record sizes", scales.size, "third")
    return section("Sizes", "Whole records, as stored.", drawn, summary, _bucket_table(buckets, scales.size), half=True)


def latency(report: Report) -> str:
    if not report.latencies:
        return ""
    pairs = [
        (name, _at_most_ms(report, found))
        for part, name in PERCENTILES
        if (found := scales.percentile(report.latencies, part)) is not None
    ]
    summary = figures([*pairs, ("max", scales.duration(report.max_latency_ms))])
    buckets = scales.doublings(report.latencies)
    drawn = _histogram(buckets, "Latency from born to store time", scales.duration, "second")
    note = "From the producer's clock to the store's. Delayed and retried messages keep their original born time."
    rows = _bucket_table(buckets, scales.duration)
    return section("Latency from born to store time", note, drawn, summary, rows, half=True)


def _at_most_ms(report: Report, bucket: Bucket) -> str:
    """Return an upper bound of the values in a bucket: the bucket's end or the overall maximum."""
    sign = f"≤{NBSP}" if bucket.high - bucket.low > 1 else ""
    return sign + scales.duration(min(bucket.high - 1, max(report.max_latency_ms, bucket.low)))


def _histogram(buckets: Sequence[Bucket], name: str, text: scales.Text, tone: str) -> str:
    every = max(1, -(-len(buckets) // 8))
    step = 100 / len(buckets)
    labels = [Label((n + 0.5) * step, text(buckets[n].low)) for n in range(0, len(buckets), every)]
    total = sum(bucket.messages for bucket in buckets)
    bars = [
        Bar(b.messages, f"{_range(b, text)}: {scales.count(b.messages)} messages, {scales.percent(b.messages / total)}")
        for b in buckets
    ]
    return columns(bars, labels, name=f"{name}, a histogram", text=scales.short, tone=tone, whole=True)


def _range(bucket: Bucket, text: scales.Text) -> str:
    return text(bucket.low) if bucket.high - bucket.low <= 1 else f"{text(bucket.low)} to under {text(bucket.high)}"


def _bucket_table(buckets: Sequence[Bucket], text: scales.Text) -> str:
    total = max(1, sum(bucket.messages for bucket in buckets))
    rows = [(_range(b, text), scales.count(b.messages), scales.percent(b.messages / total)) for b in buckets]
    return details("The numbers", ("range", "messages>", "share>"), rows)


def keys(report: Report) -> str:
    if not report.key_count:
        return section("Keys", "", '<p class="note">The messages have no keys.</p>', half=True)
    by_topic = [t for t in report.topics if t.distinct_keys is not None]
    by_topic.sort(key=lambda t: (-(t.distinct_keys or 0), t.name))
    rows = [
        (t.name, float(t.distinct_keys or 0), f"≈ {scales.short(t.distinct_keys or 0)}", "") for t in by_topic[:TOP]
    ]
    note = f"{scales.count(report.key_count)} keys. Distinct keys are estimated, with a standard error of 1.6{NBSP}%."
    parts = ["<h3>Distinct keys by topic</h3>", bar_list(rows, tone="third")]
    found = sorted(report.top_keys, key=lambda key: (-key.at_least, key.topic, key.key))
    if found:
        lines = [
            (
                key.topic,
                key.key,
                scales.count(key.at_least),
                "exact" if key.at_least == key.at_most else _at_most(key.at_most),
            )
            for key in found
        ]
        heads = ("topic", "key", "times>", "")
        parts += ["<h3>Most frequent keys</h3>", table(heads, lines[:10])]
        if len(lines) > 10:
            parts.append(details("More keys", heads, lines[10:]))
    else:
        parts.append('<p class="note">No key is frequent enough to stand out.</p>')
    return section("Keys", note, *parts, half=True)


def _at_most(number: int) -> str:
    return f"at least; at most {scales.count(number)}"


# ---- consumers, damage, pipeline


def lag(report: Report) -> str:
    if not report.lag:
        return section(
            "Consumers",
            "",
            '<p class="note">No consumer progress: config/consumerOffset.json names no group.</p>',
            half=True,
        )
    found = sorted(report.lag, key=lambda row: (-row.messages, row.group, row.topic))
    rows = [
        (
            f"{row.group} · {row.topic}",
            float(row.messages),
            scales.short(row.messages),
            _waiting(report, row.waiting_since_ms),
        )
        for row in found[:TOP]
    ]
    lines = [
        (
            row.group,
            row.topic,
            row.store,
            str(row.queue_count),
            scales.count(row.messages),
            _waiting(report, row.waiting_since_ms),
        )
        for row in found
    ]
    heads = ("group", "topic", "store", "queues>", "lag>", "oldest waits>")
    note = "Messages that each group has not yet consumed, and how long the oldest of them has waited."
    return section("Consumers", note, bar_list(rows, tone="second"), details("All groups", heads, lines), half=True)


def _waiting(report: Report, since_ms: int | None) -> str:
    return "" if since_ms is None else scales.duration(max(0, report.made_ms - since_ms))


def damage(report: Report) -> str:
    if not report.damage:
        return section("Damage", "", badge("No damage found", "good"), _counted_note(report), half=True)
    rows = [
        (
            row.store,
            "" if row.offset is None else str(row.offset),
            "" if row.size is None else scales.size(row.size),
            row.what,
        )
        for row in report.damage
    ]
    heads = ("store", "offset>", "size>", "what")
    many = f"{scales.count(len(rows))} damaged {'place' if len(rows) == 1 else 'places'}"
    parts = [badge(many, "bad"), table(heads, rows[:10])]
    if len(rows) > 10:
        parts.append(details("More", heads, rows[10:]))
    note = "Readers skip these bytes. mqlake check shows details, mqlake repair fixes them."
    return section("Damage", note, *parts, half=True)


def _counted_note(report: Report) -> str:
    total = sum(store.counted_end - store.counted_start for store in report.stores)
    text = f"Every record in {scales.size(total)} of log was checked, including the CRC of its body."
    return f'<p class="note">{escape(text)}</p>'


def check(report: Report) -> str:
    """Return what the pipeline found when it read the log; `damage` shows the log as it is now."""
    if report.lake is None or report.lake.check is None:
        return ""
    found = report.lake.check
    note = f"Records and queue entries in {scales.size(found.bytes)} of log, as they were when the pipeline read them."
    if not found.counts:
        return section("Check", note, badge("No broken promise found", "good"))
    many = ", ".join(f"{scales.count(n)} {name}{'' if n == 1 else 's'}" for name, n in found.counts.items())
    heads = ("", "what", "store", "where", "found", "cost")
    rows = [(row.severity, row.promise, row.store, row.place, row.found, row.cost) for row in found.worst]
    parts = [badge(many, "bad" if found.counts.get("error") else "warn"), table(heads, rows[:10])]
    if len(rows) > 10:
        parts.append(details("More", heads, rows[10:]))
    if (left := sum(found.counts.values()) - len(rows)) > 0:
        parts.append(f'<p class="note">and {scales.count(left)} more in the lake\'s table findings</p>')
    return section("Check", note, *parts)


def pipeline(report: Report) -> str:
    if report.lake is None:
        return ""
    lake = report.lake
    at = "" if lake.committed_ms is None else f", last commit {scales.moment(lake.committed_ms)} UTC"
    note = f"Lake {lake.path}, version {lake.version}{at}."
    rows = [(t.name, scales.count(t.file_count), scales.count(t.rows), scales.size(t.bytes)) for t in lake.tables]
    parts = [_run(lake)]
    if lake.stages:
        lines = [
            (
                *(stage.name, scales.count(stage.messages), scales.size(stage.bytes)),
                "" if stage.rows_per_s is None else scales.short(stage.rows_per_s),
                *(stage.position, scales.size(stage.lag_bytes)),
                "" if stage.at_ms is None else scales.moment(stage.at_ms),
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
    facts = [
        ("batches", scales.count(run.batches)),
        ("started", f"{scales.moment(run.started_ms)} UTC"),
        ("last update", f"{scales.moment(run.at_ms)} UTC"),
    ]
    error = "" if run.last_error is None else f"<p>{cut(run.last_error)}</p>"
    return f"<h3>Last run</h3>{badge(run.state, kind)}{error}{figures(facts)}"


def _archived(report: Report, lake: LakeFacts) -> str:
    """Return the archived range of each log."""
    logs = {store.path: (store.log_start, store.log_end) for store in report.stores}
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
        name = f"{store.name}: {text}"
        parts.append(f'<p class="note">{escape(name)}</p>{spans(drawn, start, end, name)}')
    return f"<h3>Archived ranges</h3>{''.join(parts)}" if parts else ""


def retention(report: Report) -> str:
    rows = [
        (
            store.path,
            scales.count(store.log_start),
            scales.count(store.log_end),
            scales.size(store.log_end - store.log_start),
        )
        for store in report.stores
    ]
    parts = [table(("store", "log from>", "to>", "size>"), rows)] if rows else []
    if report.gates:
        held = [
            (gate.store, gate.name, scales.count(gate.offset), scales.size(max(0, gate.log_end - gate.offset)))
            for gate in report.gates
        ]
        parts += [
            "<h3>Gates: parts of the log that are still needed</h3>",
            table(("store", "gate", "from offset>", "of log>"), held),
        ]
    else:
        parts.append('<p class="note">No gate holds the log: retention alone decides what is deleted.</p>')
    note = "Offsets are bytes in each log. Retention deleted everything before the first offset."
    return section("Logs and retention", note, *parts)
