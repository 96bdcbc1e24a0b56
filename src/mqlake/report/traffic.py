"""The headline figures, and the cards about messages as a whole: traffic over time, sizes, latency."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mqlake.report import scales
from mqlake.report.blocks import counted, details, figures, section
from mqlake.report.charts import Bar, Label, columns
from mqlake.report.data import Bucket, Report
from mqlake.report.scales import NBSP
from mqlake.report.times import Axis, moments, rate_unit, rebinned, time_ticks

PERCENTILES = ((0.5, "median"), (0.9, f"90{NBSP}%"), (0.99, f"99{NBSP}%"), (0.999, f"99.9{NBSP}%"))


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
    places = "damaged place" if harm == 1 else "damaged places"
    shown.append((scales.short(harm), places, "bad", "") if harm else ("none", "damage found", "good", ""))
    return f'<div class="tiles">{"".join(_tile(*tile) for tile in shown)}</div>'


def _tile(value: str, name: str, kind: str, title: str) -> str:
    hint = f' title="{escape(title)}"' if title else ""
    return f'<div class="tile {kind}"{hint}><b>{escape(value)}</b><span>{escape(name)}</span></div>'


# ---- over time


def traffic(report: Report) -> str:
    if not report.messages:
        return section("Traffic", "No messages were counted.")
    steps, axis = rebinned(report.steps, report.step_ms)
    span = axis.end - axis.start
    labels = [Label(100 * (at - axis.start) / span, text) for at, text in time_ticks(axis.start, axis.end)]
    times = moments([step.time_ms for step in steps])
    unit = rate_unit(max(step.messages for step in steps), axis.width)
    per, factor = (unit.name, unit.ms / axis.width) if unit is not None else (_step_name(axis.width), 1)
    rates = [step.messages * factor for step in steps]
    flows = [step.bytes * factor for step in steps]
    charts = (
        (f"Messages per {per}", rates, scales.short, 10, "first"),
        (f"Bytes per {per}", flows, scales.size, 1024, "second"),
    )
    drawn = "".join(
        f"<h3>{name}</h3>"
        + columns(
            [Bar(value, f"{time} UTC: {text(value)} per {per}") for time, value in zip(times, values, strict=True)],
            labels,
            name=f"{name} over time",
            text=text,
            base=base,
            tone=tone,
            whole=unit is None and base == 10,
        )
        for name, values, text, base, tone in charts
    )
    note = f"By store time, in steps of {scales.duration(axis.width)}; times are UTC.{_outside(axis)}"
    rows = [
        (time, scales.count(step.messages), scales.size(step.bytes), scales.short(rate), scales.size(flow))
        for time, step, rate, flow in zip(times, steps, rates, flows, strict=True)
    ]
    heads = ["from", "messages>", "bytes>"]
    if unit is not None and factor != 1:  # else a rate is what is in a step
        heads += [f"messages/{unit.sign}>", f"bytes/{unit.sign}>"]
    return section("Traffic", note, drawn, details("The numbers", heads, [row[: len(heads)] for row in rows]))


def _step_name(width: int) -> str:
    return "millisecond" if width == 1 else scales.duration(width)


def _outside(axis: Axis) -> str:
    """Return a sentence about messages that the axis leaves out."""
    parts = [
        f"{counted(many, 'message')} {side}" for many, side in ((axis.before, "before"), (axis.after, "after")) if many
    ]
    return f" Far from all others and not drawn: {' and '.join(parts)} this time." if parts else ""


# ---- sizes and latency


def sizes(report: Report) -> str:
    if not report.sizes:
        return ""
    mean = report.bytes / max(1, report.messages)
    share_of_bodies = scales.percent(report.body_bytes / max(1, report.bytes))
    summary = figures([("mean", scales.size(mean)), ("share of bodies", share_of_bodies)])
    buckets = scales.doublings(report.sizes)
    drawn = _histogram(buckets, "Record sizes", scales.size, "third")
    return section("Sizes", "Whole records, as stored.", drawn, summary, _bucket_table(buckets, scales.size))


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
    return section("Latency from born to store time", note, drawn, summary, rows)


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
        Bar(b.messages, f"{_range(b, text)}: {counted(b.messages, 'message')}, {scales.percent(b.messages / total)}")
        for b in buckets
    ]
    return columns(bars, labels, name=f"{name}, a histogram", text=scales.short, tone=tone, whole=True)


def _range(bucket: Bucket, text: scales.Text) -> str:
    return text(bucket.low) if bucket.high - bucket.low <= 1 else f"{text(bucket.low)} to under {text(bucket.high)}"


def _bucket_table(buckets: Sequence[Bucket], text: scales.Text) -> str:
    total = max(1, sum(bucket.messages for bucket in buckets))
    rows = [(_range(b, text), scales.count(b.messages), scales.percent(b.messages / total)) for b in buckets]
    return details("The numbers", ("range", "messages>", "share>"), rows)
