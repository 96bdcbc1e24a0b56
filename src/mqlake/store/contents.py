"""What an open store consists of: the three logs, the lists beside them, and the reader over them."""

from __future__ import annotations

from mqlake.config import StoreConfig
from mqlake.errors import BadFile, OffsetOutOfRange
from mqlake.files.layout import Layout
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.kernel import Ends
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queues import BatchQueues, ConsumeQueues
from mqlake.logs.damage import next_record
from mqlake.logs.deleted_topics import DeletedTopics
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scars
from mqlake.store.dispatch import Dispatcher
from mqlake.store.opening import batch_queue_file_size, numbers_are_noted
from mqlake.store.read import Reader
from mqlake.store.recovery import LogEnd, Reporter, Trust, find_end, judge


class Contents:
    """The parts that writer and follower both have. Both make `ends` and `log` once they know where the log ends."""

    ends: Ends
    log: CommitLog

    def __init__(self, layout: Layout, config: StoreConfig, *, writable: bool) -> None:
        self.layout = layout
        self.config = config
        log_size, queue_size = config.commit_log.file_size_bytes, config.consume_queue.file_size_bytes
        slots, entries = config.index.slot_count, config.index.entry_count
        assert log_size and queue_size and slots and entries, "sizes are resolved before a store is opened"
        self.log_files = MappedFileQueue(layout.commit_log, log_size, writable=writable)
        self.queues = ConsumeQueues(
            layout.consume_queues, queue_size, self.log_files, writable=writable, scratch=layout.scratch
        )
        self.index: KeyIndex | None = None
        if config.index.enabled:
            self.index = KeyIndex(layout.index, slots, entries, writable=writable, scratch=layout.scratch)
        self.scars = Scars(layout.scars, layout.scratch if writable else None)
        self.deleted_topics = DeletedTopics(layout.deleted_topics, layout.scratch)
        try:
            self.log_files.load()
        except BadFile as error:
            raise BadFile(error.file, error.found, f"{error.expected}; run: mqlake repair {layout.root}") from None
        self.queues.load()
        self.index_problem: BadFile | None = None
        """Why keys cannot be looked up, for a reader: a writer does not open such a store."""
        if self.index is not None:
            try:
                self.index.load(strict=not numbers_are_noted(layout, config))
            except BadFile as error:
                if writable:
                    raise
                self.index, self.index_problem = None, error
        self.scars.load(self.log_files.first_offset)
        self.deleted_topics.load(self.log_files.first_offset)

    def _judge(self, reporter: Reporter) -> tuple[Trust, LogEnd]:
        """Decide how much of a store to trust that nobody writes, and where its log ends. Changes nothing."""
        foreign = frozenset(BatchQueues(self.layout.batch_queues, 0, 0).topics())
        trust = judge(self.layout, self.log_files, self.queues, self.index, self.scars, foreign, self.deleted_topics)
        end = find_end(self.log_files, trust, reporter)
        for scar in end.scars:
            self.scars.add(*scar)
        return trust, end

    def _make_reader(self) -> None:
        size = batch_queue_file_size(self.layout)
        self.batch_queues = BatchQueues(self.layout.batch_queues, size, self.ends.visible)
        self.reader = Reader(self.log, self.queues, self.batch_queues, self.index, self.scars)
        self.reader.index_problem = self.index_problem

    def _dispatch(self, start: int, end: int, reporter: Reporter) -> Dispatcher:
        """Dispatch [start, end) of the log here and now. Returns the dispatcher, to continue with."""
        dispatcher = Dispatcher(
            self.log,
            self.queues,
            self.index,
            self.scars,
            self.deleted_topics,
            start=start,
            delays_ms=self.config.delays_ms,
            index_tags=self.config.index.tags,
            foreign_topics=frozenset(self.batch_queues.topics()),
        )
        dispatcher.run_to(end, lambda dispatched: reporter.tell("dispatching", dispatched - start, end - start))
        return dispatcher

    def after_damage(self, offset: int, reason: str) -> int:
        """Return where whole records continue after the damage at an offset, and list it as a scar."""
        known = self.scars.end_of(offset)
        if known < 0:
            end = self.ends.visible
            known = next_record(self.log_files, offset, end, 0) or end
            self.scars.add(offset, known, reason)
        return known

    def scan_range(self, start: int | None, end: int | None) -> tuple[int, int]:
        """Return a byte range inside of the log; OffsetOutOfRange if it is not."""
        first, stop = self.log.first_offset, min(self.ends.visible, self.log_files.end_offset)
        for offset in (start, end):
            if offset is not None and not first <= offset <= stop:
                raise OffsetOutOfRange("commit log", offset, first, stop)
        if start is not None and first < start < stop and self.scars.end_of(start) < 0:
            self.log.require_record(start)
        return first if start is None else start, stop if end is None else end

    def damage(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges of the log that readers skip."""
        return tuple((scar.start, scar.end) for scar in self.scars.ranges)

    def _let_go(self) -> None:
        """Let go of all files, so that their volume can be unmounted; views that callers hold stay valid."""
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self.log_files.close()
