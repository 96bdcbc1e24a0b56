"""A batch of staged records goes into the log once, however often it is asked for, through any crash.

A batch is known by its source (a streaming query, a job) and a number that rises. Around its records the log has two
messages on the topic MQLAKE_SINK: `begin`, which says from which byte of the staged records on they follow, and `end`.

    staged      the tasks' parts are on the disk
    decided     which parts they are is on the disk: a replay's own are dropped from here on
    begun       begin marker, then the records, all with its store time
    ended       end marker; then all of it is synced
    remembered  mqlake/sinks/SOURCE.json, for the time when retention deletes the markers; the staging goes

A batch at or below the last that ended writes nothing. One that was begun and not ended goes on: the log behind its
last begin marker is compared with what was staged, in all that was packed, and the rest is appended behind another
begin marker. Others may have written in between: their records have another store time. One process does this at a
time, because it is the store's writer.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqlake.config import RetentionConfig, StoreConfig
from mqlake.errors import BadFile, CorruptRecord, StoreLocked, UnfinishedBatch
from mqlake.files.layout import Layout
from mqlake.files.small_files import replace_file
from mqlake.message import Message, PutReceipt, StoredMessage
from mqlake.store.message_store import MessageStore
from mqlake.store.staging import Part, Staging, clean_staging

SINK_TOPIC = "MQLAKE_SINK"
BEGIN, END = "begin", "end"
LOCK_POLL_S = 0.05
DISPATCH_S = 3600.0
LEFT_OVER_S = 24 * 3600.0
"""Staged parts without a decision are left over when nothing came for so long: no job takes a day between them."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Which batch this is: numbers of one source rise."""

    source: str
    batch: int

    @property
    def job(self) -> str:
        return f"{self.source}.{self.batch}"


def commit_parts(
    path: Path,
    config: StoreConfig,
    staging: Staging,
    parts: Sequence[Part],
    fence: Fence | None,
    lock_wait_s: float,
) -> int:
    """Bring what tasks staged into a store, durable and dispatched; how many rows that were."""
    with open_when_free(path, config, lock_wait_s) as store:
        rows = Batch(store, staging, fence).write(parts) if fence is not None else append_parts(store, staging, parts)
        store.wait_dispatched(DISPATCH_S)
        layout = Layout(path)
        clean_staging(layout, LEFT_OVER_S, lambda source, batch: batch <= remembered(layout, source)[0])
    return rows


def open_when_free(path: Path, config: StoreConfig, wait_s: float) -> MessageStore:
    """The store, for writing, as soon as no other process has it; StoreLocked, which names that, after `wait_s`.

    Nothing is deleted by age here: who appends a batch does not know how long messages are to be kept.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return MessageStore.open(path, config=config, retention=RetentionConfig(enabled=False))
        except StoreLocked:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOCK_POLL_S)


def append_parts(store: MessageStore, staging: Staging, parts: Sequence[Part], keep: int = 0) -> int:
    """Without a fence: once, unless it fails. `keep`: what records keep of their own (`kernel.types`)."""
    ordered = sorted(parts, key=lambda part: part.number)
    for packed in staging.open(ordered):
        store.put_packed(packed, keep=keep)
    store.flush()
    staging.remove()
    return sum(part.rows for part in ordered)


def remembered(layout: Layout, source: str) -> tuple[int, int]:
    """The last batch of a source that is known to have ended, and the number of the marker behind its end."""
    path = _memory(layout, source)
    try:
        memory = json.loads(path.read_bytes())
        return int(memory["batch"]), int(memory["marker"]) + 1
    except FileNotFoundError:
        return -1, 0
    except (ValueError, KeyError, TypeError):
        raise BadFile(path, "no memory of a sink", "batch and marker, as JSON; remove it: the log knows") from None


def _memory(layout: Layout, source: str) -> Path:
    return layout.sinks / f"{source}.json"


class Batch:
    """One batch of one source, in the store that it goes to."""

    def __init__(self, store: MessageStore, staging: Staging, fence: Fence) -> None:
        self._store = store
        self._staging = staging
        self._fence = fence
        self._layout = Layout(store.path)

    def write(self, parts: Sequence[Part]) -> int:
        """Append what is not in the log yet; how many rows were staged, 0 where the batch had ended before."""
        ended, begun = self._look()
        if self._fence.batch <= ended:
            self._staging.remove()
            return 0
        decided = self._staging.decided()
        if decided is None and begun is not None:
            raise self._unfinished(begun, "its staged records are gone")
        if decided is None:
            if not any(part.size for part in parts):
                self._staging.remove()
                return 0
            decided = self._staging.decide(parts)
        self._complete(decided, begun)
        self._staging.remove()
        return sum(part.rows for part in decided)

    def _look(self) -> tuple[int, StoredMessage | None]:
        """The last batch of this source that ended, and the last begin of this one."""
        ended, first = remembered(self._layout, self._fence.source)
        begun = None
        for marker in self._markers(first):
            if marker.keys == [self._fence.source]:
                number = json.loads(marker.body)["batch"]
                if marker.tags == END:
                    ended = max(ended, number)
                elif number == self._fence.batch:
                    begun = marker
        return ended, begun

    def _markers(self, first: int) -> Iterator[StoredMessage]:
        if SINK_TOPIC not in self._store.topics():
            return
        (queue,) = self._store.queues(SINK_TOPIC)
        at = max(first, queue.first_offset)
        while at < queue.end_offset and (found := self._store.read(SINK_TOPIC, start=at, limit=1024)):
            yield from found
            at = found[-1].queue_offset + 1

    def _complete(self, parts: Sequence[Part], begun: StoredMessage | None) -> None:
        total = sum(part.size for part in parts)
        done = self._reached(parts, begun) if begun is not None else 0
        if done < total:
            marker = self._mark(BEGIN, done)
            self._each(parts, done, lambda packed: self._store.put_packed(packed, timestamp=marker.store_timestamp))
        marker = self._mark(END, total)
        self._store.flush()
        content = json.dumps({"batch": self._fence.batch, "marker": marker.queue_offset}).encode()
        self._layout.sinks.mkdir(exist_ok=True)
        replace_file(_memory(self._layout, self._fence.source), content, self._layout.scratch)

    def _mark(self, kind: str, at: int) -> PutReceipt:
        """A marker; `at` is how many bytes of the staged records the log has before it."""
        body = json.dumps({"batch": self._fence.batch, "at": at}).encode()
        return self._store.put(Message(SINK_TOPIC, body, tags=kind, keys=[self._fence.source], queue_id=0))

    def _reached(self, parts: Sequence[Part], begun: StoredMessage) -> int:
        """How many bytes of the staged records are in the log."""
        done = int(json.loads(begun.body)["at"])
        place = begun.physical_offset + begun.size
        whole = True

        def compare(packed: memoryview) -> None:
            nonlocal done, place, whole
            if whole:
                size, place = self._store.match_packed(place, begun.store_timestamp, packed)
                done += size
                whole = size == len(packed)

        try:
            self._each(parts, done, compare)
        except CorruptRecord as error:
            raise self._unfinished(begun, f"the log behind it is damaged ({error})") from error
        return done

    def _each(self, parts: Sequence[Part], done: int, use: Callable[[memoryview], None]) -> None:
        """The staged records from byte `done` on, part by part."""
        starts = itertools.accumulate((part.size for part in parts), initial=0)
        for part, start in zip(parts, starts, strict=False):
            for packed in self._staging.open([part] if start + part.size > done else []):
                with memoryview(packed) as view, view[max(done - start, 0) :] as rest:
                    use(rest)

    def _unfinished(self, begun: StoredMessage, found: str) -> UnfinishedBatch:
        fence = self._fence
        return UnfinishedBatch(self._store.path, fence.source, fence.batch, begun.physical_offset, found)
