"""The two sides of a store: `Engine` owns the stages of its one writer, `Follower` those of a reader.

Both put the parts together that `MessageStore` uses, in the order in which they depend on each other, and take them
apart again in the reverse order.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import shutil
import tempfile
import threading
import time
import zlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.config import StoreConfig
from mqlake.errors import BadFile, OffsetOutOfRange, StoreClosed, StoreError
from mqlake.files.layout import Layout
from mqlake.files.lock import StoreLock, writer_of
from mqlake.files.mapped_file import sync_directory, sync_file
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.pool import TransientPool
from mqlake.files.positions import DISPATCHED, DURABLE, FIRST, GENERATION, NEXT_CLEANING, WRITER, Positions
from mqlake.files.preallocation import Preallocator
from mqlake.files.small_files import replace_file
from mqlake.logs.commit_log import CommitLog, LogWriter
from mqlake.logs.consume_queues import BatchQueues, ConsumeQueues
from mqlake.logs.damage import next_record
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scars
from mqlake.logs.topic_table import TopicTable
from mqlake.store.checkpoint import (
    Checkpoint,
    Checkpointer,
    IndexMark,
    read_checkpoint,
    rocketmq_content,
    rocketmq_digest,
    write_checkpoint,
)
from mqlake.store.derived import restore, settle_rebuilt
from mqlake.store.dispatch import Dispatcher
from mqlake.store.flush import Committer, Flusher
from mqlake.store.opening import batch_queue_file_size, keep_notes, mend_last_file, numbers_are_noted
from mqlake.store.read import Reader
from mqlake.store.recovery import LogEnd, Progress, Recovery, Reporter, Trust, abort_content, find_end, judge
from mqlake.store.retention import Retention, retention_stats
from mqlake.store.stats import StoreStats, TopicStats

CLOSE_DISPATCH_S = 30.0
SETTLE_S = 5.0
POLL_S = 0.002
_log = logging.getLogger(__name__)


class _Side:
    """What writer and reader have in common: the logs and the reader over them."""

    log: CommitLog

    def __init__(self, layout: Layout, config: StoreConfig, *, writable: bool) -> None:
        self.layout = layout
        self.config = config
        log_size, queue_size = config.commit_log.file_size_bytes, config.consume_queue.file_size_bytes
        slots, entries = config.index.slot_count, config.index.entry_count
        assert log_size and queue_size and slots and entries, "sizes are resolved before a store is opened"
        self.log_files = MappedFileQueue(layout.commit_log, log_size, writable=writable)
        self.queues = ConsumeQueues(layout.consume_queues, queue_size, writable=writable, scratch=layout.scratch)
        self.index: KeyIndex | None = None
        if config.index.enabled:
            self.index = KeyIndex(layout.index, slots, entries, writable=writable, scratch=layout.scratch)
        self.scars = Scars(layout.scars, layout.scratch if writable else None)
        try:
            self.log_files.load()
        except BadFile as error:
            raise BadFile(error.file, error.found, f"{error.expected}; run: mqlake repair {layout.root}") from None
        self.queues.load()
        if self.index is not None:
            self.index.load(strict=not numbers_are_noted(layout, config))
        self.scars.load(self.log_files.first_offset)

    def _judge(self, reporter: Reporter) -> tuple[Trust, LogEnd]:
        """What can be believed of a store that nobody writes, and where its log ends. Changes nothing."""
        foreign = frozenset(BatchQueues(self.layout.batch_queues, 0, 0).topics())
        trust = judge(self.layout, self.log_files, self.queues, self.index, self.scars, foreign)
        end = find_end(self.log_files, trust, reporter)
        for scar in end.scars:
            self.scars.add(*scar)
        return trust, end

    def _make_reader(self, log: CommitLog) -> None:
        self.batch_queues = BatchQueues(self.layout.batch_queues, batch_queue_file_size(self.layout), log.committed)
        self.reader = Reader(log, self.queues, self.batch_queues, self.index, self.scars, self.readable_end)

    def _dispatch(self, start: int, end: int, words: memoryview, reporter: Reporter) -> Dispatcher:
        """Dispatch [start, end) of the log here and now; the dispatcher, to go on with."""
        dispatcher = Dispatcher(
            self.log,
            self.queues,
            self.index,
            self.scars,
            words,
            start=start,
            delays_ms=self.config.delays_ms,
            index_tags=self.config.index.tags,
            foreign_topics=frozenset(self.batch_queues.topics()),
        )
        while dispatcher.step(end):
            reporter.tell("dispatching", dispatcher.dispatched - start, end - start)
        return dispatcher

    def readable_end(self) -> int:
        """Where readers of the log must stop."""
        raise NotImplementedError

    def follow(self) -> None:
        """Learn what another process did; nothing to do for the writer."""

    def _let_go(self) -> None:
        """Of all files, so that their volume can be unmounted; views that callers hold stay valid."""
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self.log_files.close()

    def behind_damage(self, offset: int, reason: str) -> int:
        """Where whole records go on behind the damage at an offset, which is listed as a scar."""
        end = self.readable_end()
        known = self.scars.end_of(offset)
        if known < 0:
            known = next_record(self.log_files, offset, end, 0) or end
            self.scars.add(offset, known, reason)
        return known

    def scan_range(self, start: int | None, end: int | None) -> tuple[int, int]:
        """A byte range inside of the log; OffsetOutOfRange where it is not."""
        first, stop = self.log.first_offset, self.readable_end()
        for offset in (start, end):
            if offset is not None and not first <= offset <= stop:
                raise OffsetOutOfRange("commit log", offset, first, stop)
        if start is not None and first < start < stop and self.scars.end_of(start) < 0:
            self.log.require_record(start, stop)
        return first if start is None else start, stop if end is None else end


class Engine(_Side):
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
        atexit.register(
            self.close
        )  # a program that ends without closing, or is interrupted while it does, still closes

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
        self.topics = TopicTable(self._queue_count, self.queues.end_of, foreign_topics)
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
        self._checkpointer = Checkpointer(config.flush, self._try_checkpoint, at_once=self._checkpoint_is_due)
        self.retention.start()

    def _queue_count(self, topic: str) -> int:
        """How many queues messages without a queue id are spread over: all up to the first number without a queue."""
        known = set(self.queues.queue_ids(topic))
        return next(i for i in itertools.count(self.config.consume_queue.queues_per_topic) if i not in known)

    def _wake_dispatcher(self) -> None:
        if self.dispatcher.idle:
            self.dispatcher.wake()

    # ---- running

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
        return self.dispatcher.wait_for(lambda: queue.end > offset, timeout_s)

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
                name: TopicStats(put_count=state.put_count, put_bytes=state.put_bytes)
                for name, state in self.topics.states.items()
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


class Follower(_Side):
    """A reader: takes no lock and writes nothing; follows the writer's live positions where there is a writer.

    Where nobody writes and the last stop was unclean, queues and index cannot be believed. The reader then makes its
    own from the log, in a temporary folder, and serves what recovery would: the store itself stays as it is.
    """

    def __init__(self, layout: Layout, config: StoreConfig, progress: Progress | None = None) -> None:
        super().__init__(layout, config, writable=False)
        self._progress = progress
        self._positions: Positions | None = None
        self._generation = 0
        self._following = False
        self._own_files: tempfile.TemporaryDirectory[str] | None = None
        self._dispatched = 0
        """What is dispatched is visible, and all that a reader sees."""
        if self._follow_writer():
            known = read_checkpoint(layout.own_checkpoint)
            self.queues.ends = known.queue_ends if known is not None else {}
            self.queues.trust_up_to(self._dispatched)
        else:
            self._look_at_files()
        self.log = CommitLog(self.log_files, self._dispatched)
        self._make_reader(self.log)
        if self._own_files is not None:
            self._dispatch_to_own_files()

    def _look_at_files(self) -> None:
        reporter = Reporter(self._progress)
        trust, end = self._judge(reporter)
        self._dispatched = end.offset
        if not trust.untouched and trust.reason != "clean stop":
            self._own_files = tempfile.TemporaryDirectory(prefix="mqlake-")
            root = Path(self._own_files.name)
            self.queues = ConsumeQueues(root / "consumequeue", self.queues.file_size, writable=True)
            if self.index is not None:
                numbers = self.index.slot_count, self.index.entry_count
                self.index = KeyIndex(root / "index", *numbers, writable=True)
        elif trust.checkpoint is not None:
            self.queues.ends = trust.checkpoint.queue_ends
        self.queues.trust_up_to(self._dispatched)

    def _dispatch_to_own_files(self) -> None:
        nobodys_words = memoryview(bytearray(4096)).cast("q")
        self._dispatch(self.log.first_offset, self._dispatched, nobodys_words, Reporter(self._progress))

    def _follow_writer(self) -> bool:
        """Begin to follow the writer, if there is one: the lock says so, for the positions outlive a crash."""
        if self._positions is None:
            self._positions = Positions.open(self.layout.positions)
        if self._positions is None:
            return False
        words = self._positions.words
        if words[GENERATION] == self._generation:  # the same writer as when this was last asked
            return self._following
        writer = words[WRITER]
        if writer == 0 or writer_of(self.layout.lock) != writer:  # not ready yet, or gone: ask again next time
            return False
        self._generation = words[GENERATION]
        self._following = True
        self._dispatched = words[DISPATCHED]
        return True

    @property
    def recovery(self) -> Recovery | None:
        """What the last writer's opening did."""
        return Recovery.load(self.layout.last_recovery)

    def readable_end(self) -> int:
        return self.log.committed

    def settle(self) -> bool:
        """Nothing is put here; True where there is more to see than before, or less."""
        before = self._dispatched, self.log.first_offset
        self.follow()
        return (self._dispatched, self.log.first_offset) != before

    def follow(self) -> None:
        if self._own_files is not None:
            return
        if not self._follow_writer() and (self._positions is None or self._positions.words[WRITER] != 0):
            return  # nobody writes, and whoever did left no word to rely on; one who closed the store did
        assert self._positions is not None
        dispatched = self._positions.words[DISPATCHED]
        if self._positions.words[FIRST] > self.log.first_offset:
            self._let_go_before(self._positions.words[FIRST])
        if dispatched <= self.log.committed:
            return
        self._dispatched = self.queues.log_end = dispatched
        self.log.follow(dispatched)
        if self.index is not None:
            self.index.load()

    def _let_go_before(self, first: int) -> None:
        """The writer deleted the log before `first`: the blocks are free once nobody holds the files."""
        self.log_files.forget_before(first)
        for queue in self.queues.open_queues():
            queue.files.forget_before(queue.first_offset(first) * ENTRY_SIZE)
        if self.index is not None:
            self.index.load()

    def wait_for_message(self, topic: str, queue_id: int, offset: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.follow()
            if self.queues.get(topic, queue_id).end > offset:
                return True
            time.sleep(POLL_S)
        return False

    def stats(self) -> StoreStats:
        return StoreStats(
            first_offset=self.log.first_offset,
            appended_end=self.log.committed,
            committed_end=self.log.committed,
            durable_end=self._positions.words[DURABLE] if self._positions is not None else self.log.committed,
            dispatched_end=self._dispatched,
            file_size_bytes=self.log.file_size,
            log_file_count=len(self.log_files.starts),
            index_file_count=self.index.file_count if self.index else 0,
            topic_count=len(self.reader.topics()),
            retention=retention_stats(self.layout, self.log, self._next_cleaning()),
            damage=damage_of(self.scars),
            scar_count=len(self.scars.ranges),
            damaged_entry_count=self.reader.damaged_entry_count,
            recovery=self.recovery,
        )

    def _next_cleaning(self) -> int:
        return self._positions.words[NEXT_CLEANING] if self._positions is not None and self._following else 0

    def close(self) -> None:
        self._let_go()
        self._positions = None
        if self._own_files is not None:
            self._own_files.cleanup()


def damage_of(scars: Scars, dispatcher: Dispatcher | None = None) -> tuple[tuple[int, int], ...]:
    """Ranges of the log that are passed over, and those of records that no queue can take."""
    homeless = dispatcher.homeless if dispatcher is not None else []
    return tuple(sorted({*((scar.start, scar.end) for scar in scars.ranges), *homeless}))
