"""Compare the batch queues of RocketMQ 5 with the log, and build them anew from it.

RocketMQ writes these queues and mqlake only reads them, so `dispatch` does not derive their entries; here they are. A
record is one entry, with the queue offset of its first message (`INNER_BASE`) and their count (`INNER_NUM`); a record
of one message has neither. Entries of records that retention deleted come first, and stay.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import BATCH_ENTRY, BATCH_ENTRY_SIZE, ENTRY, BatchEntry
from mqlake.config import DEFAULT_BATCH_QUEUE_FILE_SIZE
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import sync_directory
from mqlake.files.names import file_name, folder_names
from mqlake.inspect.findings import Findings
from mqlake.inspect.log_map import LogMap
from mqlake.inspect.queue_files import queue_folders
from mqlake.inspect.repair_backup import Backup
from mqlake.inspect.survey import look, open_file
from mqlake.kernel import StoredRecord, dispatch_records
from mqlake.logs.deleted_topics import deleted_topics_of, without_deleted

MAX_COUNT, MAX_DIGITS = 32767, 18
"""A count has two bytes, a queue offset eight."""


class Rebuilt(NamedTuple):
    """What the files of a batch queue must hold."""

    folder: Path
    first: int
    """The position in the queue with which its first file begins."""
    entries: bytes


class BatchQueueCheck:
    """Takes the batch queues of a store; `finish` compares them, once the log was walked."""

    def __init__(self, layout: Layout, log: LogMap, findings: Findings) -> None:
        self._layout = layout
        self._log = log
        self._findings = findings
        self.topics = frozenset(folder_names(str(layout.batch_queues)))
        files = [file for folder in queue_folders(layout.batch_queues) for file in look(folder)]
        sizes = Counter(file.size for file in files if file.size and file.size % BATCH_ENTRY_SIZE == 0)
        self._file_size = max(sizes, key=lambda size: (sizes[size], size), default=DEFAULT_BATCH_QUEUE_FILE_SIZE)
        self._rebuilt: list[Rebuilt] = []

    def finish(self) -> None:
        if not self.topics:
            return
        derived = self._derive()
        found = {(folder.parent.name, folder.name) for folder in queue_folders(self._layout.batch_queues)}
        for topic, queue_id in sorted({*found, *derived}):
            if queue_id.isascii() and queue_id.isdigit():
                self._compare(self._layout.batch_queues / topic / queue_id, derived.get((topic, queue_id), b""))

    def _derive(self) -> dict[tuple[str, str], bytes]:
        """Return the entries that the log requires, of each queue."""
        made: dict[tuple[str, str], bytearray] = defaultdict(bytearray)
        deleted = deleted_topics_of(self._layout)
        for low, high in self._log.runs:
            file = self._log.files[low - low % self._log.file_size]
            begin, end = low - file.start, high - file.start
            runs = dispatch_records(file.pages, begin, end, file.start, 1 << 62, (), False, True).runs
            for topic, queue_id, _, entries in without_deleted(runs, deleted):
                if topic not in self.topics:
                    continue
                for offset, size, tags_code in ENTRY.iter_unpack(entries):
                    record = StoredRecord(bytes(file.pages[offset - file.start : offset - file.start + size]))
                    base = _number(record, "INNER_BASE", record.queue_offset)
                    count = min(_number(record, "INNER_NUM", 1), MAX_COUNT)
                    told = offset, size, tags_code, record.store_timestamp, base, count, -1, 0
                    made[topic, str(queue_id)] += BATCH_ENTRY.pack(*told)
        return {queue: bytes(entries) for queue, entries in made.items()}

    def _compare(self, folder: Path, derived: bytes) -> None:
        files = look(folder)
        named = (files[0].start if files else 0) or 0
        first = named - named % self._file_size
        data, is_whole = b"", True
        if not files and derived:
            is_whole = self._tell("queue-missing", folder, None, "none", f"{len(derived) // BATCH_ENTRY_SIZE} entries")
        for file in files:
            wanted = file_name(first + len(data))
            if file.path.name != wanted:
                is_whole = self._tell("queue-file-name", file.path, None, file.path.name, wanted)
            elif file.size != self._file_size:
                told = f"{file.size} bytes", f"{self._file_size} bytes"
                is_whole = self._tell("queue-file-size", file.path, None, *told)
            if not is_whole:
                break
            opened = open_file(file.path, 0)
            data += opened.pages[:] if opened is not None else b""
        held = _split(data)
        older = list(itertools.takewhile(self._is_deleted, held))
        names_lost = False
        if is_whole:
            is_whole, names_lost = self._compare_entries(folder, first, held, len(older), _split(derived))
        if not is_whole or names_lost:
            self._rebuilt.append(Rebuilt(folder, first if older else 0, b"".join(older) + derived))

    def _compare_entries(
        self, folder: Path, first: int, held: list[bytes], begin: int, derived: list[bytes]
    ) -> tuple[bool, bool]:
        """Compare entries from number `begin` on. Return whether they are right, and whether any names damage."""
        missing, names_lost = iter(derived), False
        for number, here in enumerate([*held[begin:], b""], begin):
            offset = BatchEntry(*BATCH_ENTRY.unpack(here)).physical_offset if here else -1
            if any(gap.start <= offset < gap.end for gap in self._log.gaps):
                names_lost = True  # the damage is reported for the log
                continue
            wanted = next(missing, b"")
            if here != wanted and (here or not self._log.ends.live):
                place = first + number * BATCH_ENTRY_SIZE
                path = folder / file_name(place - place % self._file_size)
                told = show_batch_entry(here), show_batch_entry(wanted)
                return self._tell("queue-entry", path, place % self._file_size, *told), names_lost
        return True, names_lost

    def _is_deleted(self, entry: bytes) -> bool:
        offset, size = BATCH_ENTRY.unpack(entry)[:2]
        return bool(size > 0 and 0 <= offset < self._log.first)

    def _tell(self, what: str, path: Path, at: int | None, found: str, expected: str) -> bool:
        self._findings.add(what, path, at, found, expected)
        return False

    def rebuild(self, backup: Backup) -> None:
        """Make the files of queues that are wrong anew. What was there goes into the backup."""
        made = self._layout.scratch / "batch-queue"
        for folder, first, entries in self._rebuilt:
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
            for at in range(0, max(len(entries), 1), self._file_size):
                with (made / file_name(first + at)).open("wb") as file:
                    file.write(entries[at : at + self._file_size])
                    file.truncate(self._file_size)
                    os.fsync(file.fileno())
            sync_directory(made)
            if folder.exists():
                backup.move(folder)
            made.rename(folder)
            sync_directory(folder.parent)


def _number(record: StoredRecord, name: str, default: int) -> int:
    """Return a number of a property, as RocketMQ writes it; the default if it has none that can be one."""
    text = record.properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else default


def _split(data: bytes) -> list[bytes]:
    """Return entries, without the zeros at their end."""
    size = BATCH_ENTRY_SIZE
    return [data[at : at + size] for at in range(0, len(data.rstrip(b"\0")), size) if at + size <= len(data)]


def show_batch_entry(data: bytes) -> str:
    if not any(data):
        return "no entry"
    entry = BatchEntry(*BATCH_ENTRY.unpack(data))
    messages = f"{entry.message_count} messages from queue offset {entry.base_offset}"
    return f"record at {entry.physical_offset}, {entry.size} bytes, {messages}"
