"""The unit of work: what one task reads. Made by the plan beside the driver, sent to a worker, exact and complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition


class QueueRun(NamedTuple):
    """The entries [first, stop) of one consume queue."""

    topic: str
    queue_id: int
    first: int
    stop: int


@dataclass(frozen=True, repr=False)
class Split(InputPartition):
    """Messages in [start, end) of one store's log: all of them, or those that queue entries or the index name."""

    store: str
    """The store's folder; also what the column `store` says."""
    file_size: int
    queue_file_size: int
    start: int
    end: int
    readable: int
    """Where the log ended when the read was planned."""
    topics: tuple[str, ...] | None = None
    """The topics that are let through; None for all."""
    runs: tuple[QueueRun, ...] | None = None
    """Entries that point at the messages."""
    offsets: bytes | None = None
    """Physical offsets of the messages, int64, rising."""

    lake: str | None = None
    """Where rows are that the log no longer has."""
    archived: bool = False
    """They are there already: the log is not looked at."""

    def __repr__(self) -> str:
        how = (
            "lake"
            if self.archived
            else "queue"
            if self.runs is not None
            else "index"
            if self.offsets is not None
            else "scan"
        )
        return f"{how} of {self.store} [{self.start}, {self.end})"
