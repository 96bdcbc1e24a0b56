"""Opening: where does the valid log end, and from where must it be dispatched again.

One procedure: take an offset up to which the log is known to be whole and dispatched, walk the records from there as
far as they hold, cut what is behind, dispatch what was walked. What differs is only the offset that is trusted:

- our checkpoint, written at a clean close, whose last record is still there: its end;
- a clean stop by RocketMQ (no `abort`): the end of the newest record that any queue names;
- neither: the beginning of the log. The queues are written again from it and cut to what it holds, and the index is
  built anew, because after a crash nothing derived is believed.

What lies behind the last whole record is a torn tail and is cut, unless whole records lie behind it: then it is
damage inside the log, and opening for writing refuses, because cutting there would lose them.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from mqlake.errors import CorruptRecord
from mqlake.files.layout import Layout
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.kernel import check_record, find_record, walk_records
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.store.checkpoint import Checkpoint

_log = logging.getLogger(__name__)


class LogEnd(NamedTuple):
    """Where the log ends, and the last record before it."""

    offset: int
    record_count: int
    last_record: int
    last_timestamp: int


class Recovery(NamedTuple):
    """What opening found."""

    end: LogEnd
    trusted: int
    """Up to here log, queues and index were taken as they are."""
    reason: str
    """Why that far: `checkpoint`, `clean stop`, `unclean stop`, `queues` or `new`."""
    took_ms: int

    @property
    def rebuilds(self) -> bool:
        """Queues and index are to be written again from the whole log."""
        return self.reason == "unclean stop"


def recover(layout: Layout, log: MappedFileQueue, queues: ConsumeQueues, checkpoint: Checkpoint | None) -> Recovery:
    """Find the log's end and what can be trusted. Reads only; `cut_tail` does the cutting."""
    began = time.monotonic()
    trusted, reason = _trusted_offset(layout, log, queues, checkpoint)
    end = find_end(log, trusted)
    took = round((time.monotonic() - began) * 1000)
    if took > 1000:
        _log.info(
            "recovery (%s) walked %d records from %d to %d in %d ms",
            reason,
            end.record_count,
            trusted,
            end.offset,
            took,
        )
    return Recovery(end, trusted, reason, took)


def _trusted_offset(
    layout: Layout, log: MappedFileQueue, queues: ConsumeQueues, checkpoint: Checkpoint | None
) -> tuple[int, str]:
    if not log.starts:
        return 0, "new"
    if layout.abort.exists():
        return log.first_offset, "unclean stop"
    if checkpoint is not None and checkpoint.clean and _still_holds(log, checkpoint):
        return checkpoint.dispatched, "checkpoint"
    newest = newest_record_end(log, queues)
    if newest is None:
        return log.first_offset, "unclean stop"
    return newest, "clean stop"


def _still_holds(log: MappedFileQueue, checkpoint: Checkpoint) -> bool:
    """The last record that the checkpoint saw is still there: the log was not cut or replaced since."""
    if checkpoint.last_record < log.first_offset:
        return checkpoint.dispatched >= log.first_offset and checkpoint.last_record < 0
    file = log.file_at(checkpoint.last_record)
    if file is None:
        return False
    position = checkpoint.last_record - file.start
    size = check_record(file.pages, position, file.size, checkpoint.last_record, True)
    end = checkpoint.last_record + size
    return size > 0 and (end == checkpoint.dispatched or (end < checkpoint.dispatched == file.end))


def newest_record_end(log: MappedFileQueue, queues: ConsumeQueues) -> int | None:
    """The end of the newest record that a queue names; None where a queue disagrees with the log, or none names any."""
    queues.log_end = log.end_offset
    newest = max((queue.newest_record_end for _, _, queue in queues.all()), default=0)
    if newest <= log.first_offset:
        return None
    for _, _, queue in queues.all():
        entry = queue.entry(queue.end - 1)
        if entry is not None and queue.newest_record_end == newest:
            file = log.file_at(entry.physical_offset)
            if file is None:
                return None
            size = check_record(file.pages, entry.physical_offset - file.start, file.size, entry.physical_offset, True)
            return newest if size == entry.size else None
    return None


def find_end(log: MappedFileQueue, start: int) -> LogEnd:
    """Walk the records from `start` on, CRC included, to the end of the valid log."""
    position, count, last, timestamp = start, 0, -1, 0
    while True:
        file = log.file_at(position)
        if file is None:
            return LogEnd(position, count, last, timestamp)
        at, why, found, last_here, timestamp_here = walk_records(
            file.pages, position - file.start, file.size, file.start, True
        )
        position = file.start + at
        if found:
            count, last, timestamp = count + found, last_here, timestamp_here
        if why in (BLANK, REACHED_END) and file.end < log.end_offset:
            position = file.end
            continue
        if why != BLANK:
            behind = _record_behind(log, position, timestamp)
            if behind is not None:
                raise CorruptRecord(
                    file.path,
                    position,
                    f"{REASONS[why]}; whole records follow from {behind} on, so the log is not cut here: "
                    "open it with read_only=True",
                )
        return LogEnd(position, count, last, timestamp)


def _record_behind(log: MappedFileQueue, position: int, timestamp: int) -> int | None:
    """A whole record behind the end that is not older than what is before it: not the remains of an earlier life."""
    while (file := log.file_at(position)) is not None:
        for start, stop in file.data_ranges(position - file.start):
            at = find_record(file.pages, start, stop, file.start, True)
            if at < stop:
                _, _, _, _, found_timestamp = walk_records(file.pages, at, stop, file.start, False)
                return file.start + at if found_timestamp >= timestamp else None
        position = file.end
    return None


def cut_tail(log: MappedFileQueue, queues: ConsumeQueues, recovery: Recovery) -> None:
    """Make the files end where the log does."""
    if recovery.reason != "checkpoint" and log.starts:
        log.truncate_to(recovery.end.offset)
    queues.trust_up_to(recovery.end.offset)


def cut_queues(queues: ConsumeQueues) -> None:
    """After everything was dispatched again: zero what queues hold behind their last entry."""
    for _, _, queue in queues.all():
        queue.truncate_to(queue.end)
