"""Recovery: decide how much of a store to trust, where its log ends, and from which offset to dispatch again.

There is one procedure. Take an offset up to which log, queues and index are known to be whole, walk the records from
there while they are valid, cut the log after the last one, and dispatch what was walked. Only the trusted offset
differs:

- `checkpoint`: our checkpoint's offset, if nobody else wrote since, its last record is still there, and queues and
  index have the files it names. The derived files are first restored to that moment. The cost is proportional to what
  was written since;
- `clean stop`: RocketMQ left no `abort`. The end of the newest record that any queue names, if the queues agree with
  the last files of the log;
- `unclean stop`, or `rebuild` if derived files are lost or disagree: the beginning of the log. Queues and index are
  rebuilt from there.

Our checkpoint comes with a watermark: the log was on disk up to it. Invalid bytes before the watermark are a scar:
recovery records it, skips it, and cuts nothing because of it. This holds even for the checkpoint's own last record: the
log still ends at the watermark and the queues end where the checkpoint says, so no queue offset is assigned twice.
After the watermark, the first invalid record starts the torn tail, and the log ends there. Without a watermark, the
torn tail is everything after the last whole record.

A log that was replaced since the checkpoint is detected: its newest record is not the one that its queue names.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY_SIZE, QueueEntry
from mqlake.errors import BadFile
from mqlake.files.layout import Layout
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.positions import APPENDED, DURABLE, Positions
from mqlake.files.small_files import publish_file, read_small_file
from mqlake.kernel import StoredRecord, check_record, dispatch_records
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.damage import next_record
from mqlake.logs.deleted_topics import DeletedTopics, without_deleted
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scar, Scars
from mqlake.store.checkpoint import Checkpoint, read_checkpoint, rocketmq_digest
from mqlake.store.same_log import is_same_log, last_start, refuse_misnamed, still_holds
from mqlake.store.walk import walk_file

VERIFIED_FILES = 3
"""After a clean stop by RocketMQ, this many of the last log files are compared with the queues."""
SMALL = 64 << 20
"""An upper bound for the size of `abort` and of a saved `Recovery`."""
PROGRESS_S = 1.0
Progress = Callable[[str, int, int], None]
"""Called with the name of the step, the bytes of the log processed so far, and the bytes in total."""
_log = logging.getLogger(__name__)


class Trust(NamedTuple):
    """How much of a store is trusted before its log is walked."""

    offset: int
    """Log, queues and index are trusted up to here."""
    last_record: int
    """The offset of the last record before `offset`, or -1."""
    reason: str
    watermark: int = -1
    """The log was on disk up to here; -1 if unknown."""
    checkpoint: Checkpoint | None = None
    """Our checkpoint, if it is valid for this log."""
    damaged_from: int = -1
    """The log is damaged before `offset`: the walk starts here instead. -1 if no such damage is known."""

    @property
    def rebuilds(self) -> bool:
        """Return whether queues and index must be rebuilt from the whole log."""
        return self.reason in ("unclean stop", "rebuild")

    @property
    def untouched(self) -> bool:
        """Return whether we closed the store and nothing was written since."""
        return self.reason == "checkpoint" and self.checkpoint is not None and self.checkpoint.clean


class LogEnd(NamedTuple):
    """The end of the log, and the last record before it."""

    offset: int
    record_count: int
    last_record: int
    last_timestamp: int
    scars: tuple[Scar, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What opening found and did."""

    reason: str
    """Why the store was trusted up to `trusted`: `new`, `checkpoint`, `clean stop`, `unclean stop` or `rebuild`."""
    trusted: int
    """Log, queues and index were trusted up to this offset."""
    end: int
    """Where the log ends."""
    walked_count: int
    """Records after `trusted` that were walked, with their CRCs checked."""
    dispatched_count: int
    """Records that were dispatched to queues and index."""
    cut_bytes: int
    """Bytes that were cut off after the log's end."""
    scars: tuple[Scar, ...]
    """The damage that the walk found."""
    cut_queue_count: int
    index_rebuilt: bool
    """Whether the index was rebuilt from the whole log."""
    took_ms: int

    def save(self, path: Path) -> None:
        publish_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path) -> Recovery | None:
        """Return what the last writer's recovery did; None if that is unknown."""
        try:
            fields = json.loads(read_small_file(path, SMALL))
            return cls(**{**fields, "scars": tuple(Scar(*scar) for scar in fields["scars"])})
        except (OSError, BadFile, ValueError, TypeError, KeyError):
            return None


class Reporter:
    """Reports the progress of a recovery: each step to the caller, and at most one line a second to the log."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._began = self._told = time.monotonic()

    @property
    def took_ms(self) -> int:
        return round((time.monotonic() - self._began) * 1000)

    def tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)
        if time.monotonic() - self._told >= PROGRESS_S:
            self._told = time.monotonic()
            _log.info("recovery: %s, %d of %d MiB of the log", what, done >> 20, total >> 20)


# ---- what can be trusted


def judge(
    layout: Layout,
    log: MappedFileQueue,
    queues: ConsumeQueues,
    index: KeyIndex | None,
    scars: Scars,
    foreign: frozenset[str],
    deleted_topics: DeletedTopics,
) -> Trust:
    """Decide how much of a store to trust. Reads only; nobody may be writing. `foreign` topics have batch queues.

    Raises BadFile if a log file has the name of another one, which its records show.
    """
    refuse_misnamed(layout, log)
    known = believe_log(layout, log, queues, scars, foreign, deleted_topics)
    if known is not None and known.checkpoint is not None:
        whole = queues.are_whole(known.checkpoint.queue_ends, known.offset, from_zero=log.first_offset == 0)
        if whole and _index_is_whole(index, known.checkpoint, log.first_offset):
            return known
        _log.warning("%s: queues or index changed since the checkpoint; rebuilding them from the log", layout.root)
        return known._replace(offset=log.first_offset, last_record=-1, reason="rebuild", damaged_from=-1)
    if not log.starts and not queues.topics():
        return Trust(0, -1, "new")
    if layout.abort.exists():
        return Trust(log.first_offset, -1, "unclean stop")
    newest = newest_record(log, queues)
    if newest is not None and _queues_agree(log, queues, index, newest, foreign, deleted_topics):
        return Trust(newest.physical_offset + newest.size, newest.physical_offset, "clean stop")
    if queues.topics() or _begins_with_a_record(log):  # else there is nothing to compare, and nothing to report
        _log.warning("%s: queues or index do not agree with the log; rebuilding them from it", layout.root)
    return Trust(log.first_offset, -1, "rebuild")


def _begins_with_a_record(log: MappedFileQueue) -> bool:
    file = log.file_at(log.first_offset)
    return file is not None and any(file.view(0, 8))


def believe_log(
    layout: Layout,
    log: MappedFileQueue,
    queues: ConsumeQueues,
    scars: Scars,
    foreign: frozenset[str],
    deleted_topics: DeletedTopics,
) -> Trust | None:
    """Return what our checkpoint proves about the log, regardless of queues and index; None if it proves nothing."""
    checkpoint = read_checkpoint(layout.own_checkpoint)
    if checkpoint is None or not is_latest(layout, checkpoint):
        return None
    damaged_from = -1
    if not still_holds(log, checkpoint, scars):
        if not is_same_log(log, checkpoint, queues, foreign, deleted_topics):
            _log.warning("%s: the log was replaced since the checkpoint", layout.root)
            return None
        _log.error("%s: the log is damaged before %d, its end at the checkpoint", layout.root, checkpoint.dispatched)
        damaged_from = last_start(log, checkpoint.last_record)
    checkpoint = _without_buried(checkpoint, deleted_topics)
    watermark = _watermark(layout, log, checkpoint)
    return Trust(checkpoint.dispatched, checkpoint.last_record, "checkpoint", watermark, checkpoint, damaged_from)


def _without_buried(checkpoint: Checkpoint, deleted_topics: DeletedTopics) -> Checkpoint:
    """Drop deleted topics: a crash can come between the deletion of a topic and the checkpoint after it."""
    buried = {topic for topic, end in deleted_topics.ends.items() if end >= checkpoint.dispatched}
    return replace(checkpoint, queue_ends={t: ends for t, ends in checkpoint.queue_ends.items() if t not in buried})


def is_latest(layout: Layout, checkpoint: Checkpoint) -> bool:
    """Return whether nobody else wrote since: RocketMQ's `checkpoint`, and `abort` after a clean close, are ours."""
    if rocketmq_digest(layout) not in checkpoint.rocketmq:
        return False
    return not checkpoint.clean or not layout.abort.exists() or is_left_over(layout, checkpoint)


def abort_content(generation: int) -> str:
    """Return the content of `abort`: the process id, as RocketMQ writes it, and our generation of the store."""
    return f"{os.getpid()} mqlake {generation}"


def is_left_over(layout: Layout, checkpoint: Checkpoint) -> bool:
    """Return whether the writer closed the store but died before it removed its `abort`."""
    try:
        return read_small_file(layout.abort, SMALL).endswith(b" mqlake %d" % checkpoint.generation)
    except (OSError, BadFile):
        return False


def _watermark(layout: Layout, log: MappedFileQueue, checkpoint: Checkpoint) -> int:
    """Return up to where the log was on disk.

    The durable word of the positions file can be newer than the checkpoint. It only moves after a completed sync.
    """
    durable = max(checkpoint.durable, checkpoint.dispatched)
    positions = Positions.open(layout.positions)
    if positions is not None and positions.generation == checkpoint.generation:
        words = positions.words
        if words[DURABLE] <= words[APPENDED]:
            durable = max(durable, words[DURABLE])
    return min(durable, log.end_offset)


def _index_is_whole(index: KeyIndex | None, checkpoint: Checkpoint, first_offset: int) -> bool:
    mark = checkpoint.index
    if index is None:
        return True
    if (mark.slot_count, mark.entry_count) != (index.slot_count, index.entry_count):
        return False
    if not index.has(mark.files, or_later=first_offset > checkpoint.first_offset):
        return False
    is_as_it_was = checkpoint.clean and (index.names, index.header) == (mark.files, mark.header)
    return is_as_it_was or index.holds(mark.files, mark.header)


def newest_record(log: MappedFileQueue, queues: ConsumeQueues) -> QueueEntry | None:
    """Return the newest record that a queue names; None if there is none, it is invalid, or queue files are bad."""
    if not queues.are_regular(from_zero=log.first_offset == 0):
        return None
    queues.log_end = log.end_offset
    entries = [queue.last_entry for _, _, queue in queues.each()]
    newest = max((entry for entry in entries if entry is not None), default=None)
    file = log.file_at(newest.physical_offset) if newest is not None else None
    if newest is None or file is None:
        return None
    size = check_record(file.pages, newest.physical_offset - file.start, file.size, newest.physical_offset, True)
    return newest if size == newest.size else None


def _queues_agree(
    log: MappedFileQueue,
    queues: ConsumeQueues,
    index: KeyIndex | None,
    newest: QueueEntry,
    foreign: frozenset[str],
    deleted_topics: DeletedTopics,
) -> bool:
    """Return whether the queues name the records of the last log files, up to the newest, and the index is not lost."""
    stop = newest.physical_offset + newest.size
    if index is not None and (index.misfits or index.end_offset >= log.end_offset):
        return False
    has_keys = False
    for start in log.starts[-VERIFIED_FILES:]:
        file = log.file_at(start)
        assert file is not None, "nobody deletes while a store is opened"
        end = min(stop, file.end) - start
        if end <= 0:
            break
        found = dispatch_records(file.pages, 0, end, start, end, (), index is not None, False)
        has_keys = has_keys or bool(found.keys)
        runs = without_deleted(found.runs, deleted_topics.ends)
        if not all(run[0] in foreign or _names(queues, *run) for run in runs):
            return False
    return index is None or not has_keys or index.file_count > 0


def _names(queues: ConsumeQueues, topic: str, queue_id: int, first: int, entries: bytes) -> bool:
    """Return whether a queue has these entries. Tags codes are not compared: they depend on settings."""
    if queue_id not in queues.queue_ids(topic):
        return False
    queue = queues.peek(topic, queue_id)
    first_kept = queue.files.first_offset // ENTRY_SIZE
    while first * ENTRY_SIZE < queue.files.first_offset and entries:
        first, entries = first_kept, entries[(first_kept - first) * ENTRY_SIZE :]
    while entries:
        held = bytes(queue.entries(first, min(queue.end, first + len(entries) // ENTRY_SIZE)))
        if not held or any(held[at : at + 12] != entries[at : at + 12] for at in range(0, len(held), ENTRY_SIZE)):
            return False
        first, entries = first + len(held) // ENTRY_SIZE, entries[len(held) :]
    return True


# ---- where the log ends


def find_end(log: MappedFileQueue, trust: Trust, reporter: Reporter) -> LogEnd:
    """Find the log's end: walk records, CRC included, from the trusted offset or from damage before it. Reads only."""
    start = trust.offset if trust.damaged_from < 0 else trust.damaged_from
    position, count, last, timestamp = start, 0, trust.last_record, _timestamp_of(log, trust.last_record)
    scars = []
    total = log.end_offset - position
    while (file := log.file_at(position)) is not None:
        walked = walk_file(file, position - file.start)
        position, why = file.start + walked.position, walked.why
        reporter.tell("walking", position - start, total)
        if walked.record_count:
            count, last, timestamp = count + walked.record_count, walked.last_offset, walked.last_timestamp
        if why in (BLANK, REACHED_END):
            if file.end == log.end_offset:
                break
            position = file.end
            continue
        after = _after_damage(log, position, trust.watermark, timestamp)
        if after is None:
            break
        scars.append(Scar(position, after, f"{file.path.name}: {REASONS[why]}"))
        position = after
    if trust.damaged_from >= 0 and position < trust.offset:  # readers only: a writer has recreated the file
        scars.append(Scar(max(position, log.end_offset), trust.offset, "its file is missing"))
        position = trust.offset
    return LogEnd(position, count, last, timestamp, tuple(scars))


def _after_damage(log: MappedFileQueue, position: int, watermark: int, timestamp: int) -> int | None:
    """Return where the log continues after invalid bytes; None if they are its torn tail.

    The search starts after `position`: a torn record can pass for a whole one there, and recovery must get on.
    """
    if watermark < 0:
        return next_record(log, position + 1, log.end_offset, timestamp)
    if position >= watermark:
        return None
    return next_record(log, position + 1, watermark, 0) or watermark


def _timestamp_of(log: MappedFileQueue, offset: int) -> int:
    """Return the store time of a record; 0 if there is no record."""
    file = log.file_at(offset) if offset >= 0 else None
    if file is None:
        return 0
    at = offset - file.start
    size = check_record(file.pages, at, file.size, offset, False)
    return StoredRecord(bytes(file.pages[at : at + size])).store_timestamp if size > 0 else 0
