"""Count how many packed records the log already holds from a given physical offset on."""

from __future__ import annotations

from mqlake.errors import CorruptRecord
from mqlake.kernel import match_packed as match_in_file
from mqlake.kernel.types import BLANK, OTHER_RECORD, REACHED_END, REASONS, Readable
from mqlake.logs.commit_log import CommitLog
from mqlake.message import StoredMessage


def match_packed(log: CommitLog, start: int, end: int, timestamp: int, packed: Readable) -> tuple[int, int]:
    """Return how many bytes of `packed` are already at the start of log range [start, end), and where they end there.

    Only records with the store time `timestamp` count. Raises CorruptRecord if the answer is unclear: on damage, or on
    a record of the same time that is not one of the packed ones.
    """
    at = 0
    while at < len(packed) and start < end:
        stretch = log.stretch(start, end)
        if stretch is None:
            raise CorruptRecord(log.files.directory, start, "its file is missing")
        position, at, why = match_in_file(
            stretch.data, stretch.position, stretch.end, stretch.log_start, timestamp, packed, at
        )
        start = stretch.log_start + (log.file_size if why == BLANK else position)
        if why == OTHER_RECORD:
            if StoredMessage(log.record_at(start, end)).store_timestamp == timestamp:
                raise CorruptRecord(stretch.file, start, "it is not the record that was written here")
            break
        if why not in (BLANK, REACHED_END):
            raise CorruptRecord(stretch.file, start, REASONS[why])
    return at, start
