"""The cards about topics and keys: one row for each topic, with its traffic as a small line."""

from __future__ import annotations

from collections.abc import Sequence

from mqlake.report import scales
from mqlake.report.blocks import Markup, counted, details, section, table
from mqlake.report.charts import sparkline
from mqlake.report.data import Report, TopicFacts
from mqlake.report.scales import NBSP

TOP = 15
"""Rows that are shown at once. The others are folded away."""
COPIES = ("%RETRY%", "%DLQ%")
GROUPS = ("topic of a consumer group", "topics of consumer groups")
HEADS = (
    *("topic", "traffic", "messages>", "share>", "bytes>", "mean latency>"),
    *("keys>", "tags>", "retries>", "dead letters>"),
)


def topics(report: Report) -> str:
    if not report.topics:
        return ""
    ordered = sorted(report.topics, key=lambda topic: (-topic.messages, topic.name))
    found = [topic for topic in ordered if not topic.name.startswith(COPIES)]
    copied = [topic for topic in ordered if topic.name.startswith(COPIES)]
    top, rest = (found[:TOP], found[TOP:]) if len(found) > TOP + 1 else (found, [])
    parts = [table(HEADS, [_line(topic, report) for topic in top], kind="topics")] if top else []
    parts += [
        _folded(report, part, what) for part, what in ((rest, ("more topic", "more topics")), (copied, GROUPS)) if part
    ]
    note = (
        "Most messages first. Traffic lines share their time axis, not their height. Keys are distinct ones, estimated "
        f"with a standard error of 1.6{NBSP}%. Retries and dead letters are copies of a topic's messages in the topics "
        "%RETRY%… and %DLQ%… of consumer groups."
    )
    return section("Topics", note, *parts)


def _folded(report: Report, part: Sequence[TopicFacts], what: tuple[str, str]) -> str:
    """Return rows that are folded away, and what they are together."""
    many, size = sum(topic.messages for topic in part), sum(topic.bytes for topic in part)
    share = scales.percent(many / max(1, report.messages))
    summary = f"{counted(len(part), *what)}: {counted(many, 'message')} ({share}), {scales.size(size)}"
    return details(summary, HEADS, [_line(topic, report) for topic in part], kind="topics")


def _line(topic: TopicFacts, report: Report) -> Sequence[str]:
    return (
        topic.name,
        Markup(
            sparkline(topic.trend, f"{topic.name[:60]}: at most {scales.count(max(topic.trend, default=0))} in a step")
        ),
        *(scales.count(topic.messages), scales.percent(topic.messages / max(1, report.messages))),
        *(scales.size(topic.bytes), scales.duration(topic.mean_latency_ms)),
        "" if topic.distinct_keys is None else f"≈{NBSP}{scales.short(topic.distinct_keys)}",
        "" if not topic.tag_count else f"{'≥' + NBSP if topic.more_tags else ''}{scales.count(topic.tag_count)}",
        scales.count(topic.retries) if topic.retries else "",
        Markup(f"<b class=bad>{scales.count(topic.dead_letters)}</b>") if topic.dead_letters else "",
    )


def keys(report: Report) -> str:
    if not report.messages:
        return ""
    if not report.key_count:
        return section("Keys", "", '<p class="note">The messages have no keys.</p>')
    note = f"{counted(report.key_count, 'key')} in all. How often the most frequent ones occur:"
    found = sorted(report.top_keys, key=lambda key: (-key.at_least, key.topic, key.key))
    if not found:
        none = '<p class="note">No key is frequent enough to stand out.</p>'
        return section("Keys", f"{counted(report.key_count, 'key')} in all.", none)
    lines = [
        (
            key.topic,
            key.key,
            scales.count(key.at_least),
            "exact" if key.at_least == key.at_most else f"at least; at most {scales.count(key.at_most)}",
        )
        for key in found
    ]
    heads = ("topic", "key", "times>", "")
    more = details(f"{scales.count(len(lines) - 10)} more", heads, lines[10:]) if len(lines) > 10 else ""
    return section("Keys", note, table(heads, lines[:10]), more)
