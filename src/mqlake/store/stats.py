"""Counters and positions of a store, as `MessageStore.stats` gives them."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqlake.files.mapped_file import mapped
from mqlake.kernel import KERNEL
from mqlake.runtime.workers import WorkerHealth
from mqlake.store.recovery import Recovery
from mqlake.store.replicas import SlaveState
from mqlake.store.retention import RetentionStats
from mqlake.store.sealing import SealStats


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """What was put to one topic since the store was opened."""

    put_count: int
    put_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """A store at one moment. Offsets count bytes of the commit log."""

    first_offset: int
    appended_end: int
    """Where the log ends; with the transient pool, part of it is in memory only."""
    committed_end: int
    durable_end: int
    dispatched_end: int
    replicated_end: int | None = None
    """What enough slaves have confirmed; None unless the store serves slaves."""
    slaves: tuple[SlaveState, ...] = ()
    """The attached slaves; for a follower, as the writer last reported them."""
    file_size_bytes: int
    log_file_count: int
    index_file_count: int
    topic_count: int
    retention: RetentionStats
    seals: SealStats = field(default_factory=SealStats)
    """How much of the log is sealed, and what scrubbing found."""
    sync_count: int = 0
    dispatched_count: int = 0
    """Records dispatched since the store was opened."""
    failure: str | None = None
    """Why the store takes no more messages, or no longer dispatches; None while all is well."""
    workers: tuple[WorkerHealth, ...] = ()
    """The state of every background worker; for a follower, as the writer last reported it."""
    damage: tuple[tuple[int, int], ...] = ()
    """Ranges of the log found so far that hold no whole record, or a rejected one."""
    scar_count: int = 0
    """How many of them hold no whole record."""
    damaged_entry_count: int = 0
    """Queue entries found so far that do not name the record with their queue offset."""
    recovery: Recovery | None = None
    """What the writer's recovery found and did."""
    topics: dict[str, TopicStats] = field(default_factory=dict)
    mapped_file_count: int = field(default_factory=lambda: mapped.files)
    mapped_bytes: int = field(default_factory=lambda: mapped.bytes)
    kernel: str = KERNEL

    @property
    def dispatch_lag_bytes(self) -> int:
        return self.committed_end - self.dispatched_end
