"""Staged runs and keys -> consume queues and index files: the second half of a rebuild, in many processes.

`ConsumeQueue.write` writes a queue, run after run in the order of the log, so queue offsets that are missing, repeated
or impossible are handled as dispatch handles them. Entries of messages that are no longer in the log are copied from
the existing queue, as recovery keeps them. Adjacent runs are joined, wherever the log was split.

Each index file holds a fixed range of the keys, and its header starts with the ends of the file before it. So all files
can be written in parallel, and a second try writes the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.index_entry import HEADER, HEADER_SIZE, index_file_size
from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, entry_of_no_message
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name
from mqlake.inspect.harvest import ENTRIES, KEYS, StagedRun
from mqlake.kernel import put_index_keys
from mqlake.logs.consume_queue import ConsumeQueue
from mqlake.logs.key_index import KEY
from mqlake.logs.queue_folder import is_regular, read_folder

BATCH_ENTRIES = 200_000
"""About this many entries are written at once."""
SYNCERS = 8
"""Threads that sync the queues of a task: a disk syncs many small files in parallel as fast as one."""


class Site(NamedTuple):
    """Where to build, from what, and the file sizes."""

    staging: str
    queues: str
    index_files: str
    old_queues: str
    queue_file_size: int
    slot_count: int
    entry_count: int
    log_first: int
    log_end: int
    log_file_size: int


class QueueWork(NamedTuple):
    """One queue: its runs in the order of the log, and its end (queue offset after the last entry) if known."""

    topic: str
    queue_id: int
    runs: list[StagedRun]
    end: int

    @property
    def cost(self) -> int:
        return sum(run.entry_count for run in self.runs)


class KeyRun(NamedTuple):
    """A range of keys in a staged file."""

    stage: str
    place: int
    key_count: int


class IndexWork(NamedTuple):
    """One index file: its keys, and the key before its first."""

    name: str
    keys: list[KeyRun]
    before: KeyRun | None


class BuiltQueue(NamedTuple):
    topic: str
    queue_id: int
    end: int
    refused_count: int
    """Entries that dispatch would reject too: their records are damaged."""


class BuiltIndex(NamedTuple):
    name: str
    header: bytes


Work = list[QueueWork] | IndexWork
Built = list[BuiltQueue] | BuiltIndex


def build(site: Site, work: Work) -> Built:
    """Build the files of one task. They are on disk on return."""
    staged = _Staged(site.staging)
    if isinstance(work, IndexWork):
        return _build_index(site, work, staged)
    queues = [_build_queue(site, one, staged) for one in work]
    with ThreadPoolExecutor(SYNCERS) as threads:
        list(threads.map(ConsumeQueue.sync, (queue for queue, _ in queues)))
    return [built for _, built in queues]


def _build_queue(site: Site, work: QueueWork, staged: _Staged) -> tuple[ConsumeQueue, BuiltQueue]:
    place = Path(work.topic, str(work.queue_id))
    shutil.rmtree(site.queues / place, ignore_errors=True)  # left by an earlier try
    queue = ConsumeQueue(site.queues / place, site.queue_file_size, writable=True)
    if site.log_first > 0 or not work.runs or work.runs[0].first > 0:  # else there were no entries before these
        queue.load(site.log_first, _take_over(site, site.old_queues / place, site.queues / place))
    refused = 0
    for runs in _joined(work.runs):
        again = (
            runs[0].first < queue.end
        )  # repeated queue offsets: dispatch compares every entry that it would overwrite
        for part in [runs] if again else _batches(runs):
            entries = b"".join(map(staged.entries, part))
            following = ENTRY.unpack_from(entries)[0]
            no_message = entry_of_no_message(site.log_first, following, site.log_file_size)
            if not queue.write(part[0].first, entries, no_message):
                refused += sum(run.entry_count for run in part)
    queue.fill_to(work.end, entry_of_no_message(site.log_first, site.log_end, site.log_file_size))
    return queue, BuiltQueue(work.topic, work.queue_id, queue.end, refused)


def _joined(runs: list[StagedRun]) -> Iterator[list[StagedRun]]:
    """Join runs whose queue offsets are adjacent."""
    joined: list[StagedRun] = []
    for run in runs:
        if joined and run.first != joined[-1].first + joined[-1].entry_count:
            yield joined
            joined = []
        joined.append(run)
    if joined:
        yield joined


def _batches(runs: list[StagedRun]) -> Iterator[list[StagedRun]]:
    """Split the runs into parts that are written at once."""
    batch: list[StagedRun] = []
    count = 0
    for run in runs:
        batch.append(run)
        count += run.entry_count
        if count >= BATCH_ENTRIES:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch


def _take_over(site: Site, old: Path, new: Path) -> int:
    """Copy the entries of messages that the log no longer has; return the queue offset after the last one."""
    folder = read_folder(str(old))
    if not folder.files or folder.strangers:
        return 0
    if not is_regular(folder, site.queue_file_size, from_zero=site.log_first == 0):
        return 0
    queue = ConsumeQueue(old, site.queue_file_size, writable=False)
    queue.load(site.log_first)
    for start in queue.files.starts:
        file = queue.files.file_at(start)
        if file is not None and (start < queue.end * ENTRY_SIZE or start == queue.files.first_offset):
            copy = MappedFile.create(new / file_name(start), start, site.queue_file_size, reserve=0)
            copy.write_at(0, file.view(0, max(0, min(file.size, queue.end * ENTRY_SIZE - start))))
            copy.sync()
    return queue.end


def _build_index(site: Site, work: IndexWork, staged: _Staged) -> BuiltIndex:
    size = index_file_size(site.slot_count, site.entry_count)
    path = Path(site.index_files, work.name)
    path.unlink(missing_ok=True)
    reserve = index_file_size(site.slot_count, 1 + sum(keys.key_count for keys in work.keys))
    file = MappedFile.create(path, 0, size, reserve=reserve)
    offset = timestamp = 0
    if work.before is not None:
        _, offset, timestamp = KEY.unpack(staged.keys(work.before))
    HEADER.pack_into(file.pages, 0, timestamp, timestamp, offset, offset, 0, 1)
    for keys in work.keys:
        entered = put_index_keys(file.pages, site.slot_count, site.entry_count, staged.keys(keys), 0)
        assert entered == keys.key_count, "an index file gets no more keys than fit"
    file.sync()
    return BuiltIndex(work.name, file.pages[:HEADER_SIZE])


class _Staged:
    """The staged files, mapped on the first read."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._files: dict[str, memoryview] = {}

    def entries(self, run: StagedRun) -> memoryview:
        return self._of(run.stage + ENTRIES)[run.place : run.place + run.entry_count * ENTRY_SIZE]

    def keys(self, run: KeyRun) -> memoryview:
        return self._of(run.stage + KEYS)[run.place : run.place + run.key_count * KEY.size]

    def _of(self, name: str) -> memoryview:
        view = self._files.get(name)
        if view is None:
            with Path(self._directory, name).open("rb") as file:
                view = self._files[name] = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        return view


def index_works(keys: list[KeyRun], entry_count: int, first_name: int) -> list[IndexWork]:
    """Split the keys, in the order of the log, where an index file is full. Entry 0 is never used."""
    works: list[IndexWork] = []
    room = 0
    last: KeyRun | None = None
    for run in keys:
        taken = 0
        while taken < run.key_count:
            if room == 0:
                works.append(IndexWork(f"{first_name + len(works):017d}", [], last))
                room = entry_count - 1
            count = min(room, run.key_count - taken)
            works[-1].keys.append(KeyRun(run.stage, run.place + taken * KEY.size, count))
            taken, room = taken + count, room - count
            last = KeyRun(run.stage, run.place + (taken - 1) * KEY.size, 1)
    return works
