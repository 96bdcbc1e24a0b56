"""Check that the log is the one that the checkpoint describes, and that its files have their own names. Reads only.

Each record holds its own physical offset, so the first record of a file shows where the file belongs. A queue entry
names the physical offset and size of the record with its queue offset, so the newest whole record shows whether the log
was replaced.
"""

from __future__ import annotations

import os

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, QueueEntry
from mqlake.errors import BadFile, StoreError
from mqlake.files.layout import Layout
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name
from mqlake.kernel import check_record, dispatch_records, find_record
from mqlake.kernel.types import BLANK, REACHED_END
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.deleted_topics import DeletedTopics, without_deleted
from mqlake.logs.scars import Scars
from mqlake.store.checkpoint import Checkpoint

RECORD_MAGIC, RECORD_OFFSET_AT = b"\xda\xa3\x20", 28
"""What both versions of a record have at position 4, and where a record's own physical offset is."""
COMPARED_FILES = 3
"""This many of the last log files are searched for a record to compare with its queue."""


def refuse_misnamed(layout: Layout, log: MappedFileQueue) -> None:
    """Raise BadFile if a log file has the name of another one. Costs one small read per file."""
    known = set(log.starts)
    for start in log.starts:
        claimed = _claimed_start(log, start)
        if claimed == start or claimed % log.file_size:
            continue
        file = log.file_at(start)
        assert file is not None, "nobody deletes while a store is opened"
        is_whole = check_record(file.pages, 0, file.size, claimed, True) > 0
        if not is_whole or find_record(file.pages, 0, file.size, start, True) < file.size:
            continue  # only its first record is damaged; others are in their place
        if claimed in known and _claimed_start(log, claimed) == claimed:
            continue  # the claimed file exists: this one is damaged from end to end
        raise BadFile(
            file.path,
            f"records of the file {file_name(claimed)}",
            f"records from {start} on; run: mqlake repair {layout.root}",
        )


def _claimed_start(log: MappedFileQueue, start: int) -> int:
    """Return where a log file starts according to its first record; `start` if it does not begin with one."""
    descriptor = os.open(log.directory / file_name(start), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        header = os.pread(descriptor, RECORD_OFFSET_AT + 8, 0)
    finally:
        os.close(descriptor)
    if header[4:7] != RECORD_MAGIC:
        return start
    return int.from_bytes(header[RECORD_OFFSET_AT:], "big", signed=True)


def still_holds(log: MappedFileQueue, checkpoint: Checkpoint, scars: Scars) -> bool:
    """Return whether the checkpoint's last record is still there: the log was not cut or replaced since."""
    if checkpoint.last_record < log.first_offset:
        return checkpoint.dispatched == log.first_offset
    file = log.file_at(checkpoint.last_record)
    if file is None:
        return False
    position = checkpoint.last_record - file.start
    size = check_record(file.pages, position, file.size, checkpoint.last_record, True)
    end = checkpoint.last_record + size
    reaches = checkpoint.dispatched in (end, file.end) or scars.end_of(end) >= checkpoint.dispatched
    return size > 0 and end <= checkpoint.dispatched and reaches


def is_same_log(
    log: MappedFileQueue,
    checkpoint: Checkpoint,
    queues: ConsumeQueues,
    foreign: frozenset[str],
    deleted_topics: DeletedTopics,
) -> bool:
    """Return whether a log without the checkpoint's last record was damaged, and not replaced by another log.

    In another log, the newest whole record is not the one that the queue names at its queue offset. If nothing is left
    to compare, it is damage.
    """
    newest = _newest_dispatched(log, checkpoint.dispatched, foreign, deleted_topics)
    if newest is None:
        return True
    topic, queue_id, queue_offset, entry = newest
    if queue_offset >= checkpoint.queue_ends.get(topic, {}).get(queue_id, 0):
        return False
    if queue_id not in queues.queue_ids(topic):  # lost as well
        return True
    try:
        held = queues.peek(topic, queue_id).entry(queue_offset)
    except StoreError:  # its files are damaged as well, and prove nothing
        return True
    return held is None or held.size <= 0 or held[:2] == entry[:2]


def _newest_dispatched(
    log: MappedFileQueue, stop: int, foreign: frozenset[str], deleted_topics: DeletedTopics
) -> tuple[str, int, int, QueueEntry] | None:
    """Return topic, queue, queue offset and entry of the newest whole record before `stop` that is in a queue."""
    for start in [start for start in reversed(log.starts) if start < stop][:COMPARED_FILES]:
        file = log.file_at(start)
        assert file is not None, "nobody deletes while a store is opened"
        position, end, found = 0, min(stop, file.end) - start, []
        while position < end:
            position, why, runs, *_ = dispatch_records(file.pages, position, end, start, end, (), False, False)
            for topic, queue_id, first, entries in without_deleted(runs, deleted_topics.ends):
                count = len(entries) // ENTRY_SIZE
                if topic not in foreign and count:
                    last = QueueEntry(*ENTRY.unpack_from(entries, (count - 1) * ENTRY_SIZE))
                    found.append((last, topic, queue_id, first + count - 1))
            if why in (BLANK, REACHED_END):
                break
            position = find_record(file.pages, position + 1, end, start, True)
        if found:
            entry, topic, queue_id, queue_offset = max(found)
            return topic, queue_id, queue_offset, entry
    return None


def last_start(log: MappedFileQueue, offset: int) -> int:
    """Return the start of the last file at or before an offset; the log's first offset if there is none."""
    return next((start for start in reversed(log.starts) if start <= offset), log.first_offset)
