"""The façade: open, put, read, find, close. It names the stages and does none of their work.

put    -> logs/commit_log.py  append      -> store/flush.py     wait_until_durable
       -> store/dispatch.py   step        -> logs/consume_queue.py, logs/key_index.py
read   -> store/read.py
open   -> store/opening.py, store/recovery.py
retain -> store/retention.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mqlake.config import (
    CommitLogConfig,
    ConsumeQueueConfig,
    DeliveryConfig,
    FlushConfig,
    IndexConfig,
    MemoryConfig,
    PoolConfig,
    RetentionConfig,
    StoreConfig,
    TimerConfig,
    TransactionConfig,
)
from mqlake.errors import InvalidConfig, InvalidMessage, OffsetOutOfRange, ReadOnlyStore, StoreClosed, UnknownTopic
from mqlake.kernel.types import Readable
from mqlake.logs.matching import match_packed
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.store.engine import Engine
from mqlake.store.follower import Follower
from mqlake.store.gates import Gates
from mqlake.store.opening import find_store, refusal, resolve
from mqlake.store.read import END_OF_TIME, MAX_READ_BYTES, QueueRange
from mqlake.store.recovery import Progress, Recovery
from mqlake.store.retention import HOUR_MS, Retained, Retention, by_hand, would_go
from mqlake.store.stats import StoreStats

if TYPE_CHECKING:
    import pyarrow


class MessageStore:
    """A store on disk: one writer process, any number of readers. Several threads may call all of it.

    with MessageStore.open("data/store", flush=FlushConfig(sync=True)) as store:
        receipt = store.put(Message("orders", b'{"id": 17}', tags="created", keys=["17"]))
    """

    def __init__(self, engine: Engine | Follower) -> None:
        """Use `MessageStore.open`."""
        self._side = engine
        self._reader = engine.reader
        self._writer = engine if isinstance(engine, Engine) else None
        self.path = engine.layout.root
        self.config = engine.config
        self._closed = False
        if self._writer is not None:
            self._commit_log = self._writer.log
            self._flusher = self._writer.flusher
            self._dispatcher = self._writer.dispatcher
            self._unforced = Durability.MEMORY if self.config.pool.enabled else Durability.PAGE_CACHE
            self._usual = Durability.DISK if self.config.flush.sync else self._unforced

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        create: bool = True,
        config: StoreConfig | None = None,
        commit_log: CommitLogConfig | None = None,
        consume_queue: ConsumeQueueConfig | None = None,
        index: IndexConfig | None = None,
        flush: FlushConfig | None = None,
        pool: PoolConfig | None = None,
        memory: MemoryConfig | None = None,
        retention: RetentionConfig | None = None,
        delivery: DeliveryConfig | None = None,
        timer: TimerConfig | None = None,
        transactions: TransactionConfig | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Open a store, making it if there is none; recovery happens here, and tells `progress` how far it is.

        `config` holds all settings; the others replace one section of it. With `read_only`, another process may be
        writing: no lock is taken, nothing is written, and reads follow what it writes.
        """
        settings = config or StoreConfig()
        given = {
            "commit_log": commit_log,
            "consume_queue": consume_queue,
            "index": index,
            "flush": flush,
            "pool": pool,
            "memory": memory,
            "retention": retention,
            "delivery": delivery,
            "timer": timer,
            "transactions": transactions,
        }
        settings = replace(settings, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        try:
            layout = find_store(path, read_only=read_only, create=create)
            settings = resolve(layout, settings)
            return cls((Follower if read_only else Engine)(layout, settings, progress))
        except OSError as error:
            raise refusal(Path(path), error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- writing

    def put(self, message: Message, *, durability: Durability | None = None) -> PutReceipt:
        """Append one message; return when it is as safe as asked, or as the flush mode promises."""
        if self._writer is None:
            raise ReadOnlyStore(self.path)
        wanted = self._usual if durability is None else self._level(durability)
        receipt = self._commit_log.append(message, wanted)  # logs/commit_log.py
        if wanted > self._unforced:
            self._reach(receipt.end, wanted)  # store/flush.py
        if self._dispatcher.idle:
            self._dispatcher.wake()  # dispatch follows on its own thread
        return receipt

    def put_many(self, messages: Sequence[Message], *, durability: Durability | None = None) -> list[PutReceipt]:
        """Append a batch: all of it, next to one another, or none of it; one wait for all."""
        if self._writer is None:
            raise ReadOnlyStore(self.path)
        if not messages:
            raise InvalidMessage("batch", "no messages", "at least one")
        wanted = self._usual if durability is None else self._level(durability)
        receipts = self._commit_log.append_many(messages, wanted)
        if wanted > self._unforced:
            self._reach(receipts[-1].end, wanted)
        if self._dispatcher.idle:
            self._dispatcher.wake()
        return receipts

    def put_as_it_is(self, message: Message, *, durability: Durability | None = None) -> PutReceipt:
        """`put` for those who load or copy: a message that names a delay stays where it says it is."""
        if self._writer is None:
            raise ReadOnlyStore(self.path)
        wanted = self._usual if durability is None else self._level(durability)
        receipt = self._commit_log.append_as_it_is(message, wanted)
        if wanted > self._unforced:
            self._reach(receipt.end, wanted)
        if self._dispatcher.idle:
            self._dispatcher.wake()
        return receipt

    def put_packed(self, packed: Readable, *, timestamp: int = 0, keep: int = 0) -> None:
        """Append records that `store/pack.py` packed, in their order; `flush` makes them durable.

        Half of them may be stored where it raises. `timestamp` is the store time of all, where it is not before the
        last; `keep` lets them keep numbers or times of their own (`kernel.types`).
        """
        if self._writer is None:
            raise ReadOnlyStore(self.path)
        self._require_open()
        self._commit_log.append_packed(packed, timestamp=timestamp, keep=keep)
        self._dispatcher.wake()

    async def put_async(self, message: Message, *, durability: Durability | None = None) -> PutReceipt:
        """`put` for asyncio programs: the event loop goes on while the disk works."""
        import asyncio  # a fifth of the time of `import mqlake`, for those who need it

        if self._writer is None:
            raise ReadOnlyStore(self.path)
        wanted = self._usual if durability is None else self._level(durability)
        receipt = self._commit_log.append(message, wanted)
        if wanted >= Durability.DISK:
            await self._flusher.when_durable(receipt.end, asyncio.get_running_loop())
        elif wanted > self._unforced:
            self._reach(receipt.end, wanted)
        if self._dispatcher.idle:
            self._dispatcher.wake()
        return receipt

    def _level(self, durability: Durability) -> Durability:
        if not isinstance(durability, Durability):
            raise InvalidConfig("durability", durability, f"must be one of {', '.join(map(str, Durability))}")
        if durability > Durability.DISK:
            raise InvalidConfig("durability", durability.name, "no replica is attached; use DISK or less")
        return max(durability, self._unforced)

    def _reach(self, end: int, wanted: Durability) -> None:
        if wanted >= Durability.DISK:
            self._flusher.wait_until_durable(end)
        else:
            self._commit_log.commit()

    def flush(self) -> None:
        """Return when all that was put so far is on the disk."""
        if self._writer is None:
            raise ReadOnlyStore(self.path)
        self._require_open()
        self._flusher.wait_until_durable(self._commit_log.end)

    # ---- reading

    def read(
        self,
        topic: str,
        *,
        queue_id: int = 0,
        start: int = 0,
        limit: int = 32,
        max_bytes: int = MAX_READ_BYTES,
        wait_s: float = 0.0,
    ) -> list[StoredMessage]:
        """At most `limit` messages of a queue from offset `start` on; what this process put before is among them.

        At the queue's end the list is empty; with `wait_s` it waits that long for a message to come. Outside of the
        queue's range it raises OffsetOutOfRange, which names both ends.
        """
        self._require_open()
        self._side.follow()
        try:
            messages = self._reader.read(topic, queue_id, start, limit, max_bytes)
        except (UnknownTopic, OffsetOutOfRange):
            if not self._side.settle():
                raise
            messages = self._reader.read(topic, queue_id, start, limit, max_bytes)
        if not messages and self._side.settle():
            messages = self._reader.read(topic, queue_id, start, limit, max_bytes)
        if not messages and wait_s > 0 and self._side.wait_for_message(topic, queue_id, start, wait_s):
            messages = self._reader.read(topic, queue_id, start, limit, max_bytes)
        return messages

    def get(self, at: int | str) -> StoredMessage:
        """The message at a physical offset (a number) or with a message id (a text)."""
        self._require_open()
        self._side.follow()
        return self._reader.get(at)

    def find(
        self, topic: str, key: str, *, limit: int = 64, begin_ms: int = 0, end_ms: int = END_OF_TIME, tag: bool = False
    ) -> list[StoredMessage]:
        """The newest `limit` messages with a key, in the order of the log; with `tag`, those with that tag."""
        self._require_open()
        self._side.settle()
        return self._reader.find(topic, key, limit, begin_ms, end_ms, tag=tag)

    def seek_time(self, topic: str, timestamp_ms: int, *, queue_id: int = 0) -> int:
        """The offset of the first message of a queue stored at or after a time; the queue's end where none was."""
        self._require_open()
        self._side.settle()
        return self._reader.seek_time(topic, queue_id, timestamp_ms)

    def scan(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        topics: Collection[str] | None = None,
        batch_bytes: int = 4 << 20,
        decompress: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """The log, or the byte range [start, end) of it, as Arrow record batches; `start` must be a record's offset.

        Damage is passed over, and listed in `stats().damage`.
        """
        from mqlake.store.scan import record_batches

        self._require_open()
        self._side.settle()
        first, stop = self._side.scan_range(start, end)
        return record_batches(
            self._side.log.stretches(first, stop),
            columns=columns,
            topics=topics,
            batch_bytes=batch_bytes,
            decompress=decompress,
            on_damage="skip",
            on_scar=lambda scar, behind, reason: behind == end or self._side.scars.add(scar, behind, reason),
            progress=progress,
        )

    def dump(
        self, settings: Mapping[str, str], *, walk: bool = False, keys: bool = False, tags: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Everything in the store, in the form of the golden dumps: see `store/dump.py`."""
        from mqlake.store.dump import dump_lines

        self._require_open()
        self._side.settle()
        return dump_lines(self._side, settings, walk=walk, keys=keys, tags=tags)

    def match_packed(self, start: int, timestamp: int, packed: Readable) -> tuple[int, int]:
        """How many bytes of packed records the log has from `start` on, stored at this time, and where they end."""
        self._require_open()
        return match_packed(self._side.log, start, self._side.readable_end(), timestamp, packed)

    def topics(self) -> list[str]:
        """The topics that have a queue."""
        self._require_open()
        self._side.settle()
        return self._reader.topics()

    def queues(self, topic: str) -> list[QueueRange]:
        """The queues of a topic with their first and end offsets."""
        self._require_open()
        self._side.settle()
        return self._reader.queues(topic)

    @property
    def first_offset(self) -> int:
        """Where the log begins."""
        self._require_open()
        return self._side.log.first_offset

    @property
    def end_offset(self) -> int:
        """Where the log ends for readers."""
        self._require_open()
        self._side.follow()
        return self._side.readable_end()

    @property
    def recovery(self) -> Recovery | None:
        """What opening found and did: this store's own, or for a reader that of its last writer."""
        return self._side.recovery

    def stats(self) -> StoreStats:
        """Counters and positions, as they are now."""
        self._require_open()
        self._side.follow()
        return self._side.stats()

    # ---- deleting

    @property
    def retention(self) -> Retention:
        """The cleaner, and the gates that hold it back."""
        self._require_open()
        if self._writer is None:
            raise ReadOnlyStore(self.path)
        return self._writer.retention

    def retain(
        self,
        *,
        older_than_ms: int | None = None,
        keep_bytes: int | None = None,
        before_offset: int | None = None,
        dry_run: bool = False,
    ) -> Retained:
        """Delete the oldest files of the log now, as far as every condition that is given lets them go.

        `older_than_ms`: their newest message is older; `keep_bytes`: so much of the log stays; `before_offset`: they
        end at or before it. Without a condition the age is `fileReservedTime`. The file that is written stays, and
        what a gate holds. With `dry_run`, which a reader may ask for too, nothing goes.
        """
        self._require_open()
        self._side.settle()
        if older_than_ms is keep_bytes is before_offset is None:
            older_than_ms = self.config.retention.reserved_hours * HOUR_MS
        conditions = {"older_than_ms": older_than_ms, "keep_bytes": keep_bytes, "before_offset": before_offset}
        for name, value in conditions.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidConfig(name, value, "must be a whole number, 0 or more")
        rule = by_hand(self._side.log, **conditions, now_ms=time.time_ns() // 1_000_000)
        if dry_run:
            gates = self.retention if self._writer is not None else Gates(self._side.layout.gates)
            return would_go(self._side.log, gates.offsets(), rule)
        return self.retention.retain(rule)

    def wait_dispatched(self, timeout_s: float = 10.0) -> bool:
        """Wait until all that was put and may be seen is in its queue and in the index; whether it was in time."""
        self._require_open()
        if self._writer is None:
            return True
        deadline = time.monotonic() + timeout_s
        return self._dispatcher.catch_up(self._dispatcher.visible_end(), deadline - time.monotonic(), patient=True)

    def close(self) -> None:
        """Sync, write the checkpoint, let go of the files. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._side.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(self.path)
