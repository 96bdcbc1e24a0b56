"""Opening: where does the valid log end, and from where must it be dispatched again.

One procedure: take an offset up to which the log is known to be whole and dispatched, walk the records from there as
far as they hold, cut what is behind, dispatch what was walked. What differs is only the offset that is trusted:

- our checkpoint, written at a clean close, whose last record is still there: its end;
- a clean stop by RocketMQ (no `abort`): the end of the newest record that any queue names;
- neither: the beginning of the log. The queues are written again from it and cut to what it holds, and the index is
  built anew, because after a crash nothing derived is believed.

What lies behind the last whole record is a torn tail and is cut. Bytes that do not hold with whole records behind them
are damage inside the log: it is reported and passed over, and nothing is cut on its account.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from mqlake.codec.queue_entry import QueueEntry
from mqlake.files.layout import Layout
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.kernel import check_record, walk_records
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.logs.consume_queues import ConsumeQueues
from mqlake.logs.damage import next_record
from mqlake.store.checkpoint import Checkpoint

_log = logging.getLogger(__name__)


class LogEnd(NamedTuple):
    """Where the log ends, and the last record before it."""

    offset: int
    record_count: int
    last_record: int
    last_timestamp: int
    damage: tuple[tuple[int, int], ...] = ()
    """Ranges inside the log that hold no whole record."""


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
    trusted, last_record, reason = _trusted_offset(layout, log, queues, checkpoint)
    end = find_end(log, trusted)
    if end.last_record < 0:
        end = end._replace(last_record=last_record)
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
) -> tuple[int, int, str]:
    """Up to where the log is trusted, the last record before that, and why."""
    if not log.starts:
        return 0, -1, "new"
    if layout.abort.exists():
        return log.first_offset, -1, "unclean stop"
    if checkpoint is not None and checkpoint.clean and _still_holds(log, checkpoint):
        return checkpoint.dispatched, checkpoint.last_record, "checkpoint"
    newest = newest_record(log, queues)
    if newest is None:
        return log.first_offset, -1, "unclean stop"
    return newest.physical_offset + newest.size, newest.physical_offset, "clean stop"


def _still_holds(log: MappedFileQueue, checkpoint: Checkpoint) -> bool:
    """The last record that the checkpoint saw is still there: the log was not cut or replaced since."""
    if checkpoint.last_record < log.first_offset:
        return checkpoint.dispatched == log.first_offset
    file = log.file_at(checkpoint.last_record)
    if file is None:
        return False
    position = checkpoint.last_record - file.start
    size = check_record(file.pages, position, file.size, checkpoint.last_record, True)
    end = checkpoint.last_record + size
    return size > 0 and (end == checkpoint.dispatched or (end < checkpoint.dispatched == file.end))


def newest_record(log: MappedFileQueue, queues: ConsumeQueues) -> QueueEntry | None:
    """The newest record that a queue names; None where it does not hold, or no queue names any."""
    queues.log_end = log.end_offset
    entries = [queue.last_entry for _, _, queue in queues.all()]
    newest = max((entry for entry in entries if entry is not None), default=None)
    file = log.file_at(newest.physical_offset) if newest is not None else None
    if newest is None or file is None:
        return None
    size = check_record(file.pages, newest.physical_offset - file.start, file.size, newest.physical_offset, True)
    return newest if size == newest.size else None


def find_end(log: MappedFileQueue, start: int) -> LogEnd:
    """Walk the records from `start` on, CRC included, over damage where whole records follow it, to the log's end."""
    position, count, last, timestamp = start, 0, -1, 0
    damage = []
    while (file := log.file_at(position)) is not None:
        at, why, found, last_here, timestamp_here = walk_records(
            file.pages, position - file.start, file.size, file.start, True
        )
        position = file.start + at
        if found:
            count, last, timestamp = count + found, last_here, timestamp_here
        if why in (BLANK, REACHED_END):
            if file.end == log.end_offset:
                break
            position = file.end
            continue
        behind = next_record(log, position, log.end_offset, timestamp)
        if behind is None:
            break
        _log.error("%s: offset %d: %s; whole records follow from %d on", file.path, position, REASONS[why], behind)
        damage.append((position, behind))
        position = behind
    return LogEnd(position, count, last, timestamp, tuple(damage))


def cut_tail(log: MappedFileQueue, queues: ConsumeQueues, recovery: Recovery) -> None:
    """Make the files end where the log does."""
    if recovery.reason != "checkpoint" and log.starts:
        log.truncate_to(recovery.end.offset)
    queues.trust_up_to(recovery.end.offset)


def cut_queues(queues: ConsumeQueues) -> None:
    """After everything was dispatched again: zero what queues hold behind their last entry."""
    for _, _, queue in queues.all():
        queue.truncate_to(queue.end)
