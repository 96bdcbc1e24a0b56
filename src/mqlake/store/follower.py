"""The reader's side of a store, in any process: takes no lock and writes nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.config import StoreConfig
from mqlake.files.layout import Layout
from mqlake.files.lock import writer_of
from mqlake.files.positions import DELETIONS, DISPATCHED, DURABLE, FIRST, GENERATION, NEXT_CLEANING, WRITER, Positions
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.key_index import KeyIndex
from mqlake.store.checkpoint import read_checkpoint
from mqlake.store.recovery import Progress, Recovery, Reporter, Trust, find_end
from mqlake.store.retention import retention_stats
from mqlake.store.side import Side, damage_of
from mqlake.store.stats import StoreStats

POLL_S = 0.002


class Follower(Side):
    """A reader: takes no lock and writes nothing; follows the writer's live positions where there is a writer.

    Where nobody writes and the last stop was unclean, queues and index cannot be believed. The reader then makes its
    own from the log, in a temporary folder, and serves what recovery would: the store itself stays as it is.
    """

    def __init__(
        self, layout: Layout, config: StoreConfig, progress: Progress | None = None, *, derive: bool = True
    ) -> None:
        """Without `derive`, queues that cannot be believed are not made anew: `derived_holds` says so."""
        super().__init__(layout, config, writable=False)
        self._progress = progress
        self._derives = derive
        self.derived_holds = True
        self._positions: Positions | None = None
        self._generation = 0
        self._following = False
        self._own_files: tempfile.TemporaryDirectory[str] | None = None
        self._deletions = 0
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
        self.derived_holds = trust.untouched or trust.reason == "clean stop"
        if not self.derived_holds and self._derives:
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
        if self._positions.words[DELETIONS] != self._deletions:
            self._deletions = self._positions.words[DELETIONS]
            self.graves.load()
            self.queues.forget(self.graves.ends)
        dispatched = self._positions.words[DISPATCHED]
        if self._positions.words[FIRST] > self.log.first_offset:
            self._let_go_before(self._positions.words[FIRST])
        if dispatched <= self.log.committed:
            return
        self._dispatched = self.queues.log_end = dispatched
        self.log.follow(dispatched)
        if self.index is not None:
            self.index.load()

    def walk_on(self) -> None:
        """Follow also where nobody keeps positions: behind a RocketMQ that writes, or a writer that died.

        The records behind the known end are walked, CRC included, as far as they hold: nothing is walked twice. Queues
        and index need not know of them, so `derived_holds` is over from then on.
        """
        self.follow()
        generation = self._generation_now()
        if self._is_kept():
            return
        self.log_files.refresh()
        known = self.log.committed
        end = find_end(self.log_files, Trust(known, -1, "unclean stop", known), Reporter(self._progress))
        if end.offset > known and generation == self._generation_now() and not self._is_kept():
            self._dispatched = end.offset
            self.log.follow(end.offset)
            self.derived_holds = False

    def _is_kept(self) -> bool:
        """A writer is there that keeps the positions."""
        if self._positions is None:
            self._positions = Positions.open(self.layout.positions)
        if self._positions is None:
            return False
        writer = self._positions.words[WRITER]
        return writer != 0 and writer_of(self.layout.lock) == writer

    def _generation_now(self) -> int:
        return self._positions.generation if self._positions is not None else 0

    def _let_go_before(self, first: int) -> None:
        """The writer deleted the log before `first`: the blocks are free once nobody holds the files."""
        self.log_files.forget_before(first)
        for queue in self.queues.open_queues():
            queue.files.forget_before(queue.first_offset(first) * ENTRY_SIZE)
        if self.index is not None:
            self.index.load()

    def wait_for_message(self, topic: str, queue_id: int, offset: int, timeout_s: float) -> bool:
        return self.wait_until(lambda: self.queues.get(topic, queue_id).end > offset, timeout_s)

    def wait_until(self, arrived: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the writer makes a condition true; whether it is. Nobody tells a reader: it looks."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.follow()
            if arrived():
                return True
            time.sleep(POLL_S)
        return False

    def look_again(self) -> None:
        """Who waits looks all the time."""

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
