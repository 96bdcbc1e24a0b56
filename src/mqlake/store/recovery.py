"""Opening: what of a store can be believed, where does its log end, and from where must it be dispatched again.

One procedure: take an offset up to which log, queues and index are known to be whole, walk the records from there as
far as they hold, cut what is behind, dispatch what was walked. What differs is only the offset that is trusted:

- `checkpoint`: ours, if nobody else wrote since, its last record is still there and queues and index have the files
  that it names. Everything derived is brought back to that moment first. The cost is that of what was written since;
- `clean stop`: RocketMQ left no `abort`. The end of the newest record that any queue names, if the queues agree with
  the last files of the log;
- `unclean stop`, or `rebuild` where derived files are lost or disagree: the beginning of the log. Queues are written
  again from it and the index is built anew.

With our checkpoint comes a watermark, up to which the log was surely on the disk. Bytes below it that do not hold are a
scar: listed, passed over, and nothing is cut on its account. Above it the first record that does not hold is the torn
tail, and the log ends there. Without a watermark the records decide: what lies behind the last whole one is the tail.
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
from mqlake.files.layout import Layout
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.positions import APPENDED, DURABLE, Positions
from mqlake.kernel import StoredRecord, check_record, dispatch_records, walk_records
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.damage import next_record
from mqlake.logs.graves import Graves, living
from mqlake.logs.key_index import KeyIndex
from mqlake.logs.scars import Scar, Scars
from mqlake.store.checkpoint import Checkpoint, read_checkpoint, rocketmq_digest

VERIFIED_FILES = 3
"""After a clean stop by RocketMQ this many of the last log files are held against the queues."""
PROGRESS_S = 1.0
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes of the log are done, and how many there are to do."""
_log = logging.getLogger(__name__)


class Trust(NamedTuple):
    """What can be believed before the log is walked."""

    offset: int
    """Up to here log, queues and index are taken as they are."""
    last_record: int
    """The record before that offset, -1 without one."""
    reason: str
    watermark: int = -1
    """The log was on the disk up to here; -1 where nothing says so."""
    checkpoint: Checkpoint | None = None
    """Ours, where it holds for the log."""

    @property
    def rebuilds(self) -> bool:
        """Queues and index are to be written again from the whole log."""
        return self.reason in ("unclean stop", "rebuild")

    @property
    def untouched(self) -> bool:
        """The store was closed by us, and nothing came after."""
        return self.reason == "checkpoint" and self.checkpoint is not None and self.checkpoint.clean


class LogEnd(NamedTuple):
    """Where the log ends, and the last record before it."""

    offset: int
    record_count: int
    last_record: int
    last_timestamp: int
    scars: tuple[Scar, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What opening found and did."""

    reason: str
    """How far the store could be believed, and why: `new`, `checkpoint`, `clean stop`, `unclean stop`, `rebuild`."""
    trusted: int
    """Up to this offset log, queues and index were taken as they are."""
    end: int
    """Where the log ends."""
    walked_count: int
    """Records behind `trusted` that were walked, CRC included."""
    dispatched_count: int
    """Records that were entered into queues and index."""
    cut_bytes: int
    """What was cut behind the log's end."""
    scars: tuple[Scar, ...]
    """Damage that the walk came upon."""
    cut_queue_count: int
    index_rebuilt: bool
    """The index was built anew from the whole log."""
    took_ms: int

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Recovery | None:
        """What the last writer's opening did; None where that is not known."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**fields, "scars": tuple(Scar(*scar) for scar in fields["scars"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


class Reporter:
    """Tells how far recovery is: once a second from the first second on, to the log and to who asked."""

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


# ---- what can be believed


def judge(
    layout: Layout,
    log: MappedFileQueue,
    queues: ConsumeQueues,
    index: KeyIndex | None,
    scars: Scars,
    foreign: frozenset[str],
    graves: Graves,
) -> Trust:
    """What can be believed of a store that nobody writes. Reads only. `foreign` topics have queues of another kind."""
    known = believe_log(layout, log, scars, graves)
    if known is not None and known.checkpoint is not None:
        whole = queues.are_whole(known.checkpoint.queue_ends, known.offset, from_zero=log.first_offset == 0)
        if whole and _index_is_whole(index, known.checkpoint, log.first_offset):
            return known
        _log.warning("%s: queues or index are not what they were: they are built again from the log", layout.root)
        return known._replace(offset=log.first_offset, last_record=-1, reason="rebuild")
    if not log.starts and not queues.topics():
        return Trust(0, -1, "new")
    if layout.abort.exists():
        return Trust(log.first_offset, -1, "unclean stop")
    newest = newest_record(log, queues)
    if newest is not None and _queues_agree(log, queues, index, newest, foreign, graves):
        return Trust(newest.physical_offset + newest.size, newest.physical_offset, "clean stop")
    if queues.topics() or _begins_with_a_record(log):  # else there is nothing to agree on
        _log.warning("%s: queues or index do not agree with the log: they are built again from it", layout.root)
    return Trust(log.first_offset, -1, "rebuild")


def _begins_with_a_record(log: MappedFileQueue) -> bool:
    file = log.file_at(log.first_offset)
    return file is not None and any(file.view(0, 8))


def believe_log(layout: Layout, log: MappedFileQueue, scars: Scars, graves: Graves) -> Trust | None:
    """What our checkpoint proves of the log alone, whatever queues and index are like; None where it proves nothing."""
    checkpoint = read_checkpoint(layout.own_checkpoint)
    if checkpoint is None or not is_latest(layout, checkpoint) or not _still_holds(log, checkpoint, scars):
        return None
    checkpoint = _without_buried(checkpoint, graves)
    watermark = _watermark(layout, log, checkpoint)
    return Trust(checkpoint.dispatched, checkpoint.last_record, "checkpoint", watermark, checkpoint)


def _without_buried(checkpoint: Checkpoint, graves: Graves) -> Checkpoint:
    """A crash may have come between the deletion of a topic and the checkpoint behind it."""
    buried = {topic for topic, end in graves.ends.items() if end >= checkpoint.dispatched}
    return replace(checkpoint, queue_ends={t: ends for t, ends in checkpoint.queue_ends.items() if t not in buried})


def is_latest(layout: Layout, checkpoint: Checkpoint) -> bool:
    """Nobody else wrote since: RocketMQ's `checkpoint` is ours, and so is an `abort` behind a clean close."""
    if rocketmq_digest(layout) not in checkpoint.rocketmq:
        return False
    return not checkpoint.clean or not layout.abort.exists() or _is_left_over(layout, checkpoint)


def abort_content(generation: int) -> str:
    """What `abort` says of its writer: the process, as RocketMQ does, and which opening of the store it was."""
    return f"{os.getpid()} mqlake {generation}"


def _is_left_over(layout: Layout, checkpoint: Checkpoint) -> bool:
    """The writer closed the store and died before it removed its `abort`."""
    try:
        return layout.abort.read_text(errors="replace").endswith(f" mqlake {checkpoint.generation}")
    except OSError:
        return False


def _still_holds(log: MappedFileQueue, checkpoint: Checkpoint, scars: Scars) -> bool:
    """The last record that the checkpoint saw is still there: the log was not cut or replaced since."""
    if checkpoint.last_record < log.first_offset:
        return checkpoint.dispatched == log.first_offset
    file = log.file_at(checkpoint.last_record)
    if file is None:
        return False
    position = checkpoint.last_record - file.start
    size = check_record(file.pages, position, file.size, checkpoint.last_record, False)
    end = checkpoint.last_record + size
    reaches = checkpoint.dispatched in (end, file.end) or scars.end_of(end) >= checkpoint.dispatched
    return size > 0 and end <= checkpoint.dispatched and reaches


def _watermark(layout: Layout, log: MappedFileQueue, checkpoint: Checkpoint) -> int:
    """Up to where the log was surely on the disk: the live word, which moves behind syncs only, may know of later."""
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
    """The newest record that a queue names; None where it does not hold, none is named, or a queue's files are bad."""
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
    graves: Graves,
) -> bool:
    """The last files of the log and the queues name the same records, up to the newest; the index has its files."""
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
        _, _, runs, keys, _, _, _ = dispatch_records(file.pages, 0, end, start, end, (), index is not None, False)
        has_keys = has_keys or bool(keys)
        if not all(run[0] in foreign or _names(queues, *run) for run in living(runs, graves.ends)):
            return False
    return index is None or not has_keys or index.file_count > 0


def _names(queues: ConsumeQueues, topic: str, queue_id: int, first: int, entries: bytes) -> bool:
    """A queue has these entries; their tags codes may differ, for they depend on settings."""
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
    """Walk the records from what is trusted to the log's end, CRC included; reads only."""
    position, count, last, timestamp = trust.offset, 0, trust.last_record, _timestamp_of(log, trust.last_record)
    scars = []
    total = log.end_offset - position
    while (file := log.file_at(position)) is not None:
        at, why, found, last_here, timestamp_here = walk_records(
            file.pages, position - file.start, file.size, file.start, True
        )
        position = file.start + at
        reporter.tell("walking", position - trust.offset, total)
        if found:
            count, last, timestamp = count + found, last_here, timestamp_here
        if why in (BLANK, REACHED_END):
            if file.end == log.end_offset:
                break
            position = file.end
            continue
        behind = _behind_damage(log, position, trust.watermark, timestamp)
        if behind is None:
            break
        scars.append(Scar(position, behind, f"{file.path.name}: {REASONS[why]}"))
        position = behind
    return LogEnd(position, count, last, timestamp, tuple(scars))


def _behind_damage(log: MappedFileQueue, position: int, watermark: int, timestamp: int) -> int | None:
    """Where the log goes on behind bytes that do not hold; None where they are its tail."""
    if watermark < 0:
        return next_record(log, position, log.end_offset, timestamp)
    if position >= watermark:
        return None
    return next_record(log, position, watermark, 0) or watermark


def _timestamp_of(log: MappedFileQueue, offset: int) -> int:
    """When a record was stored; 0 where there is none."""
    file = log.file_at(offset) if offset >= 0 else None
    if file is None:
        return 0
    at = offset - file.start
    size = check_record(file.pages, at, file.size, offset, False)
    return StoredRecord(bytes(file.pages[at : at + size])).store_timestamp if size > 0 else 0
