"""`report(spark, stores, lake)`: collect statistics, lag, damage and the lake's state as the data of a page.

Everything is taken once, at one time. Optional parts (a lake, the pipeline's notes, gates) appear only if they exist.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from mqlake import MessageStore
from mqlake.errors import StoreError
from mqlake.files.layout import Layout
from mqlake.logs.scars import read_scars
from mqlake.report.data import (
    Bucket,
    Damage,
    Gate,
    LagFacts,
    Report,
    Step,
    StoreFacts,
    TopKey,
    WorkerFacts,
)
from mqlake.report.naming import title_of
from mqlake.report.times import axis_of
from mqlake.spark.jobs.report_lake import lake_facts
from mqlake.spark.jobs.report_topics import TREND_STEPS, topic_facts
from mqlake.spark.jobs.stats import Stats, stats
from mqlake.spark.jobs.stats_rows import latency_at, latency_buckets
from mqlake.spark.topics import is_internal
from mqlake.store.gates import Gates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOP_KEYS_SHOWN = 100


def report(
    spark: SparkSession | None,
    stores: str | Sequence[str] = (),
    *,
    lake: str | None = None,
    title: str | None = None,
) -> Report:
    """Return all that a page shows of stores, of a lake, or of both. Without a session it is counted here.

    The title is the store's name unless one is given.
    """
    return report_of(stats(spark, stores, lake=lake), lake=lake, title=title)


def report_of(found: Stats, *, lake: str | None = None, title: str | None = None) -> Report:
    """Return the report for statistics that were taken before."""
    (total,) = found.traffic().to_pylist() or [{}]
    (internal,) = found.traffic(internal=True).to_pylist() or [{}]
    steps, step_ms = _pulse(found)
    keys = found.keys()
    return Report(
        title=title if title is not None else title_of(sorted(found.logs), lake),
        made_ms=time.time_ns() // 1_000_000,
        stores=_stores(found),
        messages=total.get("messages", 0) or 0,
        bytes=total.get("bytes", 0) or 0,
        body_bytes=total.get("body_bytes", 0) or 0,
        internal_messages=(internal.get("messages", 0) or 0) - (total.get("messages", 0) or 0),
        queue_count=found.queues.num_rows,
        steps=steps,
        step_ms=step_ms,
        topics=topic_facts(found, keys, axis_of(steps, step_ms, most=TREND_STEPS)),
        sizes=[Bucket(low, 2 * low, many) for low, many in _pairs(found.histogram("size"))],
        latencies=_latencies(found),
        max_latency_ms=total.get("max_latency_ms", 0) or 0,
        top_keys=_top_keys(found),
        key_count=pc.sum(keys["messages"]).as_py() or 0,
        lag=_lag(found),
        damage=_damage(found),
        workers=_workers(found),
        lake=lake_facts(lake) if lake is not None else None,
        gates=_gates(found),
    )


def _pairs(histogram: pa.Table) -> list[tuple[int, int]]:
    return list(zip(histogram["at"].to_pylist(), histogram["messages"].to_pylist(), strict=True))


def _stores(found: Stats) -> list[StoreFacts]:
    facts = []
    for store in sorted({*found.logs, *(part.store for part in found.counted)}):
        parts = [part for part in found.counted if part.store == store]
        start, end = min((part.start for part in parts), default=0), max((part.end for part in parts), default=0)
        facts.append(StoreFacts(store, *found.logs.get(store, (start, end)), start, end))
    return facts


def _pulse(found: Stats) -> tuple[list[Step], int]:
    """Return steps of equal length: the longest step, of which all shorter ones are divisors."""
    rows = found.kind("pulse")
    step = pc.max(rows["at"]).as_py() or 1_000
    sums: dict[int, tuple[int, int]] = {}
    times = rows["time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    for at, messages, size in zip(times, rows["messages"].to_pylist(), rows["bytes"].to_pylist(), strict=True):
        before = sums.get(at // step * step, (0, 0))
        sums[at // step * step] = before[0] + messages, before[1] + size
    return [Step(at, *sums[at]) for at in sorted(sums)], step


def _latencies(found: Stats) -> list[Bucket]:
    histogram = found.histogram("latency")
    lows = histogram["at"].to_numpy()
    highs = latency_at(latency_buckets(lows) + 1).tolist()
    return list(map(Bucket, lows.tolist(), highs, histogram["messages"].to_pylist()))


def _top_keys(found: Stats) -> list[TopKey]:
    rows = found.top_keys().sort_by([("messages", "descending"), ("topic", "ascending"), ("name", "ascending")])
    return [TopKey(*row.values()) for row in rows.slice(0, TOP_KEYS_SHOWN).to_pylist()]


def _lag(found: Stats) -> list[LagFacts]:
    """Return the lag of groups. RocketMQ itself always lags in its own topics, which no other part of the page has."""
    groups = ["store", "consumer_group", "topic"]
    sums = found.lag.group_by(groups).aggregate([("queue_id", "count"), ("lag", "sum"), ("waiting_since", "min")])
    return [
        LagFacts(
            *(row["store"], row["consumer_group"], row["topic"], row["queue_id_count"], row["lag_sum"]),
            None if row["waiting_since_min"] is None else round(row["waiting_since_min"].timestamp() * 1000),
        )
        for row in sums.to_pylist()
        if not is_internal(row["topic"])
    ]


def _damage(found: Stats) -> list[Damage]:
    """Return the damage found while counting, and scars that the stores list but that were not counted."""
    rows = [Damage(row["store"], row["at"], row["bytes"], row["name"]) for row in found.kind("damage").to_pylist()]
    seen = {(row.store, row.offset) for row in rows}
    for store in found.logs:
        for scar in read_scars(Layout(Path(store)).scars):
            if scar is not None and (store, scar.start) not in seen and scar.end > found.logs[store][0]:
                rows.append(Damage(store, scar.start, scar.end - scar.start, scar.reason))
    return rows


def _workers(found: Stats) -> list[WorkerFacts]:
    """Return the workers in trouble, of stores that a program has open for writing."""
    rows = []
    for path in found.logs:
        if not Layout(Path(path)).health.exists():  # no program has it open
            continue
        try:
            with MessageStore.open(path, read_only=True) as store:
                health = store.health()
        except StoreError:  # counting has read it a moment ago: it was deleted or is being made anew
            continue
        rows += [
            WorkerFacts(path, worker.name, worker.state.value, worker.error, worker.since_ms)
            for worker in health.workers
            if worker.error is not None
        ]
    return rows


def _gates(found: Stats) -> list[Gate]:
    return [
        Gate(store, name, offset, end)
        for store, (_, end) in found.logs.items()
        for name, offset in Gates(Layout(Path(store)).gates).offsets().items()
    ]
