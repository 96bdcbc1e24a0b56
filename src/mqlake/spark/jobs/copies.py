"""Count retries and dead letters by the topic whose messages they copy.

A copy lies in a topic of its consumer group and names the original's topic in a property. Properties are costly to
read, so only the records of these topics are read again, and only if a split has any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from mqlake.spark.jobs.stats_rows import rows
from mqlake.spark.options import SourceOptions
from mqlake.spark.read_split import SplitScan
from mqlake.spark.split import Split

PREFIXES = {"retry": "%RETRY%", "dead": "%DLQ%"}
"""RocketMQ's names for the topics of a group, by the kind of their rows."""
RETRY_TOPIC = "RETRY_TOPIC"
"""The property in which RocketMQ keeps the topic of the original."""


def copies(store: str, options: SourceOptions, split: Split, topics: Sequence[str]) -> list[pa.Table]:
    """Return rows for the copies in a split that has messages of these topics."""
    wanted = tuple(topic for topic in topics if topic.startswith(tuple(PREFIXES.values())))
    if not wanted:
        return []
    counts: Counter[tuple[str, str]] = Counter()
    for batch in SplitScan(options, replace(split, topics=wanted), ("topic", "properties"), check_crc=False).of_split():
        for topic, properties in zip(
            *(batch.column(name).to_pylist() for name in ("topic", "properties")), strict=True
        ):
            counts[topic, dict(properties).get(RETRY_TOPIC, topic)] += 1
    found = []
    for kind, prefix in PREFIXES.items():
        lines = [(key[1], key[0].removeprefix(prefix), n) for key, n in counts.items() if key[0].startswith(prefix)]
        if lines:
            of, groups, many = (list(column) for column in zip(*lines, strict=True))
            found.append(rows(kind, store, topic=pa.array(of), name=pa.array(groups), messages=many))
    return found
