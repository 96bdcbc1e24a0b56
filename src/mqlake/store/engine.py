"""The writer's side of a store: owns its stages.

It puts the parts together that `MessageStore` uses, in the order in which they depend on each other, and takes them
apart again in the reverse order.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import shutil
import threading
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from mqlake.config import StoreConfig
from mqlake.errors import StoreClosed, StoreError
from mqlake.files.layout import Layout
from mqlake.files.lock import StoreLock
from mqlake.files.mapped_file import sync_directory, sync_file
from mqlake.files.pool import TransientPool
from mqlake.files.positions import DELETIONS, NEXT_CLEANING, Positions
from mqlake.files.preallocation import Preallocator
from mqlake.files.small_files import replace_file
from mqlake.logs.commit_log import LogWriter
from mqlake.logs.topic_table import TopicTable
from mqlake.store.checkpoint import (
    Checkpoint,
    Checkpointer,
    IndexMark,
    rocketmq_content,
    rocketmq_digest,
    write_checkpoint,
)
from mqlake.store.derived import restore, settle_rebuilt
from mqlake.store.flush import Committer, Flusher
from mqlake.store.opening import keep_notes, mend_last_file
from mqlake.store.recovery import Progress, Recovery, Reporter, Trust, abort_content
from mqlake.store.retention import Retention, retention_stats
from mqlake.store.side import Side, damage_of
from mqlake.store.stats import StoreStats, TopicStats

CLOSE_DISPATCH_S = 30.0
SETTLE_S = 5.0
_log = logging.getLogger(__name__)


class Engine(Side):
    """The writer: takes the lock, recovers, starts the threads; `close` undoes it all."""

    log: LogWriter

    def __init__(self, layout: Layout, config: StoreConfig, progress: Progress | None = None) -> None:
        with ExitStack() as undo:
            self._lock = StoreLock(layout.lock)
            undo.callback(self._lock.release)
            for directory in (layout.commit_log, layout.consume_queues, layout.index, layout.config):
                directory.mkdir(exist_ok=True)
            layout.own.mkdir(exist_ok=True)
            shutil.rmtree(layout.scratch, ignore_errors=True)  # what a crash left half made
            mend_last_file(layout, config)
            super().__init__(layout, config, writable=True)
            undo.callback(self._let_go)
            self._recover(Reporter(progress))
            keep_notes(layout, config)
            self._mark_running()
            self._start(undo)
            undo.pop_all()
        # A program that ends without closing, or is interrupted while it does, still closes.
        atexit.register(self.close)

    # ---- opening

    def _recover(self, reporter: Reporter) -> None:
        trust, end = self._judge(reporter)
        cut_bytes = self.log_files.truncate_to(end.offset) if self.log_files.starts and not trust.untouched else 0
        cut_queue_count = restore(trust, self.queues, self.index, self.layout.set_aside, self.log_files.first_offset)
        self.positions = Positions.create(self.layout.positions)
        self._pool = None
        if self.config.pool.enabled:
            self._pool = TransientPool(self.config.pool.buffer_count, self.log_files.file_size)
        self.log = LogWriter(
            self.log_files,
            self.config.commit_log,
            end.offset,
            self.positions.words,
            end.last_timestamp,
            pool=self._pool,
        )
        self._make_reader(self.log)
        self.dispatcher = self._dispatch(trust.offset, end.offset, self.positions.words, reporter)
        for topic in self.graves.ends:  # a crash came while one was deleted
            if not any(self.queues.end_of(topic, queue_id) for queue_id in self.queues.queue_ids(topic)):
                self.queues.remove(topic, self.layout.scratch / "deleted")
        if trust.rebuilds:
            cut_queue_count += settle_rebuilt(trust, self.queues, end.offset)
        self.queues.log_end = end.offset
        self._durable = min(trust.watermark, end.offset) if trust.watermark >= 0 else self.log_files.first_offset
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
        told = found.took_ms > 1000 or found.cut_bytes or found.scars or found.reason == "rebuild"
        _log.log(logging.INFO if told else logging.DEBUG, "recovered: %s", found)
        try:
            found.save(self.layout.last_recovery)
        except OSError as error:
            _log.warning("what recovery did is not noted: %s", error)

    def _mark_running(self) -> None:
        """From here on an end without `close` is an unclean one: RocketMQ's mark for it."""
        self.layout.abort.write_text(abort_content(self.positions.generation))
        sync_file(self.layout.abort)
        sync_directory(self.layout.root)

    def _start(self, undo: ExitStack) -> None:
        config = self.config
        foreign_topics = frozenset(self.batch_queues.topics())
        self.topics = TopicTable(self.queue_count, self.queues.end_of, foreign_topics)
        self._preallocator = Preallocator(
            self.layout.spare, self.log.file_size, warm=config.memory.warm_files, lock=config.memory.lock_files
        )
        undo.callback(self._preallocator.close)
        self.log.open(
            self.topics,
            self._preallocator,
            pool_fails_fast=config.pool.fail_fast,
            unlock_full_files=config.memory.lock_files,
        )
        self.flusher = Flusher(self.layout.root, self.log, config.flush, self._durable)
        if config.flush.sync:
            self.dispatcher.visible_end = lambda: self.flusher.durable
            self.flusher.on_durable = self._wake_dispatcher
            self.flusher.wait_until_durable(self.log.end)
        self.retention = Retention(
            self.layout, self.log, self.queues, self.index, self.positions.words, config.retention, self.checkpoint_now
        )
        self.positions.announce(self.log.end, self.flusher.durable, self.dispatcher.dispatched)
        self.flusher.start()
        self.dispatcher.start()
        self._committer = None
        if self._pool is not None:
            self._committer = Committer(self.log, config.pool, self._wake_dispatcher, self.flusher.fail)
        self._derived_failure: Exception | None = None
        self._checkpoint_lock = threading.Lock()
        self._checkpointed = 0
        self.keepers: list[Callable[[], None]] = []
        """What others want written with every checkpoint, behind it and on its thread."""
        self._checkpointer = Checkpointer(config.flush, self._checkpoint_all, at_once=self._checkpoint_is_due)
        self.retention.start()

    def queue_count(self, topic: str) -> int:
        """How many queues messages without a queue id are spread over: all up to the first number without a queue."""
        known = set(self.queues.queue_ids(topic))
        return next(i for i in itertools.count(self.config.consume_queue.queues_per_topic) if i not in known)

    def _wake_dispatcher(self) -> None:
        if self.dispatcher.idle:
            self.dispatcher.wake()

    # ---- running

    def publish(self) -> None:
        """Have readers see what was appended so far: what a put does behind its append, where nobody waits for it."""
        if self.config.flush.sync:
            self.flusher.wait_until_durable(self.log.end)
        self._wake_dispatcher()

    def settle(self) -> bool:
        """Let dispatch come to what was put before this call; False where it had already."""
        end = self.dispatcher.visible_end()
        if self.dispatcher.dispatched >= end:
            return False
        self.dispatcher.catch_up(end, SETTLE_S)
        return True

    def readable_end(self) -> int:
        return self.flusher.durable if self.config.flush.sync else self.log.committed

    def wait_for_message(self, topic: str, queue_id: int, offset: int, timeout_s: float) -> bool:
        queue = self.queues.get(topic, queue_id)
        return self.wait_until(lambda: queue.end > offset, timeout_s)

    def wait_until(self, arrived: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until dispatch, or somebody who calls `look_again`, makes a condition true; whether it is."""
        return self.dispatcher.wait_for(arrived, timeout_s)

    def look_again(self) -> None:
        """Have those who wait look at their condition."""
        self.dispatcher.announce()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's queues. Its records stay in the log until retention takes them, and are in no queue."""
        with self._checkpoint_lock, self.log.forgetting(topic) as end, self.dispatcher.pause():
            self.graves.dig(topic, end)
            self.queues.remove(topic, self.layout.scratch / "deleted")
            self.positions.words[DELETIONS] += 1
        self.checkpoint_now()

    def _moment(self) -> Checkpoint:
        """The checkpoint of now, without what only the disk can say. No step of the dispatcher is under way."""
        index = self.config.index
        last_record = self.dispatcher.last_record
        return Checkpoint(
            first_offset=self.log_files.first_offset,
            dispatched=self.dispatcher.dispatched,
            last_record=last_record if last_record >= 0 else self._last[0],
            queue_ends=self.queues.snapshot(),
            index=IndexMark(
                files=self.index.names if self.index is not None else (),
                header=self.index.header if self.index is not None else b"",
                slot_count=index.slot_count or 0 if self.index is not None else 0,
                entry_count=index.entry_count or 0 if self.index is not None else 0,
            ),
        )

    def write_checkpoint(self, *, clean: bool = False) -> bool:
        """Log, queues and index to the disk, then the checkpoints that say so; False where dispatch is in trouble."""
        seen = self.dispatcher.between_steps(lambda: (self._moment(), self.dispatcher.last_timestamp or self._last[1]))
        if seen is None:
            return False
        moment, timestamp = seen
        self.flusher.wait_until_durable(moment.dispatched)
        self._sync_derived()
        content = rocketmq_content(timestamp, timestamp if self.index is not None else 0, moment.dispatched)
        checkpoint = replace(
            moment,
            durable=self.flusher.durable,
            clean=clean,
            generation=self.positions.generation,
            rocketmq=(rocketmq_digest(self.layout), zlib.crc32(content)),
        )
        write_checkpoint(self.layout, checkpoint)
        self._checkpointed = moment.dispatched
        if timestamp:
            replace_file(self.layout.checkpoint, content, self.layout.scratch)
        return True

    def _sync_derived(self) -> None:
        """Once a sync of queues or index has failed, no later one proves that they are whole: there are no more
        checkpoints, and the next opening goes back to the last.
        """
        try:
            self.queues.sync()
            if self.index is not None:
                self.index.sync()
        except OSError as error:
            self._derived_failure = error
            raise

    def _try_checkpoint(self, *, clean: bool = False) -> bool:
        """Write a checkpoint if that can be true; whether it was written. What fails to be written is tried again."""
        with self._checkpoint_lock:
            if self._derived_failure is not None:
                return False
            try:
                return self.write_checkpoint(clean=clean)
            except (StoreError, OSError) as error:
                _log.error("no checkpoint: %s", error)
                return False

    def _checkpoint_all(self) -> None:
        self._try_checkpoint()
        for keep in list(self.keepers):
            try:
                keep()
            except (StoreError, OSError) as error:
                _log.error("not written with the checkpoint: %s", error)

    def checkpoint_now(self) -> int:
        """Write a checkpoint if that can be; up to where the newest of this run goes."""
        self._try_checkpoint()
        return self._checkpointed

    def stats(self) -> StoreStats:
        failure = self.flusher.failure or self.dispatcher.failure or self._derived_failure or self.retention.failure
        return StoreStats(
            first_offset=self.log.first_offset,
            appended_end=self.log.end,
            committed_end=self.log.committed,
            durable_end=self.flusher.durable,
            dispatched_end=self.dispatcher.dispatched,
            file_size_bytes=self.log.file_size,
            log_file_count=len(self.log_files.starts),
            index_file_count=self.index.file_count if self.index else 0,
            topic_count=len(self.reader.topics()),
            sync_count=self.flusher.sync_count,
            dispatched_count=self.dispatcher.record_count,
            failure=str(failure) if failure else None,
            damage=damage_of(self.scars, self.dispatcher),
            scar_count=len(self.scars.ranges),
            damaged_entry_count=self.reader.damaged_entry_count,
            recovery=self.recovery,
            topics={
                state.name: TopicStats(put_count=state.put_count, put_bytes=state.put_bytes)
                for state in self.topics.all_states()
            },
            retention=retention_stats(self.layout, self.log, self.positions.words[NEXT_CLEANING]),
        )

    # ---- closing

    def close(self) -> None:
        """Refuse puts, let dispatch catch up, sync, checkpoint; what fails leaves `abort` in place."""
        self.log.refuse(lambda: StoreClosed(self.layout.root))
        self.retention.close()
        if self._committer is not None:
            self._committer.close()
        durable = self.flusher.close()
        caught_up = self.dispatcher.failure is None and self.dispatcher.catch_up(
            self.dispatcher.visible_end(), CLOSE_DISPATCH_S
        )
        self.dispatcher.close()
        self._checkpointer.close()
        clean = durable and caught_up and self.dispatcher.dispatched >= self.log.end
        clean = clean and self._try_checkpoint(clean=True)
        self._preallocator.close()
        if self._pool is not None:
            self._pool.close()
        self.log.close()
        self.positions.close()
        if clean:
            self.layout.abort.unlink(missing_ok=True)
            sync_directory(self.layout.root)
        self._let_go()
        self._lock.release()
        atexit.unregister(self.close)
