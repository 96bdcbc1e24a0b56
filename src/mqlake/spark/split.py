"""A split: exactly what one task reads. The plan makes it in a process next to the driver and sends it to a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

try:
    from pyspark.sql.datasource import InputPartition
except ImportError:  # a split is also read in this process, without Spark
    InputPartition = object  # type: ignore[misc, assignment]


class QueueRun(NamedTuple):
    """The entries [first, stop) of one consume queue."""

    topic: str
    queue_id: int
    first: int
    stop: int


@dataclass(frozen=True, repr=False)
class Split(InputPartition):
    """Messages in [start, end) of one store's log: all of them, or those that queue entries or index hits point at."""

    store: str
    """The store's folder; also the value of the column `store`."""
    file_size: int
    queue_file_size: int
    start: int
    end: int
    readable: int
    """The end of the log when the read was planned."""
    topics: tuple[str, ...] | None = None
    """The selected topics; None for all."""
    runs: tuple[QueueRun, ...] | None = None
    """Queue entries that point at the messages."""
    offsets: bytes | None = None
    """Physical offsets of the messages, int64, ascending."""

    lake: str | None = None
    """The lake to read from if the log no longer has the rows."""
    archived: bool = False
    """Read from the lake only, not from the log."""

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


@dataclass(frozen=True)
class RemoteSplit(InputPartition):
    """The messages [first, stop) of one queue, read from a broker."""

    endpoint: str
    """The broker's name server; also the value of the column `store`."""
    topic: str
    broker_name: str
    queue_id: int
    first: int
    stop: int
