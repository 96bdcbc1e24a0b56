"""Write to a store from Spark: `df.write.format("mqlake").mode("append").save(path)`, and streams.

A store has one writer, but rows come from many tasks. So each task packs its rows, except for what only the log knows,
and stages them in the store's folder. The commit runs in a process next to the driver: it opens the store and appends
the staged records, which is a copy in the kernel. No row passes through the driver.

A stream's batch is written exactly once (`ingest/batches.py`). It is identified by the query's id, which its checkpoint
keeps, and by the batch number. A batch write is also written once if the option jobId names it: its rows are added up,
so that other rows under the same name are an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from mqlake.files.layout import Layout
from mqlake.ingest.batches import Fence, commit_parts
from mqlake.ingest.pack import Packer
from mqlake.ingest.staging import Part, Staging
from mqlake.spark.jobs.tasks import settle
from mqlake.spark.sink_options import Target

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's message to the commit."""

    part: Part
    fence: Fence | None


class MqlakeWriter(DataSourceArrowWriter):
    """One batch write. All tasks and the commit share this object."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._target, iterator, self._target.fence)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._target, messages, self._target.fence)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._target, messages, self._target.fence)


class MqlakeStreamWriter(DataSourceStreamArrowWriter):
    """The batches of a stream. Tasks learn from Spark which batch they are in, and pass it on to the commit."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "only called in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None and batch is not None, "a task of a stream knows its query and its batch"
        return stage(self._target, iterator, Fence(query, int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        fences = {staged.fence for staged in _staged(messages)}
        for fence in fences:  # one, or none if the batch had no task
            assert fence is not None and fence.batch == batchId, f"{fence} staged for batch {batchId}"
            commit(self._target, messages, fence)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for fence in {staged.fence for staged in _staged(messages)}:
            abort(self._target, messages, fence)


def stage(target: Target, batches: Iterator[pa.RecordBatch], fence: Fence | None) -> Staged:
    """Pack the rows of a task into a staging file of its own. Runs in a worker."""
    settle()
    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    packer = Packer(
        target.config.commit_log,
        f"partition {number}",
        refuses=target.refuses,
        queue_count=target.queue_count,
        adds_up=target.fence is not None,
    )
    rows = _with_topic(batches, target.topic) if target.topic is not None else batches
    part = _staging(target, fence).write(number, rows, packer, durable=fence is not None)
    return Staged(part, fence)


def commit(target: Target, messages: Messages, fence: Fence | None) -> None:
    """Append what the tasks staged to the log. Runs in a process next to the driver."""
    parts = [staged.part for staged in _staged(messages)]
    commit_parts(target.path, target.config, _staging(target, fence), parts, fence, target.lock_timeout_s)


def abort(target: Target, messages: Messages, fence: Fence | None) -> None:
    """Drop this attempt, unless the commit has already decided on it: then its files stay for a replay."""
    _staging(target, fence).drop([staged.part for staged in _staged(messages)])


def _staging(target: Target, fence: Fence | None) -> Staging:
    return Staging(Layout(target.path), fence.job if fence is not None else target.run)


def _staged(messages: Messages) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _with_topic(batches: Iterator[pa.RecordBatch], topic: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        yield batch.append_column("topic", pa.repeat(pa.scalar(topic), batch.num_rows))
