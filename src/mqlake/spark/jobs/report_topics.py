"""The topics of a report: their traffic over time, keys, tags, retries and dead letters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.report.data import TopicFacts
from mqlake.report.times import Axis
from mqlake.spark.jobs.stats import Stats
from mqlake.spark.jobs.stats_rows import OTHER_TAGS
from mqlake.spark.jobs.stats_split import MINUTE_MS

TREND_STEPS = 40
"""Steps of a topic's traffic at most: what a small line can show."""
NOTHING = {"messages": 0, "bytes": 0, "latency_ms": 0}


def topic_facts(found: Stats, keys: pa.Table, axis: Axis) -> list[TopicFacts]:
    """Return the facts of each topic. `axis` covers the traffic of all; topics may have finer or coarser steps."""
    traffic = {row["topic"]: row for row in found.traffic("topic").to_pylist()}
    retries, dead = (_summed(found.kind(kind)) for kind in ("retry", "dead"))
    distinct = dict(zip(keys["topic"].to_pylist(), keys["distinct"].to_pylist(), strict=True))
    tags = _tags(found)
    trends = _trends(found, axis)
    facts = []
    for name in sorted(
        traffic | retries | dead
    ):  # the originals of a copy may be gone, and with them the topic's traffic
        row = traffic.get(name, NOTHING)
        known = tags.get(name, set())
        facts.append(
            TopicFacts(
                *(name, row["messages"], row["bytes"], row["latency_ms"] / max(1, row["messages"]), distinct.get(name)),
                tag_count=len(known - {OTHER_TAGS}),
                more_tags=OTHER_TAGS in known,
                retries=retries[name],
                dead_letters=dead[name],
                trend=trends.get(name, ()),
            )
        )
    return facts


def _summed(rows: pa.Table) -> Counter[str]:
    counts: Counter[str] = Counter()
    for topic, messages in zip(rows["topic"].to_pylist(), rows["messages"].to_pylist(), strict=True):
        counts[topic] += messages
    return counts


def _tags(found: Stats) -> dict[str, set[str]]:
    pairs = found.kind("traffic").group_by(["topic", "tags"]).aggregate([])
    tags: dict[str, set[str]] = {}
    for topic, tag in zip(pairs["topic"].to_pylist(), pairs["tags"].to_pylist(), strict=True):
        if tag is not None:
            tags.setdefault(topic, set()).add(tag)
    return tags


def _trends(found: Stats, axis: Axis) -> dict[str, list[int]]:
    """Return the messages of each topic in each step of the axis: by trend rows if these have all messages."""
    rows, minutes = found.kind("trend"), found.kind("traffic")
    step = pc.max(rows["at"]).as_py() or MINUTE_MS
    if pc.sum(rows["messages"]) != pc.sum(minutes["messages"]) or axis.width >= MINUTE_MS:
        rows, step = minutes, MINUTE_MS
    if not rows.num_rows:
        return {}
    width = -(-axis.width // step) * step
    first = axis.start // width
    count = -(-axis.end // width) - first
    places = rows["time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy() // width - first
    topics = rows["topic"].combine_chunks().dictionary_encode()
    inside = (places >= 0) & (places < count)
    codes = topics.indices.to_numpy()[inside] * np.int64(count) + places[inside]
    sums = np.bincount(codes, rows["messages"].to_numpy()[inside], minlength=count * len(topics.dictionary))
    grid = sums.astype(np.int64).reshape(-1, count)
    return dict(zip(topics.dictionary.to_pylist(), grid.tolist(), strict=True))
