"""A consume queue: one queue of one topic, with the physical offset of each message.

Invariant: entry i is the 20 bytes at i * ENTRY_SIZE, for every i in [first offset, end). An entry's queue offset is
its position, so it is not stored here, and an entry never moves. Writing the same entries twice changes nothing.

The entries are derived from the commit log, so they carry no checksum and may reach the disk late. Recovery drops those
that point past the log's end, and dispatch rewrites them.

Only the dispatcher writes, and through the descriptor: queue files are sparse, and a full disk must raise an error, not
SIGBUS. Any thread reads: it takes `end` once and stays before it.

This object serves a queue that is in use. The end of every queue, and what is not yet on disk, is kept in tables that
the queues of a store share, so that the object can be dropped while other queues are used.
"""

from __future__ import annotations

from pathlib import Path

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER, FILLER_SIZE, QueueEntry
from mqlake.files.mapped_file import MappedFile
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name
from mqlake.files.unsynced import Unsynced
from mqlake.kernel import count_valid_entries
from mqlake.runtime.locks import make_global_lock

MAX_GAP_BYTES = 64 << 20
"""A queue offset that jumps by more is damaged."""
UNKNOWN = -1
"""The end of a queue that was not searched for yet."""
NO_MESSAGE = QueueEntry(*ENTRY.unpack(FILLER))
_advancing = make_global_lock("queue")


class ConsumeQueue:
    """The entries of one queue."""

    __slots__ = ("__weakref__", "_ends", "_first", "_queue_id", "_unsynced", "files", "was_used")

    def __init__(
        self,
        directory: Path,
        file_size: int,
        *,
        writable: bool,
        scratch: Path | None = None,
        ends: dict[int, int] | None = None,
        unsynced: Unsynced | None = None,
    ) -> None:
        """`ends` holds the ends of the topic's queues by queue id and is shared; the folder is named after the id.

        `unsynced` collects the names of what `sync` must write to disk. Without these two, the queue has its own.
        """
        self.files = MappedFileQueue(
            directory, file_size, writable=writable, scratch=scratch, strict=False, bounded=True
        )
        self._queue_id = int(directory.name) if ends is not None else 0
        self._ends = ends if ends is not None else {0: 0}
        self._unsynced = unsynced if unsynced is not None else Unsynced()
        self._first = (-1, 0)
        """The log's first offset at the last search, and the first entry found. One tuple, because readers race."""
        self.was_used = False
        """Set on use: a queue that was not used since the last check may be closed."""

    @property
    def end(self) -> int:
        """The queue offset after the last entry."""
        return self._ends[self._queue_id]

    @end.setter
    def end(self, end: int) -> None:
        self._ends[self._queue_id] = end

    def load(self, log_end: int, end: int | None = None) -> None:
        """Load the files. Without an `end` to trust, find the last whole entry that points into the log.

        The end is only written if it rises: dispatch may append to the closed queue while a reader loads it, and the
        end it has moved must not be moved back.
        """
        self.files.load()
        least = self._find_end(log_end) if end is None else max(end, self.files.first_offset // ENTRY_SIZE)
        if self.end < least:
            self.end = least

    def _find_end(self, log_end: int) -> int:
        for start in reversed(self.files.starts):
            file = self.files.file_at(start)
            if file is not None:
                count = count_valid_entries(file.view(0, file.data_end(0)), log_end)
                if count:
                    return start // ENTRY_SIZE + count
        return self.files.first_offset // ENTRY_SIZE

    def follow(self, log_end: int) -> None:
        """Advance to the entries that another process has written since. Any thread of a follower may call it."""
        end = self.end
        while True:
            file = self.files.file_at(end * ENTRY_SIZE)
            if file is None:
                self.files.refresh()
                file = self.files.file_at(end * ENTRY_SIZE)
                if file is None:
                    break
            position = end * ENTRY_SIZE - file.start
            end += count_valid_entries(file.view(position, file.data_end(position)), log_end)
            if end * ENTRY_SIZE < file.end:
                break
        with _advancing:  # a slow thread must not move the end back
            self.end = max(self.end, end)

    def write(self, first: int, entries: bytes, no_message: bytes | None = None, *, proven: bool = False) -> bool:
        """Write entries at queue offset `first`. Return False if that is before the queue or too far after its end.

        A queue that begins above 0 gets fillers. So do messages that were lost before these: `no_message` each
        (`entry_of_no_message`), or the first of `entries` if there is none. If an entry already names another record,
        in the order of the log, then the new record's queue offset is damaged, and the result is False. `proven`: the
        records were healed, so that their queue offsets are right.
        """
        position = first * ENTRY_SIZE
        if first < self.end and not self._may_replace(first, entries, proven):
            return False
        if not self.files.starts:
            self._begin_at(position)
        elif position < self.files.first_offset or position > self.end * ENTRY_SIZE + MAX_GAP_BYTES:
            return False
        elif first > self.end:
            self._fill(self.end * ENTRY_SIZE, position, no_message or entries[:ENTRY_SIZE])
        self._write_bytes(position, memoryview(entries))
        self.end = max(self.end, first + len(entries) // ENTRY_SIZE)
        return True

    def _may_replace(self, first: int, entries: bytes, proven: bool) -> bool:
        """Return whether entries may be written here: over equal ones, those of lost messages, zeros, or one that is
        out of order.
        """
        count = len(entries) // ENTRY_SIZE
        for number in range(first, min(first + count, self.end)):
            old = self.entry(number)
            new = QueueEntry(*ENTRY.unpack_from(entries, (number - first) * ENTRY_SIZE))
            if old is None or old.size in (FILLER_SIZE, 0) or old[:2] == new[:2]:
                continue
            if new.physical_offset < old.physical_offset and self._stands_for_lost(number, old):
                continue
            if number > first:
                before = ENTRY.unpack_from(entries, (number - first - 1) * ENTRY_SIZE)[0]
            else:
                neighbour = self.entry(number - 1) if number else None
                known = neighbour is not None and neighbour.size != FILLER_SIZE and neighbour != old
                unknown = -1 if count == 1 and not proven else 1 << 63  # adjacent records prove each other
                before = neighbour.physical_offset if neighbour is not None and known else unknown
            if before < old.physical_offset:
                return False
        return True

    def _stands_for_lost(self, number: int, entry: QueueEntry) -> bool:
        """Return whether the message of an entry was lost, so that the entry names the next one that is left."""
        while number + 1 < self.end:
            number += 1
            following = self.entry(number)
            if following is None or following.physical_offset >= entry.physical_offset:
                return following == entry
        return False

    def fill_to(self, end: int, no_message: bytes | None) -> None:
        """Move the end to `end` with entries of lost messages: `no_message` each (`entry_of_no_message`), but the last.

        RocketMQ takes the last entry of a queue for the end of what is dispatched, so it must name a message. It names
        the queue's last one, which consumers get once more. So do the others if there is no `no_message`.
        """
        if end <= self.end:
            return
        if not self.files.starts:
            self._begin_at(end * ENTRY_SIZE)
        else:
            position = (end - 1) * ENTRY_SIZE
            named = ENTRY.pack(*(self.entry(self.end - 1) or NO_MESSAGE))
            self._fill(self.end * ENTRY_SIZE, position, no_message or named)
            self._write_bytes(position, memoryview(named))
        self.end = end

    def _begin_at(self, position: int) -> None:
        start = position - position % self.files.file_size
        self._create(start)
        self._fill(start, position, FILLER)

    def _create(self, start: int) -> None:
        self.files.create(start)
        self._unsynced.add([str(self.files.directory)])  # last: a sync before it would find no folder yet

    def _fill(self, position: int, stop: int, filler: bytes) -> None:
        while position < stop:
            size = min(stop, position - position % self.files.file_size + self.files.file_size) - position
            self._write_bytes(position, memoryview(filler * (size // ENTRY_SIZE)))
            position += size

    def _write_bytes(self, position: int, data: memoryview) -> None:
        while data:
            file = self._file_for(position)
            at = position - file.start
            part = data[: file.size - at]
            file.write_at(at, part)
            self._unsynced.add([f"{self.files.directory}/{file_name(file.start)}"])
            data = data[len(part) :]
            position += len(part)

    def _file_for(self, position: int) -> MappedFile:
        file = self.files.file_at(position)
        while file is None:
            self._create(self.files.end_offset)
            file = self.files.file_at(position)
        return file

    def first_offset(self, log_first: int) -> int:
        """Return the first entry whose message is still in a log that begins at `log_first`; `end` if there is none."""
        known_for, first = self._first
        if known_for != log_first or first > self.end:
            low, high = self.files.first_offset // ENTRY_SIZE, self.end
            while low < high:
                middle = seen = (low + high) // 2
                entry = self.entry(seen)
                while entry is not None and entry != NO_MESSAGE and entry.size == FILLER_SIZE and seen < high:
                    seen += 1  # a filler in the middle stands for a lost message: the next message decides
                    entry = self.entry(seen)
                if seen < high and (entry is None or entry == NO_MESSAGE or entry.physical_offset < log_first):
                    low = seen + 1
                else:
                    high = middle
            self._first, first = (log_first, low), low
        return first

    def entry(self, number: int) -> QueueEntry | None:
        """Return the entry at queue offset `number`; None if its file was deleted."""
        file = self.files.file_at(number * ENTRY_SIZE)
        if file is None:
            return None
        return QueueEntry(*ENTRY.unpack_from(file.pages, number * ENTRY_SIZE - file.start))

    def entries(self, start: int, stop: int) -> memoryview:
        """Return entries [start, stop) without a copy, up to the end of their file; empty if it was deleted."""
        file = self.files.file_at(start * ENTRY_SIZE)
        if file is None:
            return memoryview(b"")
        position = start * ENTRY_SIZE - file.start
        return file.view(position, min(file.size, position + (stop - start) * ENTRY_SIZE))

    def delete_before(self, log_first: int) -> int:
        """Delete files that only name messages before the log. Return how many. The last file stays: it holds the end.

        Call this only after the log's new beginning is durable: a queue must never begin after its log.
        """
        try:
            return self.files.delete_before(self.first_offset(log_first) * ENTRY_SIZE)
        except FileNotFoundError:
            if not self.files.starts:  # the whole queue was deleted meanwhile
                return 0
            raise

    def abandon(self) -> None:
        """Detach the object from a deleted queue: readers see an empty queue, and nothing is left to sync."""
        self.files.forget_all()
        self._ends = {self._queue_id: 0}
        self._first = (-1, 0)

    def truncate_to(self, end: int) -> bool:
        """Remove the entries from `end` on. Return whether there were any."""
        self.end = min(self.end, end)
        return self.files.truncate_to(end * ENTRY_SIZE) > 0

    def sync(self) -> None:
        """Make the written entries and the names of new files durable."""
        self._unsynced.sync()

    @property
    def last_entry(self) -> QueueEntry | None:
        """The last entry; None if it is a filler or there is none."""
        entry = self.entry(self.end - 1) if self.end > self.files.first_offset // ENTRY_SIZE else None
        return None if entry is None or entry.size == FILLER_SIZE else entry
