"""The reader's side of a store, in any process: takes no lock and writes nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.config import StoreConfig
from mqlake.files.layout import Layout
from mqlake.files.lock import writer_of
from mqlake.files.positions import (
    APPENDED,
    DELETIONS,
    DISPATCHED,
    DURABLE,
    FIRST,
    GENERATION,
    NEXT_CLEANING,
    WRITER,
    Positions,
)
from mqlake.kernel import Ends
from mqlake.kernel.types import COMMITTED
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.key_index import KeyIndex
from mqlake.runtime.locks import make_lock
from mqlake.store.checkpoint import read_checkpoint
from mqlake.store.contents import Contents
from mqlake.store.health import Health, read_health
from mqlake.store.opening import find_store, numbers_are_noted, refusal, refuse_wrong_kinds, resolve
from mqlake.store.recovery import Progress, Recovery, Reporter, Trust, find_end
from mqlake.store.retention import retention_stats
from mqlake.store.sealing import read_seal_stats
from mqlake.store.stats import StoreStats

if TYPE_CHECKING:
    import asyncio

POLL_S: Final = 0.002
SETTLE_S: Final = 1.0
LOOK_S: Final = 1.0
"""A reader looks this often whether a topic has more queues."""


def open_follower(
    path: str | os.PathLike[str], config: StoreConfig, *, create: bool = False, progress: Progress | None = None
) -> Follower:
    """Open a store for reading."""
    try:
        layout = find_store(path, read_only=True, create=create)
        refuse_wrong_kinds(layout, read_only=True)
        return Follower(layout, resolve(layout, config), progress)
    except OSError as error:
        raise refusal(Path(path), error) from error


class Follower(Contents):
    """Offers the reading port. It follows the writer's live positions if there is a writer.

    What the writer has dispatched is visible, and all that a follower sees. If nobody writes and the last stop was
    unclean, queues and index cannot be believed: the follower derives its own from the log, in a temporary folder, and
    serves what recovery would. The store itself stays as it is.
    """

    def __init__(
        self, layout: Layout, config: StoreConfig, progress: Progress | None = None, *, derive: bool = True
    ) -> None:
        """Without `derive`, queues that cannot be trusted are not rebuilt; see `derived_holds`."""
        super().__init__(layout, config, writable=False)
        self._progress = progress
        self._derives = derive
        self.derived_holds = True
        self._following_lock = make_lock("follower")
        self._positions: Positions | None = None
        self._generation = 0
        self._following = False
        self._own_files: Path | None = None
        self._deletions = 0
        self._stuck_at = -1
        """Where dispatch stood when a wait for it was in vain."""
        if self._follow_writer():
            assert self._positions is not None, "following means that there are positions"
            end = self._positions.words[DISPATCHED]
            known = read_checkpoint(layout.own_checkpoint)
            self.queues.know_ends(known.queue_ends if known is not None else {})
            self.queues.trust_up_to(end)
        else:
            end = self._look_at_files()
        self.ends = Ends(end, end, COMMITTED)
        self.log = CommitLog(self.log_files, self.ends)
        self.log.follow(end)
        self._make_reader()
        if self._own_files is not None:
            self._dispatch(self.log.first_offset, end, Reporter(self._progress))

    def _look_at_files(self) -> int:
        """Return where the log ends, for a store that nobody writes."""
        trust, end = self._judge(Reporter(self._progress))
        self.derived_holds = trust.untouched or trust.reason == "clean stop"
        if not self.derived_holds and self._derives:
            root = self._own_files = Path(tempfile.mkdtemp(prefix="mqlake-"))
            weakref.finalize(self, _remove, root, os.getpid())
            self.queues = ConsumeQueues(root / "consumequeue", self.queues.file_size, self.log_files, writable=True)
            if self.index is not None:
                numbers = self.index.slot_count, self.index.entry_count
                self.index = KeyIndex(root / "index", *numbers, writable=True)
        elif trust.checkpoint is not None:
            self.queues.know_ends(trust.checkpoint.queue_ends)
        self.queues.trust_up_to(end.offset)
        return end.offset

    def _follow_writer(self) -> bool:
        """Begin to follow the writer, if there is one. The lock decides that: the positions outlive a crash."""
        if self._positions is None:
            self._positions = Positions.open(self.layout.positions)
        if self._positions is None:
            return False
        words = self._positions.words
        if words[GENERATION] == self._generation:  # the same writer as when this was last asked
            return self._following
        writer = words[WRITER]
        if writer <= 0 or writer_of(self.layout.lock) != writer:  # not ready yet, or gone: ask again next time
            return False
        self._generation = words[GENERATION]
        self._following = True
        return True

    @property
    def recovery(self) -> Recovery | None:
        """What the last writer's opening did."""
        return Recovery.load(self.layout.last_recovery)

    @property
    def look_s(self) -> float:
        return LOOK_S

    def queues_version(self) -> float:
        return self._deletions * 1e9 + time.monotonic() // LOOK_S

    @property
    def reach(self) -> int:
        return self.ends.visible

    def settle(self) -> None:
        """Follow the writer to what was durable before this call."""
        self.follow()
        self._await_dispatch()

    def _await_dispatch(self) -> None:
        """Wait until the writer has dispatched what is durable: the writer's program may have told ours of a message.

        Dispatch is milliseconds behind. If it does not come in time nobody waits for it again until it moves.
        """
        positions = self._positions
        if positions is None or not self._following or self._own_files is not None:
            return
        words, deadline = positions.words, time.monotonic() + SETTLE_S
        target = words[DURABLE]
        if words[DISPATCHED] >= target:
            return
        while (dispatched := words[DISPATCHED]) < target and dispatched != self._stuck_at:
            if self._take_over_if_dead():
                return
            if time.monotonic() > deadline:
                self._stuck_at = dispatched
            else:
                time.sleep(POLL_S)
        self.follow()

    def follow(self) -> None:
        with self._following_lock:
            self._follow()

    def _follow(self) -> None:
        before = self._generation
        if not self._follow_writer():
            if self._own_files is not None or self._positions is None or self._positions.words[WRITER] != 0:
                return  # nobody writes, and the last writer left no word to rely on; one that closed the store did
        elif before != self._generation:
            self._renew()
        assert self._positions is not None, "a writer has positions"
        words = self._positions.words
        dispatched = words[DISPATCHED]
        if words[DELETIONS] != self._deletions:
            self._deletions = words[DELETIONS]
            self.deleted_topics.load()
            self.queues.forget(self.deleted_topics.ends)
        if words[FIRST] > self.log.first_offset:
            self._let_go_before(words[FIRST])
        if dispatched > self.ends.visible:
            self.queues.log_end = dispatched
            self.log.follow(dispatched)
            if self.index is not None:
                self.index.load()

    def _renew(self) -> None:
        """Look at the files again: a new writer may have replaced queues, index and the tail of the log."""
        if self._own_files is not None:
            self._let_go()
            self._own_files = None
        self.queues = ConsumeQueues(self.layout.consume_queues, self.queues.file_size, self.log_files, writable=False)
        self.queues.load()
        self.queues.trust_up_to(self.ends.visible)
        if self.index is not None:
            numbers = self.index.slot_count, self.index.entry_count
            self.index = KeyIndex(self.layout.index, *numbers, writable=False)
            self.index.load(strict=not numbers_are_noted(self.layout, self.config))
        self.log_files.close()
        self.log_files.refresh()
        self.reader.use(self.queues, self.index)

    def _take_over_if_dead(self) -> bool:
        """If the writer died, serve what recovery would, as a new follower does. Return whether it did."""
        with self._following_lock:
            if not self._following or not self._derives or self._is_kept():
                return False
            self._following = False
            self._renew()
            end = self._look_at_files()
            self.log.follow(end)
            if self._own_files is not None:
                self._dispatch(self.log.first_offset, end, Reporter(self._progress))
            self.reader.use(self.queues, self.index)
            return True

    def walk_on(self) -> None:
        """Follow also if nobody keeps positions: a RocketMQ that writes, or a writer that died.

        The records after the known end are walked, CRC included, as far as they hold: nothing is walked twice. Queues
        and index need not know of them, so `derived_holds` is over from then on.
        """
        with self._following_lock:
            self._follow()
            generation = self._generation_now()
            if self._is_kept():
                return
            self.log_files.refresh()
            known = self.ends.visible
            end = find_end(self.log_files, Trust(known, -1, "unclean stop", known), Reporter(self._progress))
            if end.offset > known and generation == self._generation_now() and not self._is_kept():
                self.log.follow(end.offset)
                self.derived_holds = False

    def _is_kept(self) -> bool:
        """Return whether a writer runs that keeps the positions."""
        if self._positions is None:
            self._positions = Positions.open(self.layout.positions)
        if self._positions is None:
            return False
        writer = self._positions.words[WRITER]
        return writer != 0 and writer_of(self.layout.lock) == writer

    def _generation_now(self) -> int:
        return self._positions.generation if self._positions is not None else 0

    def _let_go_before(self, first: int) -> None:
        """The writer deleted the log before `first`: its blocks are free once nobody holds the files."""
        self.log_files.forget_before(first)
        for queue in self.queues.open_queues():
            queue.files.forget_before(queue.first_offset(first) * ENTRY_SIZE)
        if self.index is not None:
            self.index.load()

    def wait_until(self, arrived: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the writer makes a condition true; return whether it is. Nobody notifies a follower: it polls."""
        now = time.monotonic()
        deadline, look_at = now + timeout_s, now + LOOK_S
        while now < deadline:
            self.follow()
            if now >= look_at:
                self.settle()
                look_at = now + LOOK_S
            if arrived():
                return True
            time.sleep(POLL_S)
            now = time.monotonic()
        return False

    async def until_async(self, arrived: Callable[[], bool], timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """`wait_until` for a task of an event loop."""
        import asyncio

        deadline, look_at = loop.time() + timeout_s, loop.time() + LOOK_S
        self.follow()
        while not arrived() and loop.time() < deadline:
            await asyncio.sleep(POLL_S)
            self.follow()
            if loop.time() >= look_at:
                self._take_over_if_dead()
                look_at = loop.time() + LOOK_S

    def look_again(self) -> None:
        """Do nothing: waiting threads poll."""

    def health(self) -> Health:
        """Return what the writer last told of its workers; empty if nobody writes."""
        if self._positions is None or not self._following or not self._is_kept():
            return Health()
        words = self._positions.words
        end = words[APPENDED]
        behind = {"dispatch": max(0, end - words[DISPATCHED]), "flush": max(0, end - words[DURABLE])}
        return read_health(self.layout, words[WRITER], behind)

    def stats(self) -> StoreStats:
        health = self.health()
        return StoreStats(
            first_offset=self.log.first_offset,
            appended_end=self.ends.visible,
            committed_end=self.ends.visible,
            durable_end=self._positions.words[DURABLE] if self._positions is not None else self.ends.visible,
            dispatched_end=self.ends.visible,
            file_size_bytes=self.log.file_size,
            log_file_count=len(self.log_files.starts),
            index_file_count=self.index.file_count if self.index else 0,
            topic_count=len(self.reader.topics()),
            failure=health.failure,
            workers=health.workers,
            slaves=health.slaves,
            retention=retention_stats(self.layout, self.log, self._next_cleaning()),
            damage=self.damage(),
            scar_count=len(self.scars.ranges),
            damaged_entry_count=self.reader.damaged_entry_count,
            recovery=self.recovery,
            seals=read_seal_stats(self.layout, self.log.file_size),
        )

    def _next_cleaning(self) -> int:
        return self._positions.words[NEXT_CLEANING] if self._positions is not None and self._following else 0

    def close(self) -> None:
        self._let_go()
        self._positions = None
        if self._own_files is not None:
            _remove(self._own_files, os.getpid())


def _remove(folder: Path, maker: int) -> None:
    """Remove a temporary folder; not in a forked child, which has only a copy of its maker."""
    if os.getpid() == maker:
        shutil.rmtree(folder, ignore_errors=True)
