"""One queue of one topic: where each of its messages lies in the commit log.

Invariant: entry i is the 20 bytes at i * ENTRY_SIZE, for every i in [first offset, end). An entry's queue offset is
its position, so it is not stored here, and an entry never moves. Writing the same entries twice changes nothing.

Derived data. All of it can be rebuilt from the commit log, so entries carry no checksum and may reach the disk late;
opening drops those that point past the log's end, and dispatch writes them again.

One thread writes, the dispatcher, through the descriptor: queue files are sparse, and a full disk must be an error and
not a bus error. Any thread reads: it takes `end` once and stays below it.
"""

from __future__ import annotations

from pathlib import Path

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER, FILLER_SIZE, QueueEntry
from mqlake.files.mapped_file import MappedFile, sync_directory
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.kernel import count_valid_entries

MAX_GAP_BYTES = 64 << 20
"""A queue offset that jumps by more is a damaged one."""
NO_MESSAGE = QueueEntry(*ENTRY.unpack(FILLER))


class ConsumeQueue:
    """The entries of one queue."""

    def __init__(self, directory: Path, file_size: int, *, writable: bool, scratch: Path | None = None) -> None:
        self.files = MappedFileQueue(directory, file_size, writable=writable, scratch=scratch, strict=False)
        self.end = 0
        """The number behind the last entry."""
        self._dirty: set[int] = set()
        self._new_names = False
        self._first = (-1, 0)
        """Where the log began when it was last asked, and the first entry then: one value, for readers race."""

    def load(self, log_end: int, end: int | None = None) -> None:
        """Take the queue up to `end` as it is; else find the last entry that is whole and points into the log."""
        self.files.load()
        self.end = self._find_end(log_end) if end is None else max(end, self.files.first_offset // ENTRY_SIZE)

    def _find_end(self, log_end: int) -> int:
        for start in reversed(self.files.starts):
            file = self.files.file_at(start)
            if file is not None:
                count = count_valid_entries(file.pages, log_end)
                if count:
                    return start // ENTRY_SIZE + count
        return self.files.first_offset // ENTRY_SIZE

    def follow(self, log_end: int) -> None:
        """A reader's `load`, from where it was: another process writes the queue."""
        while True:
            file = self.files.file_at(self.end * ENTRY_SIZE)
            if file is None:
                self.files.refresh()
                file = self.files.file_at(self.end * ENTRY_SIZE)
                if file is None:
                    return
            position = self.end * ENTRY_SIZE - file.start
            self.end += count_valid_entries(file.view(position, file.size), log_end)
            if self.end * ENTRY_SIZE < file.end:
                return

    def write(self, first: int, entries: bytes) -> bool:
        """Put entries in their place; False where that lies before the queue or too far behind its end.

        A queue that begins above 0, or whose messages before these were lost, is filled up with entries of no message.
        Those in the middle carry the offset of the message behind them, so that offsets rise along the queue.
        Where an entry names another record already, and in the order of the log, the number of the new one is damaged:
        False.
        """
        position = first * ENTRY_SIZE
        if first < self.end and not self._may_replace(first, entries):
            return False
        if not self.files.starts:
            self._begin_at(position)
        elif position < self.files.first_offset or position > self.end * ENTRY_SIZE + MAX_GAP_BYTES:
            return False
        elif first > self.end:
            self._fill(self.end * ENTRY_SIZE, position, entries[:8] + FILLER[8:])
        self._write_bytes(position, memoryview(entries))
        self.end = max(self.end, first + len(entries) // ENTRY_SIZE)
        return True

    def _may_replace(self, first: int, entries: bytes) -> bool:
        """Entries that are there may be written again, and take the place of none, or of one that is out of order."""
        count = len(entries) // ENTRY_SIZE
        for number in range(first, min(first + count, self.end)):
            old = self.entry(number)
            new = QueueEntry(*ENTRY.unpack_from(entries, (number - first) * ENTRY_SIZE))
            if old is None or old.size in (FILLER_SIZE, 0) or old[:2] == new[:2]:
                continue
            if number > first:
                before = ENTRY.unpack_from(entries, (number - first - 1) * ENTRY_SIZE)[0]
            else:
                neighbour = self.entry(number - 1) if number else None
                known = neighbour is not None and neighbour.size != FILLER_SIZE
                before = neighbour.physical_offset if neighbour is not None and known else -1 if count == 1 else 1 << 63
            if before < old.physical_offset:
                return False
        return True

    def fill_to(self, end: int) -> None:
        """Number what comes next from `end` on: the messages before are no longer in the log."""
        if end <= self.end:
            return
        if not self.files.starts:
            self._begin_at(end * ENTRY_SIZE)
        else:
            last = self.entry(self.end - 1) or NO_MESSAGE
            filler = ENTRY.pack(last.physical_offset, FILLER_SIZE, 0)
            self._fill(self.end * ENTRY_SIZE, end * ENTRY_SIZE, filler)
        self.end = end

    def _begin_at(self, position: int) -> None:
        start = position - position % self.files.file_size
        self._create(start)
        self._fill(start, position, FILLER)

    def _create(self, start: int) -> None:
        self.files.create(start, reserve=False)
        self._new_names = True  # last: a checkpoint that comes before has no need of it, and might find no folder yet

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
            self._dirty.add(file.start)
            data = data[len(part) :]
            position += len(part)

    def _file_for(self, position: int) -> MappedFile:
        file = self.files.file_at(position)
        while file is None:
            self._create(self.files.end_offset)
            file = self.files.file_at(position)
        return file

    def first_offset(self, log_first: int) -> int:
        """The first entry whose message is still in the log, which begins at `log_first`; `end` where none is."""
        known_for, first = self._first
        if known_for != log_first or first > self.end:
            low, high = self.files.first_offset // ENTRY_SIZE, self.end
            while low < high:
                middle = seen = (low + high) // 2
                entry = self.entry(seen)
                while entry is not None and entry != NO_MESSAGE and entry.size == FILLER_SIZE and seen < high:
                    seen += 1  # one in the middle stands for a lost message: the message behind it decides
                    entry = self.entry(seen)
                if seen < high and (entry is None or entry == NO_MESSAGE or entry.physical_offset < log_first):
                    low = seen + 1
                else:
                    high = middle
            self._first, first = (log_first, low), low
        return first

    def entry(self, number: int) -> QueueEntry | None:
        """Entry `number`; None where its file is gone."""
        file = self.files.file_at(number * ENTRY_SIZE)
        if file is None:
            return None
        return QueueEntry(*ENTRY.unpack_from(file.pages, number * ENTRY_SIZE - file.start))

    def entries(self, start: int, stop: int) -> memoryview:
        """Entries [start, stop) as bytes, without a copy, as far as they lie in one file; empty where it is gone."""
        file = self.files.file_at(start * ENTRY_SIZE)
        if file is None:
            return memoryview(b"")
        position = start * ENTRY_SIZE - file.start
        return file.view(position, min(file.size, position + (stop - start) * ENTRY_SIZE))

    def delete_before(self, log_first: int) -> int:
        """Delete files that name only messages before the log's first; how many went. The last stays: it has the end.

        Who has `log_first` on the disk, and only then, may call this: a queue never begins behind its log.
        """
        try:
            return self.files.delete_before(self.first_offset(log_first) * ENTRY_SIZE)
        except FileNotFoundError:
            if not self.files.starts:  # the whole queue was deleted meanwhile
                return 0
            raise

    def abandon(self) -> None:
        """The queue was deleted: who reads it is at its end, and there is nothing to bring to the disk."""
        self.files.forget_all()
        self.end = 0
        self._first = (-1, 0)
        self._dirty.clear()
        self._new_names = False

    def truncate_to(self, end: int) -> bool:
        """Forget the entries from `end` on; whether there were any."""
        self.end = min(self.end, end)
        return self.files.truncate_to(end * ENTRY_SIZE) > 0

    def sync(self) -> None:
        """Bring what was written to the disk, and the names of new files with it."""
        for start in list(self._dirty):
            self._dirty.discard(start)  # first: what is written from here on marks the file again
            file = self.files.file_at(start)
            if file is not None:
                file.sync()
        if self._new_names:
            self._new_names = False
            sync_directory(self.files.directory)

    @property
    def last_entry(self) -> QueueEntry | None:
        """The last entry that names a message; None where the last one does not, or there is none."""
        entry = self.entry(self.end - 1) if self.end > self.files.first_offset // ENTRY_SIZE else None
        return None if entry is None or entry.size == FILLER_SIZE else entry
