"""A batch consume queue of RocketMQ 5: one entry of 46 bytes per record, which holds one or more messages.

Invariant: base offsets rise, and each entry covers [base_offset, base_offset + message_count). An entry's number is
not a queue offset; a queue offset is found by binary search over the bases. Read only: RocketMQ writes these files.
"""

from __future__ import annotations

from pathlib import Path

from mqlake.codec.queue_entry import BATCH_ENTRY, BATCH_ENTRY_SIZE, BatchEntry
from mqlake.errors import StoreError
from mqlake.files.mapped_file_queue import MappedFileQueue


class BatchQueue:
    """The entries of one batch queue."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.files = MappedFileQueue(directory, file_size, writable=False, bounded=True)
        self._first_number = 0
        self._end_number = 0
        self.damage: StoreError | None = None
        """Why its files cannot be used. Then it has no entries, and reading it raises this; other queues go on."""

    def load(self, log_end: int) -> None:
        """Load the files and find the entries that are whole and point into the log."""
        try:
            self.files.load()
        except StoreError as error:
            self.damage = error
            return
        number = self._first_number = self.files.first_offset // BATCH_ENTRY_SIZE
        while True:
            entry = self.entry(number)
            if entry is None or entry.physical_offset < 0 or entry.size <= 0 or entry.message_count <= 0:
                break
            if entry.physical_offset + entry.size > log_end:
                break
            number += 1
        self._end_number = number

    def entry(self, number: int) -> BatchEntry | None:
        file = self.files.file_at(number * BATCH_ENTRY_SIZE)
        if file is None:
            return None
        return BatchEntry(*BATCH_ENTRY.unpack_from(file.pages, number * BATCH_ENTRY_SIZE - file.start))

    def first_offset(self, log_first: int) -> int:
        """Return the first queue offset whose record is still in the log. Costs a walk over the entries."""
        for number in range(self._first_number, self._end_number):
            entry = self.entry(number)
            if entry is not None and entry.physical_offset >= log_first:
                return entry.base_offset
        return self.end

    @property
    def end(self) -> int:
        """Return the queue offset after the last message."""
        entry = self.entry(self._end_number - 1) if self._end_number > self._first_number else None
        return 0 if entry is None else entry.base_offset + entry.message_count

    def entries_from(self, queue_offset: int, limit: int) -> list[BatchEntry]:
        """Return at most `limit` entries, starting with the one that covers `queue_offset`."""
        low, high = self._first_number, self._end_number
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and entry.base_offset + entry.message_count <= queue_offset:
                low = middle + 1
            else:
                high = middle
        stop = min(low + limit, self._end_number)
        return [entry for number in range(low, stop) if (entry := self.entry(number)) is not None]
