"""Is the log still the one that mqlake last wrote, or did another program continue it?

Seals need to know. If nobody else wrote, a block that does not fit its seal is damaged; if RocketMQ did, it may have
cut the log and written other records there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from mqlake.codec.checkpoint import RocketCheckpoint
from mqlake.errors import BadFile
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.small_files import read_small_file
from mqlake.kernel import StoredRecord, check_record
from mqlake.store.checkpoint import Checkpoint
from mqlake.store.recovery import is_latest, is_left_over

SMALL = 1 << 20


def is_ours(layout: Layout, checkpoint: Checkpoint | None, file_at: Callable[[int], MappedFile | None]) -> bool:
    """Return whether nobody but mqlake wrote the log since our checkpoint. Nobody may be writing now.

    RocketMQ replaces `checkpoint` when it flushes, and `abort` when it starts; it removes `abort` when it stops. Beyond
    that, the checkpoint's last record must have the store time that `checkpoint` names: another store's log, put in
    place of this one, has another time there.
    """
    if checkpoint is None or not is_latest(layout, checkpoint):
        return False
    if not checkpoint.clean and not is_left_over(layout, checkpoint):
        return False
    return not _is_of_another_time(layout, checkpoint, file_at)


def _is_of_another_time(layout: Layout, checkpoint: Checkpoint, file_at: Callable[[int], MappedFile | None]) -> bool:
    """Return whether the checkpoint's last record is whole and has another store time than it had.

    A difference of one bit is damage, not another record.
    """
    try:
        content = read_small_file(layout.checkpoint, SMALL)
    except (OSError, BadFile):
        return False
    file = file_at(checkpoint.last_record) if checkpoint.last_record >= 0 else None
    if file is None or not checkpoint.rocketmq or zlib.crc32(content) != checkpoint.rocketmq[-1]:
        return False
    at = checkpoint.last_record - file.start
    size = check_record(file.pages, at, file.size, checkpoint.last_record, True) if at < file.size else 0
    if size <= 0:
        return False
    found = StoredRecord(bytes(file.pages[at : at + size])).store_timestamp
    return (found ^ RocketCheckpoint.decode(content).log_timestamp).bit_count() > 1
