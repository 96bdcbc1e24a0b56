"""Append a batch of staged records exactly once, however often the caller asks and through any crash.

A batch is identified by its source (a streaming query, a job) and a number that rises. In the log, its records stand
between two messages on the topic MQLAKE_SINK: `begin`, which holds the byte of the staged records that follows, and
`end`.

    staged      the tasks' parts are on disk
    decided     the list of parts is on disk: from here on, parts that a replay stages are dropped
    begun       the begin marker, then the records, all with its store time
    ended       the end marker; then all of it is synced
    remembered  mqlake/sinks/SOURCE.json, for when retention deletes the markers; the staging is removed

A batch whose number is not above the last one that ended writes nothing. If its rows were added up (a job with an id),
the end marker and the memory hold the sum, and other rows under the same identity are an error. A batch that was begun
and not ended is resumed: the records after its last begin marker are compared with the staged ones in everything that
was packed, and the rest is appended after another begin marker. Other programs may have written in between; their
records have another store time. Only the store's writer does this, so only one process at a time.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from mqlake.config import RetentionConfig, StoreConfig
from mqlake.errors import BadFile, CorruptRecord, OtherRows, StoreLocked, UnfinishedBatch
from mqlake.files.layout import Layout
from mqlake.files.small_files import replace_file
from mqlake.ingest.staging import Part, Staging, clean_staging
from mqlake.logs.matching import match_packed
from mqlake.message import Message, PutReceipt, StoredMessage
from mqlake.store.job import WriterJob, open_job
from mqlake.store.read import MAX_READ_BYTES
from mqlake.store.writer import Writer

SINK_TOPIC = "MQLAKE_SINK"
BEGIN, END = "begin", "end"
LOCK_POLL_S = 0.05
DISPATCH_S = 3600.0
LEFT_OVER_S = 24 * 3600.0
"""Staged parts without a decision are removed after this long without a new one: no job takes a day between them."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The identity of a batch. The numbers of one source rise."""

    source: str
    batch: int

    @property
    def job(self) -> str:
        return f"{self.source}.{self.batch}"


class Content(NamedTuple):
    """What a batch consists of. The same rows have the same content, however tasks split them."""

    rows: int
    size: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.size} bytes with the checksum {self.checksum:016x}"


class Ended(NamedTuple):
    """The last batch of a source that is known to have ended."""

    batch: int = -1
    next_marker: int = 0
    """The queue offset after its end marker."""
    content: Content | None = None


def content_of(parts: Sequence[Part]) -> Content | None:
    """Return the content of parts. None if it was not added up, or if there is no part."""
    checksums = [part.checksum for part in parts if part.checksum is not None]
    if not checksums or len(checksums) < len(parts):
        return None
    return Content(sum(part.rows for part in parts), sum(part.size for part in parts), sum(checksums) % 2**64)


def commit_parts(
    path: Path,
    config: StoreConfig,
    staging: Staging,
    parts: Sequence[Part],
    fence: Fence | None,
    lock_wait_s: float,
) -> int:
    """Append what tasks staged to a store, durable and dispatched. Return the row count."""
    with open_when_free(path, config, lock_wait_s) as store:
        rows = Batch(store, staging, fence).write(parts) if fence is not None else append_parts(store, staging, parts)
        store.catch_up(store.ends.promised, DISPATCH_S, patient=True)
        layout = Layout(path)
        clean_staging(layout, LEFT_OVER_S, lambda source, batch: batch <= remembered(layout, source).batch)
    return rows


def open_when_free(path: Path, config: StoreConfig, wait_s: float) -> WriterJob:
    """Open a store for writing as soon as no other process has it open. Raises StoreLocked after `wait_s`.

    Retention is off: a program that appends a batch does not know how long messages must be kept.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return open_job(path, replace(config, retention=RetentionConfig(enabled=False)))
        except StoreLocked:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOCK_POLL_S)


def append_parts(store: Writer, staging: Staging, parts: Sequence[Part], keep: int = 0) -> int:
    """Append parts without a fence: exactly once unless it fails. `keep` is what records keep (`kernel.types`)."""
    ordered = sorted(parts, key=lambda part: part.number)
    for packed in staging.open(ordered):
        store.put_packed(packed, keep=keep)
    store.flush()
    staging.remove()
    return sum(part.rows for part in ordered)


def remembered(layout: Layout, source: str) -> Ended:
    """Return the last batch of a source that is known to have ended."""
    path = _memory(layout, source)
    try:
        memory = json.loads(path.read_bytes())
        content = Content(*memory["content"]) if "content" in memory else None
        return Ended(int(memory["batch"]), int(memory["marker"]) + 1, content)
    except FileNotFoundError:
        return Ended()
    except (ValueError, KeyError, TypeError):
        expected = "batch and marker as JSON; remove it, the log has the same information"
        raise BadFile(path, "no sink state", expected) from None


def _memory(layout: Layout, source: str) -> Path:
    return layout.sinks / f"{source}.json"


class Batch:
    """One batch of one source, in the store that it goes to."""

    def __init__(self, store: Writer, staging: Staging, fence: Fence) -> None:
        self._store = store
        self._staging = staging
        self._fence = fence
        self._layout = store.layout

    def write(self, parts: Sequence[Part]) -> int:
        """Append what is not in the log yet. Return the staged rows, or 0 if the batch had already ended.

        Raises OtherRows if the batch ended or was decided with other rows.
        """
        ended, begun = self._look()
        if self._fence.batch <= ended.batch:
            self._require_same(parts, ended.content if self._fence.batch == ended.batch else None, "wrote")
            self._staging.remove()
            return 0
        decided = self._staging.decided()
        self._require_same(parts, content_of(decided or ()), "was interrupted while it wrote")
        if decided is None and begun is not None:
            raise self._unfinished(begun, "its staged records are missing")
        if decided is None:
            if not any(part.size for part in parts):
                self._staging.remove()
                return 0
            decided = self._staging.decide(parts)
        self._complete(decided, begun)
        self._staging.remove()
        return sum(part.rows for part in decided)

    def _require_same(self, parts: Sequence[Part], before: Content | None, what: str) -> None:
        now = content_of(parts)
        if None not in (before, now) and before != now:
            raise OtherRows(self._layout.root, self._fence.source, what, str(before), str(now))

    def _look(self) -> tuple[Ended, StoredMessage | None]:
        """Return the last batch of this source that ended, and the last begin marker of this batch."""
        ended = remembered(self._layout, self._fence.source)
        begun = None
        for marker in self._markers(ended.next_marker):
            if marker.keys == [self._fence.source]:
                said = json.loads(marker.body)
                if marker.tags != END:
                    begun = marker if said["batch"] == self._fence.batch else begun
                elif said["batch"] > ended.batch:
                    content = Content(*said["content"]) if "content" in said else None
                    ended = Ended(said["batch"], marker.queue_offset + 1, content)
        return ended, begun

    def _markers(self, first: int) -> Iterator[StoredMessage]:
        self._store.settle()
        reader = self._store.reader
        if SINK_TOPIC not in reader.topics():
            return
        (queue,) = reader.queues(SINK_TOPIC)
        at = max(first, queue.first_offset)
        while at < queue.end_offset and (found := reader.read(SINK_TOPIC, 0, at, 1024, MAX_READ_BYTES)):
            yield from found
            at = found[-1].queue_offset + 1

    def _complete(self, parts: Sequence[Part], begun: StoredMessage | None) -> None:
        total = sum(part.size for part in parts)
        done = self._reached(parts, begun) if begun is not None else 0
        if done < total:
            marker = self._mark(BEGIN, done)
            self._each(parts, done, lambda packed: self._store.put_packed(packed, timestamp=marker.store_timestamp))
        content = content_of(parts)
        more = {"content": content} if content is not None else {}
        marker = self._mark(END, total, more)
        self._store.flush()
        memory = json.dumps({"batch": self._fence.batch, "marker": marker.queue_offset, **more}).encode()
        self._layout.sinks.mkdir(exist_ok=True)
        replace_file(_memory(self._layout, self._fence.source), memory, self._layout.scratch)

    def _mark(self, kind: str, at: int, more: Mapping[str, Content] | None = None) -> PutReceipt:
        """Put a marker. `at` is how many bytes of the staged records are in the log before it."""
        body = json.dumps({"batch": self._fence.batch, "at": at, **(more or {})}).encode()
        return self._store.put(Message(SINK_TOPIC, body, tags=kind, keys=[self._fence.source], queue_id=0))

    def _reached(self, parts: Sequence[Part], begun: StoredMessage) -> int:
        """Return how many bytes of the staged records are in the log."""
        done = int(json.loads(begun.body)["at"])
        place = begun.physical_offset + begun.size
        whole = True

        def compare(packed: memoryview) -> None:
            nonlocal done, place, whole
            if whole:
                end = self._store.ends.visible
                size, place = match_packed(self._store.log, place, end, begun.store_timestamp, packed)
                done += size
                whole = size == len(packed)

        try:
            self._each(parts, done, compare)
        except CorruptRecord as error:
            raise self._unfinished(begun, f"the log after it is damaged ({error})") from error
        return done

    def _each(self, parts: Sequence[Part], done: int, use: Callable[[memoryview], None]) -> None:
        """Call `use` with the staged records from byte `done` on, part by part."""
        starts = itertools.accumulate((part.size for part in parts), initial=0)
        for part, start in zip(parts, starts, strict=False):
            for packed in self._staging.open([part] if start + part.size > done else []):
                with memoryview(packed) as view, view[max(done - start, 0) :] as rest:
                    use(rest)

    def _unfinished(self, begun: StoredMessage, found: str) -> UnfinishedBatch:
        fence = self._fence
        return UnfinishedBatch(self._layout.root, fence.source, fence.batch, begun.physical_offset, found)
