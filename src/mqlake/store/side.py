"""What writer and reader of a store have in common: the three logs, and the reader over them."""

from __future__ import annotations

from mqlake.config import StoreConfig
from mqlake.errors import BadFile, OffsetOutOfRange
from mqlake.files.layout import Layout
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queues import BatchQueues, ConsumeQueues
from mqlake.logs.damage import next_record
from mqlake.logs.graves import Graves
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scars
from mqlake.store.dispatch import Dispatcher
from mqlake.store.opening import batch_queue_file_size, numbers_are_noted
from mqlake.store.read import Reader
from mqlake.store.recovery import LogEnd, Reporter, Trust, find_end, judge


class Side:
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
        self.graves = Graves(layout.graves, layout.scratch)
        try:
            self.log_files.load()
        except BadFile as error:
            raise BadFile(error.file, error.found, f"{error.expected}; run: mqlake repair {layout.root}") from None
        self.queues.load()
        if self.index is not None:
            self.index.load(strict=not numbers_are_noted(layout, config))
        self.scars.load(self.log_files.first_offset)
        self.graves.load(self.log_files.first_offset)

    def _judge(self, reporter: Reporter) -> tuple[Trust, LogEnd]:
        """What can be believed of a store that nobody writes, and where its log ends. Changes nothing."""
        foreign = frozenset(BatchQueues(self.layout.batch_queues, 0, 0).topics())
        trust = judge(self.layout, self.log_files, self.queues, self.index, self.scars, foreign, self.graves)
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
            self.graves,
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


def damage_of(scars: Scars, dispatcher: Dispatcher | None = None) -> tuple[tuple[int, int], ...]:
    """Ranges of the log that are passed over, and those of records that no queue can take."""
    homeless = dispatcher.homeless if dispatcher is not None else []
    return tuple(sorted({*((scar.start, scar.end) for scar in scars.ranges), *homeless}))
