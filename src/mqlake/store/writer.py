"""The one process that appends to a store: puts the stages together and takes them apart again.

Opening takes the lock, recovers, and starts the workers in the order in which they depend on each other; closing stops
them in the reverse order. In between the stages do the work: `logs/log_writer.py` appends, `store/flush.py` syncs,
`store/dispatch.py` derives queues and index, `store/checkpoint.py` says what is on disk, `store/retention.py` deletes.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqlake.config import Role, StoreConfig
from mqlake.errors import DispatchFailed, InvalidConfig, InvalidMessage, StoreClosed, StoreError
from mqlake.files.layout import Layout
from mqlake.files.lock import StoreLock
from mqlake.files.mapped_file import sync_directory, sync_file
from mqlake.files.pool import TransientPool
from mqlake.files.positions import APPENDED, DELETIONS, DISPATCHED, NEXT_CLEANING, Positions
from mqlake.files.preallocation import Preallocator
from mqlake.files.small_files import remove_folder, replace_file
from mqlake.kernel import Ends
from mqlake.kernel import types as kernel
from mqlake.kernel.types import Readable
from mqlake.logs.consume_queues import BatchQueues
from mqlake.logs.file_times import keep_times
from mqlake.logs.log_writer import LogWriter
from mqlake.logs.replica_log import ReplicaLog
from mqlake.logs.seals import Seals
from mqlake.logs.topic_table import TopicTable
from mqlake.message import Durability, Message, PutReceipt, StoredMessage
from mqlake.runtime.locks import make_lock
from mqlake.runtime.shield import Shield
from mqlake.runtime.workers import Workers
from mqlake.store.checkpoint import (
    Checkpoint,
    Checkpointer,
    IndexMark,
    rocketmq_content,
    rocketmq_digest,
    write_checkpoint,
)
from mqlake.store.contents import Contents
from mqlake.store.derived import restore, settle_rebuilt
from mqlake.store.flush import Committer, Flusher
from mqlake.store.health import Health, publish_health, withdraw_health
from mqlake.store.lineage import is_ours
from mqlake.store.opening import INDEXED_FROM, find_store, keep_notes, mend_last_file, read_notes, refusal, resolve
from mqlake.store.recovery import LogEnd, Progress, Recovery, Reporter, Trust, abort_content
from mqlake.store.replicas import Replicas
from mqlake.store.retention import Retention, retention_stats
from mqlake.store.sealing import Sealer
from mqlake.store.stats import StoreStats, TopicStats

if TYPE_CHECKING:
    import asyncio

    from mqlake.store.awaiting import LoopArrivals, QueueArrivals

CLOSE_DISPATCH_S: Final = 30.0
SETTLE_S: Final = 5.0
TIMES_S: Final = 2.0
"""How long one checkpoint may note times in closed files; the next one continues."""
FAILED_DISPATCH: Final = "failed dispatch"
CLOSED: Final = "closed"
_log = logging.getLogger(__name__)


def open_writer(
    path: str | os.PathLike[str], config: StoreConfig, *, create: bool = True, progress: Progress | None = None
) -> Writer:
    """Open a store for writing, creating it if there is none. Without the delivery layer: no delayed message moves."""
    try:
        layout = find_store(path, read_only=False, create=create)
        return Writer(layout, resolve(layout, config), progress)
    except OSError as error:
        raise refusal(Path(path), error) from error


class Writer(Contents):
    """Offers both ports of `store/ports.py`. Any thread may call it."""

    log: LogWriter

    def __init__(self, layout: Layout, config: StoreConfig, progress: Progress | None = None) -> None:
        with ExitStack() as undo:
            self._lock = StoreLock(layout.lock)
            undo.callback(self._lock.release)
            for directory in (layout.commit_log, layout.consume_queues, layout.index, layout.config):
                directory.mkdir(exist_ok=True)
            self._lock.guard(layout.commit_log)
            layout.own.mkdir(exist_ok=True)
            remove_folder(layout.scratch)  # what a crash left half made
            mend_last_file(layout, config)
            super().__init__(layout, config, writable=True)
            undo.callback(self._let_go)
            self._health_lock = make_lock("health")
            self._index_lacks_keys = False
            self.workers = Workers(self.tell_health)
            undo.callback(self.workers.stop)
            self._recover(Reporter(progress), undo)
            keep_notes(layout, config, indexed_from=self._indexed_from)
            self._mark_running()
            self._start()
            undo.pop_all()

    # ---- opening

    def _recover(self, reporter: Reporter, undo: ExitStack) -> None:
        trust, end = self._judge(reporter)
        self._open_seals(trust, end)
        cut_bytes = self.log_files.truncate_to(end.offset) if self.log_files.starts and not trust.untouched else 0
        cut_queue_count = restore(trust, self.queues, self.index, self.layout.set_aside, self.log_files.first_offset)
        self.positions = Positions.create(self.layout.positions)
        self._open_log(trust, end, undo)
        self._make_reader()
        self._indexed_from = self._foreign_end(trust)
        self.dispatcher = self._dispatch(trust.offset, end.offset, reporter)
        self.deleted_topics.mend()
        for topic in self.deleted_topics.ends:  # a crash came while one was deleted
            if not any(self.queues.end_of(topic, queue_id) for queue_id in self.queues.queue_ids(topic)):
                self.queues.remove(topic, self.layout.scratch / "deleted")
        if trust.rebuilds:
            cut_queue_count += settle_rebuilt(trust, self.queues, end.offset)
        self.queues.log_end = end.offset
        self._last = end.last_record, end.last_timestamp
        self._begin_checkpoints(trust)
        self.recovery = Recovery(
            reason=trust.reason,
            trusted=trust.offset,
            end=end.offset,
            walked_count=end.record_count,
            dispatched_count=self.dispatcher.record_count,
            cut_bytes=cut_bytes,
            scars=end.scars,
            cut_queue_count=cut_queue_count,
            index_rebuilt=trust.rebuilds and self.index is not None,
            took_ms=reporter.took_ms,
        )
        self._tell_recovery()

    def _foreign_end(self, trust: Trust) -> int:
        """Return where the keys end that RocketMQ entered into the index. Its 4.9 enters no tags."""
        if trust.reason == "clean stop":
            return max(trust.offset, self.index.end_offset + 1 if self.index is not None else 0)
        return read_notes(self.layout).get(INDEXED_FROM, 0) if trust.reason == "checkpoint" else 0

    def _open_seals(self, trust: Trust, end: LogEnd) -> None:
        """Drop the seals that are not of this log, and of what will be cut off, before anything is appended there."""
        file_at = self.log_files.file_at
        self.seals = Seals(self.layout, self.log_files.file_size, writable=True)
        fitting = self.seals.fitting_end(file_at, is_same_log=is_ours(self.layout, trust.checkpoint, file_at))
        self._sealed_end = min(fitting, end.offset)
        self.seals.cut(self._sealed_end)

    def _open_log(self, trust: Trust, end: LogEnd, undo: ExitStack) -> None:
        """Make the ends, and the log that moves them. Nothing is appended before the store is open."""
        config = self.config
        self._pool = None
        is_slave = config.replication.role is Role.SLAVE
        if config.pool.enabled and not is_slave:
            self._pool = TransientPool(config.pool.buffer_count, self.log_files.file_size)
        self.ends = Ends(
            end.offset,
            min(trust.watermark, end.offset) if trust.watermark >= 0 else self.log_files.first_offset,
            kernel.DURABLE if config.flush.sync else kernel.COMMITTED,
            self._pool is not None,
            self.positions.words[APPENDED : DISPATCHED + 1],
        )
        undo.callback(self.ends.unpublish)
        self.replicas = Replicas(self.layout.root, self.ends, config.replication)
        self._preallocator = Preallocator(
            self.layout.spare,
            self.log_files.file_size,
            self.workers,
            warm=config.memory.warm_files,
            lock=config.memory.lock_files,
        )
        self.shield = Shield("roll", self.workers)
        foreign_topics = frozenset(BatchQueues(self.layout.batch_queues, 0, 0).topics())
        self.topics = TopicTable(self.queue_count, self.queues.end_of, foreign_topics)
        log_type = ReplicaLog if is_slave else LogWriter
        self.log = log_type(
            self.log_files,
            config.commit_log,
            self.ends,
            self.topics,
            self._preallocator,
            self.shield,
            last_timestamp=end.last_timestamp,
            pool=self._pool,
            pool_fails_fast=config.pool.fail_fast,
            unlock_full_files=config.memory.lock_files,
        )
        undo.callback(self.log.close)
        self._append = self.log.append_quickly

    def _begin_checkpoints(self, trust: Trust) -> None:
        """Leave a checkpoint that is true while this writer runs, or none: the distrusted must not seem to hold."""
        self._checkpoint_is_due = trust.reason not in ("checkpoint", "new") or self.dispatcher.record_count > 0
        generation = self.positions.generation
        if trust.reason == "checkpoint" and trust.checkpoint is not None:
            self._keep(replace(trust.checkpoint, clean=False, generation=generation))
        elif trust.reason == "new":
            self._keep(replace(self._moment(), generation=generation, rocketmq=(rocketmq_digest(self.layout),)))
        elif self.layout.own_checkpoint.exists():
            self.layout.own_checkpoint.unlink()
            sync_directory(self.layout.own)

    def _keep(self, checkpoint: Checkpoint) -> None:
        try:
            write_checkpoint(self.layout, checkpoint)
        except OSError as error:
            _log.warning("no checkpoint: %s", error)

    def _tell_recovery(self) -> None:
        found = self.recovery
        notable = found.took_ms > 1000 or found.cut_bytes or found.scars or found.reason == "rebuild"
        _log.log(logging.INFO if notable else logging.DEBUG, "recovered: %s", found)
        try:
            found.save(self.layout.last_recovery)
        except OSError as error:
            _log.warning("the result of recovery could not be saved: %s", error)

    def _mark_running(self) -> None:
        """From here on an end without `close` is an unclean one: RocketMQ's mark for it."""
        self.layout.abort.write_text(abort_content(self.positions.generation))
        sync_file(self.layout.abort)
        sync_directory(self.layout.root)

    def _start(self) -> None:
        config = self.config
        self.unforced = Durability.MEMORY if config.pool.enabled else Durability.PAGE_CACHE
        self.usual = self.unforced
        """The level of a put that names none."""
        if config.replication.role is Role.SYNC_MASTER:
            self.usual = Durability.REPLICA
        elif config.flush.sync:
            self.usual = Durability.DISK
        self._waits = self.usual > self.unforced
        self._is_closing = False
        self._stopped_cleanly: bool | None = None
        """What `_stop` returned; None while the store runs."""
        self._arrivals: dict[asyncio.AbstractEventLoop, LoopArrivals] = {}
        self._preallocator.start()
        self.shield.start()
        self.flusher = Flusher(self.layout.root, self.log, config.flush, self.workers)
        if config.flush.sync:
            self.flusher.wait_until_durable(self.ends.appended)
        self.retention = Retention(
            self.layout,
            self.log,
            self.queues,
            self.index,
            self.positions.words,
            config.retention,
            self.checkpoint_now,
            self.workers,
            self.shield,
        )
        self.positions.announce(self.ends.committed, self.ends.durable, self.ends.dispatched)
        self.flusher.start()
        self.dispatcher.start(self.workers, self._dispatch_failed)
        self._committer = None
        if self._pool is not None:
            self._committer = Committer(self.log, config.pool, self.flusher, self.workers)
            self._committer.start()
        self._derived_failure: OSError | None = None
        self._checkpoint_lock = make_lock("checkpoint")
        self._checkpointed = 0
        self._with_checkpoints: list[Callable[[], None]] = [self._keep_times]
        self._opened_at = self.ends.appended
        self._checkpointer = Checkpointer(
            config.flush, self._checkpoint_all, self.workers, at_once=self._checkpoint_is_due
        )
        self._checkpointer.start()
        self.sealer = Sealer(
            self.layout,
            self.log,
            self.seals,
            self.scars,
            config.seals,
            self.after_damage,
            self.workers,
            sealed_end=self._sealed_end,
        )
        self.sealer.start()
        self.retention.start()

    def queue_count(self, topic: str) -> int:
        """Return how many queues take turns: all up to the first queue id that has none."""
        known = set(self.queues.queue_ids(topic))
        return next(i for i in itertools.count(self.config.consume_queue.queues_per_topic) if i not in known)

    # ---- putting

    def put(self, message: Message, durability: Durability | None = None) -> PutReceipt:
        """Append one message; return when it is as safe as asked, or as the flush mode promises."""
        append, waits, wanted = self._append, self._waits, self.usual
        if durability is not None:
            wanted = self._level(durability)
            waits = wanted > self.unforced
        receipt = append(message, wanted) or self.log.append_slowly(message, wanted)  # logs/log_writer.py
        if waits:
            self._reach(receipt.end, wanted)  # store/flush.py
        return receipt  # dispatch follows by itself: it waits for the end that this moved

    def put_as_is(self, message: Message, durability: Durability | None = None) -> PutReceipt:
        """Append without delay routing."""
        wanted = self.usual if durability is None else self._level(durability)
        receipt = self.log.append_as_is(message, wanted)
        if wanted > self.unforced:
            self._reach(receipt.end, wanted)
        return receipt

    def put_many(self, messages: Sequence[Message], durability: Durability | None = None) -> list[PutReceipt]:
        """Append a batch: all of it, next to one another, or none of it; one wait for all."""
        if not messages:
            raise InvalidMessage("batch", "no messages", "at least one")
        wanted = self.usual if durability is None else self._level(durability)
        receipts = self.log.append_many(messages, wanted)
        if wanted > self.unforced:
            self._reach(receipts[-1].end, wanted)
        return receipts

    async def put_async(self, message: Message, durability: Durability | None = None) -> PutReceipt:
        """Append one message; the event loop continues while the disk works."""
        import asyncio  # a fifth of the time of `import mqlake`, for those who need it

        append, wanted = self._append, self.usual if durability is None else self._level(durability)
        receipt = append(message, wanted) or self.log.append_slowly(message, wanted)
        if wanted >= Durability.DISK:
            await self.when_reached(receipt.end, wanted, asyncio.get_running_loop())
        elif wanted > self.unforced:
            self._reach(receipt.end, wanted)
        return receipt

    def put_packed(self, packed: Readable, *, timestamp: int = 0, keep: int = 0) -> None:
        """Append packed records (`ingest/pack.py`) in their order; `flush` makes them durable."""
        self.log.append_packed(packed, timestamp=timestamp, keep=keep)

    def _level(self, durability: Durability) -> Durability:
        if not isinstance(durability, Durability):
            raise InvalidConfig("durability", durability, f"must be one of {', '.join(map(str, Durability))}")
        if durability > max(Durability.DISK, self.usual) and not self.replicas.is_served:
            raise InvalidConfig("durability", durability.name, "this store serves no slaves; use DISK or less")
        return max(durability, self.unforced)

    def _reach(self, end: int, wanted: Durability) -> None:
        """Wait until the log has a level up to `end`. The slaves get it while the disk works, unless flush is sync."""
        if wanted >= Durability.REPLICA:
            since_ns = time.monotonic_ns()
            self.flusher.wait_until_durable(end)
            self.replicas.wait(end, since_ns)
        elif wanted >= Durability.DISK:
            self.flusher.wait_until_durable(end)
        else:
            self.log.commit()

    def when_reached(self, end: int, wanted: Durability, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of this loop that is done when the log has reached DISK or REPLICA up to `end`."""
        on_disk = self.flusher.when_durable(end, loop)
        if wanted < Durability.REPLICA:
            return on_disk
        from mqlake.store.awaiting import both

        return both(on_disk, self.replicas.when_replicated(end, loop))

    def wait_reached(self, end: int, wanted: Durability) -> None:
        """Wait until the log has reached a level up to `end`."""
        if wanted > self.unforced:
            self._reach(end, wanted)

    def flush(self) -> None:
        """Return when all that was put so far is on disk."""
        self.flusher.wait_until_durable(self.ends.appended)

    def publish(self) -> None:
        """Make visible what was appended so far, if that needs a sync or a commit."""
        if self.config.flush.sync:
            self.flusher.wait_until_durable(self.ends.appended)

    def confirm(self) -> None:
        """Wait until what was appended so far has the level of a usual put. NotConfirmed: it is stored all the same."""
        self.wait_reached(self.ends.appended, self.usual)

    def record(self, physical_offset: int) -> StoredMessage:
        """Return a message that this process appended, visible or not."""
        return StoredMessage(self.log.record_at(physical_offset, self.log.commit()))

    # ---- reading

    @property
    def look_s(self) -> float:
        return threading.TIMEOUT_MAX

    def queues_version(self) -> float:
        return self.queues.version

    @property
    def reach(self) -> int:
        return self.ends.dispatched

    def follow(self) -> None:
        """Nobody else writes."""

    def settle(self) -> None:
        """Let dispatch come to what was put before this call."""
        end = self.ends.promised
        if self.ends.dispatched < end:
            self.catch_up(end, SETTLE_S)

    def catch_up(self, end: int, timeout_s: float, *, patient: bool = False) -> bool:
        """Wait until everything before `end` is dispatched; return whether it is.

        While dispatch is in trouble there is nothing to wait for, unless the caller is `patient` and it may pass.
        """
        deadline = time.monotonic() + timeout_s
        while self.ends.dispatched < end:
            nudges = self.ends.nudges
            if self.dispatcher.is_troubled and not (patient and not self._has_dispatch_failed):
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self.ends.wait(kernel.DISPATCHED, end, int(left_s * 1e9), nudges)
        return self.ends.dispatched >= end

    def wait_until(self, arrived: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until dispatch, or a call of `look_again`, makes a condition true; DispatchFailed if it never will."""
        deadline = time.monotonic() + timeout_s
        while True:
            nudges, seen = self.ends.nudges, self.ends.dispatched
            if arrived():
                return True
            if self._has_dispatch_failed:
                raise self._dispatch_error()
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._is_closing:
                return False
            self.ends.wait(kernel.DISPATCHED, seen + 1, int(min(left_s, 1e6) * 1e9), nudges)

    async def until_async(self, arrived: Callable[[], bool], timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """`wait_until` for a task of an event loop."""
        from mqlake.store.awaiting import LoopArrivals

        def over() -> bool:
            return arrived() or self._has_dispatch_failed or self._is_closing

        for gone in [known for known in self._arrivals if known.is_closed()]:
            self._arrivals.pop(gone, None)
        waiting = self._arrivals.setdefault(loop, LoopArrivals(loop, self.ends))
        await waiting.until(over, timeout_s)
        if self._has_dispatch_failed and not arrived():
            raise self._dispatch_error()

    def queue_arrivals(self, loop: asyncio.AbstractEventLoop) -> QueueArrivals:
        """Return what tells an event loop which queues got messages. One loop at a time."""
        from mqlake.store.awaiting import QueueArrivals

        return QueueArrivals(loop, self.dispatcher, self.ends)

    def look_again(self) -> None:
        self.ends.nudge()

    # ---- failing

    @property
    def _has_dispatch_failed(self) -> bool:
        return self.log.is_refused(FAILED_DISPATCH)

    def _dispatch_failed(self, error: Exception) -> None:
        """Refuse puts, which nobody would ever see, and wake waiting threads: dispatch stopped for good."""
        self._dispatch_failure = error
        self.log.refuse(FAILED_DISPATCH, self._dispatch_error)
        self.ends.nudge()

    def _dispatch_error(self) -> DispatchFailed:
        error = self._dispatch_failure
        return DispatchFailed(self.layout.root, f"{type(error).__name__}: {error}")

    def health(self) -> Health:
        failure = self.flusher.failure or self.dispatcher.failure or self._derived_failure or self.retention.failure
        return Health(self.workers.health(), None if failure is None else str(failure), self.replicas.slaves())

    def tell_health(self) -> None:
        """Tell other processes how workers and slaves are, now."""
        with self._health_lock:  # what is told last is the newest
            publish_health(self.layout, os.getpid(), self.workers.health(), self.replicas.slaves())

    # ---- deleting a topic

    def delete_topic(
        self,
        topic: str,
        *,
        require: Callable[[], None] = lambda: None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """Delete a topic's queues. Its records stay in the log until retention deletes them, and are in no queue.

        `require` raises if there is no such topic, `forget` removes its settings. Puts to the topic wait from before
        the one until after the other, and so does another deletion of it: who hears that there is no such topic puts
        into its next life, and the marker that ends the old one is on disk before.
        """
        end = self.log.begin_deletion(topic)
        deleted = False
        try:
            require()
            with self._checkpoint_lock:
                self.dispatcher.run(lambda: self._delete_queues(topic, end))
            deleted = True
            forget()
        finally:
            self.log.end_deletion(topic, deleted=deleted)
        self.checkpoint_now()

    def _delete_queues(self, topic: str, end: int) -> None:
        self.deleted_topics.mark(topic, end)
        self.queues.remove(topic, self.layout.scratch / "deleted")
        self.positions.words[DELETIONS] += 1

    # ---- checkpoints

    def _moment(self) -> Checkpoint:
        """Return the checkpoint of now, without what only the disk can say. No step of the dispatcher is under way."""
        index = self.config.index
        last_record = self.dispatcher.last_record
        return Checkpoint(
            first_offset=self.log_files.first_offset,
            dispatched=self.dispatcher.dispatched,
            last_record=last_record if last_record >= 0 else self._last[0],
            queue_ends=self.queues.snapshot(),
            index=IndexMark(
                files=self.index.names,
                header=self.index.header,
                slot_count=index.slot_count or 0,
                entry_count=index.entry_count or 0,
            )
            if self.index is not None and not self._index_lacks_keys
            else IndexMark(),
        )

    def with_checkpoints(self, write: Callable[[], None]) -> None:
        """Have something written after every checkpoint, by the same worker."""
        self._with_checkpoints.append(write)

    def write_checkpoint(self, *, clean: bool = False) -> bool:
        """Sync log, queues and index, then write the checkpoints that say so; False while dispatch is in trouble."""
        with self._checkpoint_lock:
            if self._derived_failure is not None:
                raise self._derived_failure
            seen = self.dispatcher.run(self._moment_between_steps)
            if seen is None:
                return False
            moment, timestamp = seen
            self.flusher.wait_until_durable(moment.dispatched)
            self._sync_derived()
            content = rocketmq_content(timestamp, timestamp if self.index is not None else 0, moment.dispatched)
            checkpoint = replace(
                moment,
                durable=self.ends.durable,
                clean=clean,
                generation=self.positions.generation,
                rocketmq=(rocketmq_digest(self.layout), zlib.crc32(content)),
            )
            write_checkpoint(self.layout, checkpoint)
            self._checkpointed = moment.dispatched
            if timestamp:
                replace_file(self.layout.checkpoint, content, self.layout.scratch)
            return True

    def doubt_index(self) -> None:
        """Have the next opening build queues and index anew: the index lacks keys of messages that were healed."""
        self._index_lacks_keys = True

    def _moment_between_steps(self) -> tuple[Checkpoint, int] | None:
        """Return the checkpoint of now; None if a step is half done."""
        if self.dispatcher.is_troubled:
            return None
        return self._moment(), self.dispatcher.last_timestamp or self._last[1]

    def _sync_derived(self) -> None:
        """Sync queues and index. After a failure no later sync proves that they are whole: there are no more
        checkpoints, and the next opening goes back to the last.
        """
        try:
            self.queues.sync()
            if self.index is not None:
                self.index.sync()
        except OSError as error:
            self._derived_failure = error
            raise

    def _checkpoint_all(self) -> None:
        self.write_checkpoint()
        for write in list(self._with_checkpoints):
            write()

    def _keep_times(self, *, since: int = 0) -> None:
        """Note the times in closed files, as far as the last checkpoint says that they are on disk."""
        try:
            file_size = self.log_files.file_size
            keep_times(self.layout, file_size, self._checkpointed, since=since, budget_s=TIMES_S)
        except (StoreError, OSError) as error:  # only readers of time windows miss them
            _log.warning("the times in the log's files are not noted: %s", error)

    def checkpoint_now(self) -> int:
        """Write a checkpoint if possible. Return the offset that the newest one of this run covers."""
        try:
            self.write_checkpoint()
        except (StoreError, OSError) as error:
            _log.error("no checkpoint: %s", error)
        return self._checkpointed

    def stats(self) -> StoreStats:
        health = self.health()
        return StoreStats(
            first_offset=self.log.first_offset,
            appended_end=self.ends.appended,
            committed_end=self.ends.committed,
            durable_end=self.ends.durable,
            replicated_end=self.ends.replicated if self.replicas.is_served else None,
            slaves=self.replicas.slaves(),
            dispatched_end=self.ends.dispatched,
            file_size_bytes=self.log.file_size,
            log_file_count=len(self.log_files.starts),
            index_file_count=self.index.file_count if self.index else 0,
            topic_count=len(self.reader.topics()),
            sync_count=self.flusher.sync_count,
            dispatched_count=self.dispatcher.record_count,
            failure=health.failure,
            workers=health.workers,
            damage=tuple(sorted({*self.damage(), *self.dispatcher.rejected})),
            scar_count=len(self.scars.ranges),
            damaged_entry_count=self.reader.damaged_entry_count,
            recovery=self.recovery,
            topics={
                state.name: TopicStats(put_count=state.put_count, put_bytes=state.put_bytes)
                for state in self.topics.all_states()
            },
            retention=retention_stats(self.layout, self.log, self.positions.read(NEXT_CLEANING)),
            seals=self.sealer.stats(),
        )

    # ---- closing

    def close(self) -> None:
        """Refuse puts, let dispatch catch up, sync, checkpoint, let go. If any of it fails, `abort` stays in place.

        A call that was interrupted is finished by the next one.
        """
        if self._stopped_cleanly is None:
            self._stopped_cleanly = self._stop()
        self.log.close()
        self.ends.unpublish()
        self.positions.close()
        withdraw_health(self.layout)
        if self._stopped_cleanly:
            self._mark_stopped()
        self._let_go()
        self._lock.release()

    def _mark_stopped(self) -> None:
        try:
            self.layout.abort.unlink(missing_ok=True)
            sync_directory(self.layout.root)
        except OSError as error:  # everything is on disk; the next opening looks once more
            _log.error("the clean stop is not recorded: %s", error)

    def _stop(self) -> bool:
        """Stop everything that runs and write the last checkpoint; return whether all of the log is covered by it."""
        self._is_closing = True
        self.log.refuse(CLOSED, lambda: StoreClosed(self.layout.root))
        self.replicas.close()
        self.retention.close()
        if self._committer is not None:
            self._committer.close()
        durable = self.flusher.close()
        caught_up = self.catch_up(self.ends.promised, CLOSE_DISPATCH_S)
        self.dispatcher.close()
        self._checkpointer.close()
        clean = durable and caught_up and self.ends.dispatched >= self.ends.appended
        clean = clean and self._close_checkpoint()
        self.sealer.finish()
        self.workers.stop()
        try:
            self._preallocator.close()
        except OSError as error:  # the next opening removes them
            _log.warning("spare files are left: %s", error)
        if self._pool is not None:
            self._pool.close()
        return clean

    def _close_checkpoint(self) -> bool:
        try:
            written = self.write_checkpoint(clean=True)
        except (StoreError, OSError) as error:
            _log.error("no checkpoint at close: %s", error)
            return False
        self._keep_times(since=self._opened_at - self.log_files.file_size)
        return written

    def leave(self) -> None:
        """Say that nobody can use the store any more: who opens it next waits until it is closed."""
        self._lock.leave()

    def give_up(self) -> None:
        """Close a forked child's copy of the lock's descriptor; the parent keeps its own. Touch nothing else."""
        self._lock.abandon()
