"""The data of a report: plain values, so that any source can fill it and rendering needs nothing else.

Times are milliseconds since 1970, sizes are bytes, ranges are half-open. An empty list means nothing to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class StoreFacts(NamedTuple):
    """A store, and the part of its log that the figures cover."""

    path: str
    log_start: int
    log_end: int
    counted_start: int
    counted_end: int


class Step(NamedTuple):
    """The messages of one time step."""

    time_ms: int
    messages: int
    bytes: int


class TopicFacts(NamedTuple):
    name: str
    messages: int
    bytes: int
    mean_latency_ms: float
    distinct_keys: int | None
    """An estimate. None if the messages have no keys."""
    tag_count: int = 0
    more_tags: bool = False
    """There are more tags than `tag_count`, which were not told apart."""
    retries: int = 0
    """Copies of its messages in the retry topics of groups."""
    dead_letters: int = 0
    trend: Sequence[int] = ()
    """Messages in steps of equal length, the same for all topics."""


class Bucket(NamedTuple):
    """The count of values in [low, high)."""

    low: int
    high: int
    messages: int


class TopKey(NamedTuple):
    """A frequent key, with bounds on how often it occurs."""

    topic: str
    key: str
    at_least: int
    at_most: int


class LagFacts(NamedTuple):
    """How far a group lags in a topic, summed over its queues."""

    store: str
    group: str
    topic: str
    queue_count: int
    messages: int
    waiting_since_ms: int | None


class WorkerFacts(NamedTuple):
    """A worker of a store's writer that does not do its work: it has failed, or retries."""

    store: str
    name: str
    state: str
    error: str
    since_ms: int


class Damage(NamedTuple):
    """Bytes of a log that are not a whole record."""

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
    """The archived part of one store's log."""

    name: str
    start: int
    end: int


class Run(NamedTuple):
    """The pipeline's last run, from its notes."""

    state: str
    started_ms: int
    at_ms: int
    """When the run last wrote its notes."""
    batches: int
    last_error: str | None


class Stage(NamedTuple):
    """A stage of the pipeline: what it did in that run, and its position in the lake."""

    name: str
    messages: int
    bytes: int
    rows_per_s: float | None
    """Per worker, in the last batch."""
    position: str
    lag_bytes: int
    at_ms: int | None
    last_error: str | None


class FindingFacts(NamedTuple):
    """A broken promise that the pipeline's check found."""

    store: str
    severity: str
    promise: str
    place: str
    found: str
    cost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """What the pipeline's check found in the bytes it read, as they were at that time."""

    bytes: int
    counts: Mapping[str, int]
    """The count of findings by severity, worst first."""
    worst: Sequence[FindingFacts] = ()
    """As many as a page can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFacts:
    path: str
    version: int
    committed_ms: int | None
    tables: Sequence[LakeTable] = ()
    stores: Sequence[LakeStore] = ()
    run: Run | None = None
    """None if no pipeline ran."""
    stages: Sequence[Stage] = ()
    check: CheckFacts | None = None
    """None if nothing was checked: `archive` alone does not check."""


class Gate(NamedTuple):
    """A gate: its holder still needs the log from `offset` on."""

    store: str
    name: str
    offset: int
    log_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything on one page."""

    title: str
    made_ms: int
    stores: Sequence[StoreFacts] = ()
    messages: int = 0
    bytes: int = 0
    body_bytes: int = 0
    internal_messages: int = 0
    """Messages of RocketMQ's own topics, half and rolled-back messages. No other figure counts them."""
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
    workers: Sequence[WorkerFacts] = ()
    lake: LakeFacts | None = None
    gates: Sequence[Gate] = ()
