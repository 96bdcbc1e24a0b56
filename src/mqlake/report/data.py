"""What a report holds: plain values, so that it can be made from anything and drawn without anything.

Times are milliseconds since 1970, sizes bytes, ranges half-open. An empty list is a part that has nothing to tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class StoreFacts(NamedTuple):
    """A store, and the part of its log that is in the figures."""

    path: str
    log_start: int
    log_end: int
    counted_start: int
    counted_end: int


class Step(NamedTuple):
    """What came in one step of time."""

    time_ms: int
    messages: int
    bytes: int


class TopicFacts(NamedTuple):
    name: str
    messages: int
    bytes: int
    mean_latency_ms: float
    distinct_keys: int | None
    """About; None where its messages have no keys."""


class Bucket(NamedTuple):
    """How many values lie in [low, high)."""

    low: int
    high: int
    messages: int


class TopKey(NamedTuple):
    """A key that came at least and at most so often."""

    topic: str
    key: str
    at_least: int
    at_most: int


class LagFacts(NamedTuple):
    """How far a group is behind in a topic, all its queues together."""

    store: str
    group: str
    topic: str
    queue_count: int
    messages: int
    waiting_since_ms: int | None


class Damage(NamedTuple):
    """Bytes of a log that are no whole record."""

    store: str
    offset: int | None
    size: int | None
    what: str


class LakeTable(NamedTuple):
    name: str
    file_count: int
    rows: int
    bytes: int


class LakeStore(NamedTuple):
    """What a lake has of one store's log."""

    name: str
    start: int
    end: int


class Run(NamedTuple):
    """The pipeline's last run, as it told of itself."""

    state: str
    started_ms: int
    at_ms: int
    """Its last word."""
    batches: int
    last_error: str | None


class Stage(NamedTuple):
    """A stage of the pipeline: what it did in that run, and how far the lake has come."""

    name: str
    messages: int
    bytes: int
    rows_per_s: float | None
    """A worker, in the last batch."""
    position: str
    lag_bytes: int
    at_ms: int | None
    last_error: str | None


class FindingFacts(NamedTuple):
    """A broken promise that the pipeline's check came upon."""

    store: str
    severity: str
    promise: str
    place: str
    found: str
    cost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """What the pipeline's check found in the bytes that it took in, as they were then."""

    bytes: int
    counts: Mapping[str, int]
    """How many of each severity, the worst first."""
    worst: Sequence[FindingFacts] = ()
    """Not more than a page can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFacts:
    path: str
    version: int
    committed_ms: int | None
    tables: Sequence[LakeTable] = ()
    stores: Sequence[LakeStore] = ()
    run: Run | None = None
    """None where no pipeline ran."""
    stages: Sequence[Stage] = ()
    check: CheckFacts | None = None
    """None where nothing went through a check: an archive alone does not look."""


class Gate(NamedTuple):
    """A part that still needs the log from `offset` on."""

    store: str
    name: str
    offset: int
    log_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of a page."""

    title: str
    made_ms: int
    stores: Sequence[StoreFacts] = ()
    messages: int = 0
    bytes: int = 0
    body_bytes: int = 0
    internal_messages: int = 0
    """Of RocketMQ's own topics, half and rolled back: in no other figure."""
    queue_count: int = 0
    steps: Sequence[Step] = ()
    step_ms: int = 60_000
    topics: Sequence[TopicFacts] = ()
    sizes: Sequence[Bucket] = ()
    latencies: Sequence[Bucket] = ()
    max_latency_ms: int = 0
    top_keys: Sequence[TopKey] = ()
    key_count: int = 0
    lag: Sequence[LagFacts] = ()
    damage: Sequence[Damage] = ()
    lake: LakeFacts | None = None
    gates: Sequence[Gate] = ()
