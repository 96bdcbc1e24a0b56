"""Commit log -> consume queues and index, on one worker.

The dispatcher follows the visible end of the log, so that no consumer ever sees what a power cut could take back. It
works a stretch of records at a time, in the kernel and without the interpreter lock, and writes what it found queue by
queue. The dispatched end moves after those writes.

While messages come it looks again every few milliseconds, or at once if somebody waits for one; after a quiet moment it
sleeps until the visible end moves.

An error that can pass (a full disk, used-up descriptors) makes it retry the same step until it works. That is safe,
because writing the same entries twice changes nothing. Any other error ends it, and the store refuses puts from then
on: a message that nobody will ever see must not be acknowledged.

Other parts give it commands to run between two steps on its own thread (`run`): deleting a topic, taking the moment of
a checkpoint. So nobody else has to stop it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from mqlake.codec.queue_entry import ENTRY
from mqlake.kernel import dispatch_records
from mqlake.kernel.types import BLANK, DISPATCHED, NUDGED, REACHED_END, REASONS, VISIBLE, Dispatched, Run
from mqlake.logs.commit_log import CommitLog
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.damage import next_record
from mqlake.logs.deleted_topics import DeletedTopics, without_deleted
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scars
from mqlake.logs.topic_table import can_be_folder
from mqlake.runtime.workers import UNTIL_WOKEN, Worker, Workers

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

STRETCH_BYTES: Final = 2 << 20
MAX_STRETCH_BYTES: Final = 64 << 20
"""Log bytes of one step. Each step waits for the interpreter lock a few times, milliseconds each while a writer is
busy: the farther dispatch lags, the longer its steps."""
REST_NS: Final = 10_000_000
"""For this long it leaves the interpreter lock to threads that put, unless a thread waits for a message."""
QUIET_ROUNDS: Final = 3
MAX_QUEUE_OFFSET: Final = 1 << 58
"""Its entry's place must fit into 64 bits."""
Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


class Harvest(NamedTuple):
    """What a stretch of records holds for queues and index, and the physical offset where the next one begins."""

    found: Dispatched
    end: int


class Again(NamedTuple):
    """What dispatching a healed range again found."""

    message_count: int
    """Records with a queue entry."""
    is_whole: bool
    """Whether their queues took all entries, and the index has all keys: it takes none out of order."""


class Dispatcher:
    """Writes the derived files. `step` does the work; the worker calls it."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        scars: Scars,
        deleted_topics: DeletedTopics,
        *,
        start: int,
        delays_ms: tuple[int, ...],
        index_tags: bool,
        foreign_topics: frozenset[str],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._scars = scars
        self._deleted_topics = deleted_topics
        self._delays_ms = delays_ms
        self._index_tags = index_tags
        self._foreign_topics = foreign_topics
        self._ends = log.ends
        self.dispatched = start
        """All records before this offset are in their queues and in the index."""
        self.last_record = -1
        self.last_timestamp = 0
        self.record_count = 0
        self.rejected: list[tuple[int, int]] = []
        """Where records lie that are whole, but whose topic or queue offset no queue can take."""
        self.moved: deque[tuple[str, int]] | None = None
        """Topic and id of every queue that got entries, if somebody collects them: see `awaiting.QueueArrivals`."""
        self._commands: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._worker: Worker | None = None
        self._quiet = 0
        self._ahead: tuple[int, Future[Harvest | None]] | None = None
        """The stretch that is read while the one before it is written, and where it begins."""
        self._ends.advance(DISPATCHED, start)

    def start(self, workers: Workers, on_failure: Callable[[Exception], None]) -> None:
        """Run as a worker from now on; before, the opening thread calls `step` itself."""
        self._worker = workers.add(
            "dispatch",
            self._work,
            interrupt=self._ends.nudge,
            on_trouble=self._ends.nudge,
            on_failure=on_failure,
            behind=lambda: self._ends.promised - self.dispatched,
        )
        self._worker.start()

    @property
    def is_troubled(self) -> bool:
        """The last step failed: nothing new is to be expected for now."""
        return self._worker is not None and self._worker.is_troubled

    @property
    def failure(self) -> Exception | None:
        """Why it does not continue: for good, or until what it needs is there again."""
        return None if self._worker is None else self._worker.error

    def run(self, command: Callable[[], Answer]) -> Answer:
        """Run a command between two steps, on the dispatcher's thread; return its result or raise its error.

        No step is half done meanwhile, unless the last one failed: then it is tried again after the command.
        """
        worker = self._worker
        if worker is None or not worker.is_alive or worker.is_current:
            return command()
        future: Future[Answer] = Future()
        self._commands.append((command, future))  # type: ignore[arg-type]
        worker.wake()
        self._ends.nudge()
        while True:
            try:
                return future.result(0.1)
            except TimeoutError:
                if future.done():  # the command's own
                    raise
                if not worker.is_alive:  # it ended before it came to this command
                    self._run_commands()

    def _run_commands(self) -> None:
        while self._commands:
            try:
                command, future = self._commands.popleft()
            except IndexError:
                return
            try:
                future.set_result(command())
            except BaseException as error:
                future.set_exception(error)

    def run_to(self, limit: int, tell: Callable[[int], None]) -> None:
        """Dispatch everything before `limit` here and now; `tell` hears after each step how far it is.

        For recovery, which has nothing else to do: the next stretch is read on a second thread while one is written.
        """
        if self.dispatched >= limit:
            return
        from concurrent.futures import ThreadPoolExecutor  # a store that was closed well does without

        with ThreadPoolExecutor(1, thread_name_prefix="mqlake-recovery") as reader:
            while self.step(limit, reader):
                tell(self.dispatched)
        self._ahead = None

    def step(self, limit: int, reader: ThreadPoolExecutor | None = None) -> bool:
        """Dispatch the next stretch of records before `limit`; False if there is none. One thread at a time.

        With a `reader` the stretch after it is read meanwhile.
        """
        position = self.dispatched
        if position >= limit:
            return False
        harvest = self._next_harvest(position, limit)
        if harvest is None:  # deleted before it was dispatched
            self._advance(max(self._log.first_offset, position))
            return self.dispatched > position
        found = harvest.found
        if reader is not None and found.why in (BLANK, REACHED_END) and harvest.end < limit:
            self._ahead = harvest.end, reader.submit(self._harvest, harvest.end, limit)
        self._write(without_deleted(found.runs, self._deleted_topics.ends))
        if self._index is not None and found.keys:
            self._index.put(found.keys)
        self.record_count += found.record_count
        if found.record_count:
            self.last_record, self.last_timestamp = found.last_offset, found.last_timestamp
        position = harvest.end
        if found.why not in (BLANK, REACHED_END):
            position = self._pass_over_damage(position, limit, REASONS[found.why])
        self._advance(position)
        return True

    def _next_harvest(self, position: int, limit: int) -> Harvest | None:
        if self._ahead is not None and self._ahead[0] == position:
            return self._ahead[1].result()
        return self._harvest(position, limit)

    def _harvest(self, position: int, limit: int) -> Harvest | None:
        """Return what the next stretch of records holds for queues and index; None if the log no longer has it.

        Reads only, so it may run ahead of the step that writes it.
        """
        stretch = self._log.stretch(position, limit)
        if stretch is None:
            return None
        found = dispatch_records(
            stretch.data,
            stretch.position,
            stretch.end,
            stretch.log_start,
            min(max(STRETCH_BYTES, limit - position), MAX_STRETCH_BYTES),
            self._delays_ms,
            self._index is not None,
            self._index_tags,
        )
        return Harvest(found, stretch.log_start + (self._log.file_size if found.why == BLANK else found.position))

    def _write(self, runs: list[Run], *, proven: bool = False) -> None:
        """Write entries to their queues. What a damaged header names must neither lead elsewhere nor fill the disk."""
        placed: list[Run] = []
        refused: list[Run] = []
        for run in runs:
            if run[0] not in self._foreign_topics:
                (placed if self._can_be_placed(run) else refused).append(run)
        for topic, queue_id, first, entries in refused + self._queues.write(placed, proven=proven):
            _log.error("no queue takes entry %d of queue %d of topic %r: its record is damaged", first, queue_id, topic)
            self.rejected += [(offset, offset + size) for offset, size, _ in ENTRY.iter_unpack(entries)]
        moved = self.moved
        if moved is not None:
            moved.extend((run[0], run[1]) for run in placed)

    def _can_be_placed(self, run: Run) -> bool:
        topic, queue_id, first, _ = run
        return (self._queues.knows(topic) or can_be_folder(topic)) and queue_id >= 0 and 0 <= first < MAX_QUEUE_OFFSET

    def dispatch_again(self, start: int, end: int) -> Again:
        """Write the queue entries of a range that was healed, over the fillers of its messages. Call it through `run`.

        What was entered before the damage came stays as it is: the entries are the same.
        """
        count, is_whole = 0, True
        position, end = start, min(end, self.dispatched)
        while position < end:
            harvest = self._harvest(position, end)
            if harvest is None:
                break
            found = harvest.found
            runs = without_deleted(found.runs, self._deleted_topics.ends)
            rejected_count = len(self.rejected)
            self._write(runs, proven=True)
            count += sum(len(run[3]) // ENTRY.size for run in runs)
            is_whole = is_whole and rejected_count == len(self.rejected)
            is_whole = is_whole and (self._index is None or self._index.has_keys(found.keys))
            if found.why not in (BLANK, REACHED_END):
                break
            position = harvest.end
        return Again(count, is_whole)

    def _pass_over_damage(self, position: int, limit: int, reason: str) -> int:
        """Return where whole records continue. The queues of those that are lost get fillers."""
        known = self._scars.end_of(position)
        if known > position:
            return min(known, limit)
        after = next_record(self._log.files, position, limit, 0) or limit
        self._scars.add(position, after, reason)
        return after

    def _advance(self, dispatched: int) -> None:
        self.dispatched = dispatched
        self._ends.advance(DISPATCHED, dispatched)

    # ---- the worker

    def _work(self) -> float:
        """One round: commands, then a step; without work, a rest."""
        nudges = self._ends.nudges
        self._run_commands()
        if self.step(self._ends.visible):
            self._quiet = 0
        elif self._worker is not None and self._worker.stopping:
            return UNTIL_WOKEN
        elif self._quiet < QUIET_ROUNDS and not self._ends.awaited:
            self._quiet += 1
            self._ends.rest(REST_NS, nudges)
        elif self._ends.wait(VISIBLE, self.dispatched + 1, -1, nudges) == NUDGED:
            self._quiet = 0
        return 0

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._run_commands()
