"""Check a piece of the log: whether its records are whole, and whether queues and index have their entries.

A piece begins at a record and ends at the first record after the next line of a grid over its file, or at a damaged
record. The result depends only on the files, and on the place in the index where the keys of the piece begin. So many
processes may check pieces anywhere and in any order. `check` takes them in order and verifies that each begins where
the one before ended; it checks missing pieces itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.inspect.index_match import IndexFiles, Matched, Place, nothing_matched, split_keys
from mqlake.inspect.queue_files import QueueFiles, Wrong, queue_folder
from mqlake.inspect.survey import open_file
from mqlake.kernel import StoredRecord, dispatch_records, find_record, survey_records
from mqlake.kernel.hosts import format_host
from mqlake.kernel.types import BLANK, REACHED_END, Run
from mqlake.logs.damage import boundary_behind
from mqlake.logs.deleted_topics import without_deleted

GRID = 32 << 20
NEVER = 1 << 62
"""A physical offset after the end of any log."""
BORN_HOST_AT = 48


class BadPort(NamedTuple):
    """A host in a record with an invalid port: RocketMQ cannot decode the record, and its clients stop there."""

    record: int
    """Physical offset of the record."""
    at: int
    """Physical offset of the four bytes of the port."""
    host: str


class QueueRun(NamedTuple):
    """Entries of one queue with consecutive queue offsets, their first and last record, and the mismatches."""

    topic: str
    queue_id: int
    first: int
    stop: int
    first_record: int
    last_record: int
    wrong: list[Wrong]


class Piece(NamedTuple):
    """The log from offset `start` to `end`."""

    start: int
    end: int
    why: int
    """Why the piece ends there."""
    first_time: int
    newest_time: int
    rises: bool
    """Whether store times never decrease."""
    bad_ports: list[BadPort]
    runs: list[QueueRun]
    matched: Matched


class How(NamedTuple):
    """How the pieces of a store are checked."""

    root: str
    grid: int
    queue_size: int
    delays_ms: tuple[int, ...]
    batch_topics: frozenset[str]
    slot_count: int
    entry_count: int
    index_files: tuple[tuple[str, int], ...] | None
    """Paths of index files, each with its end (the entry after its last); None if the index is not checked."""
    deleted_topics: Mapping[str, int]
    """Deleted topics: their records before these offsets are in no queue."""
    queues: bool = True
    """Whether queues are checked."""
    indexed_from: int = 0
    """The entries of the index before this offset are RocketMQ's; NEVER if all are."""
    redone_from: int = NEVER
    """Records from this offset on need no entry in a queue yet: the next opening dispatches them."""


class Part(NamedTuple):
    """Pieces that begin at [low, high) of a log file. Zeros follow `data_end`; no record ends after `limit`."""

    path: str
    start: int
    low: int
    high: int
    data_end: int
    limit: int


class Looker:
    """Checks pieces of one store; files of queues and index are mapped on the first read."""

    def __init__(self, how: How, index: IndexFiles | None = None) -> None:
        self._how = how
        self._layout = Layout(Path(how.root))
        self._queues: dict[tuple[str, int], QueueFiles] = {}
        if index is None:
            opened = [(open_file(Path(path), 0), next_entry) for path, next_entry in how.index_files or ()]
            files = [(file, next_entry) for file, next_entry in opened if file is not None]
            index = IndexFiles(how.slot_count, how.entry_count, files)
        self.index = index

    def queue(self, topic: str, queue_id: int) -> QueueFiles:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            folder = queue_folder(self._layout, topic, queue_id)
            queue = self._queues[topic, queue_id] = QueueFiles(folder, self._how.queue_size)
        return queue

    def look(self, file: MappedFile, position: int, end: int, place: Place) -> Piece:
        """Check the piece that begins at a position of a log file; its keys begin at `place` in the index."""
        size = self._how.grid - position % self._how.grid
        found = survey_records(file.pages, position, end, file.start, size)
        stop = found.position
        runs, keys = self._harvest(file, position, stop, tags=True)
        matched = nothing_matched(place)
        if self._how.index_files is not None and keys:
            matched = self.match(file, position, stop, place, keys)
        return Piece(
            file.start + position,
            file.start + stop,
            found.why,
            found.first_timestamp,
            found.newest_timestamp,
            found.times_rise,
            [bad_port(file, at, host) for at, host in found.bad_ports],
            list(self._queue_runs(runs)),
            matched,
        )

    def match(self, file: MappedFile, position: int, stop: int, place: Place, keys: bytes | None = None) -> Matched:
        """Compare the keys of a piece with the index."""

        def keys_of(tags: bool) -> bytes:
            return keys if tags and keys is not None else self._harvest(file, position, stop, tags=tags)[1]

        border = self._how.indexed_from
        if border <= file.start + position:
            return self.index.match_either(place, keys_of)
        foreign = self.index.match_either(place, lambda tags: split_keys(keys_of(tags), border)[0]).as_foreign()
        if border >= file.start + stop:
            return foreign
        ours = self.index.match_either(foreign.ended, lambda tags: split_keys(keys_of(tags), border)[1])
        return foreign.then(ours)

    def _harvest(self, file: MappedFile, position: int, stop: int, *, tags: bool) -> tuple[list[Run], bytes]:
        how = self._how
        if position == stop:
            return [], b""
        wants_keys = how.index_files is not None
        found = dispatch_records(file.pages, position, stop, file.start, 1 << 62, how.delays_ms, wants_keys, tags)
        return found.runs, found.keys

    def _queue_runs(self, runs: list[Run]) -> Iterator[QueueRun]:
        for topic, queue_id, first, entries in without_deleted(runs, self._how.deleted_topics):
            if topic in self._how.batch_topics or not self._how.queues:
                continue
            records = ENTRY.unpack_from(entries)[0], ENTRY.unpack_from(entries, len(entries) - ENTRY_SIZE)[0]
            due = entries if records[1] < self._how.redone_from else _entries_before(entries, self._how.redone_from)
            wrong = self.queue(topic, queue_id).differences(first, due)
            yield QueueRun(topic, queue_id, first, first + len(entries) // ENTRY_SIZE, *records, wrong)


def _entries_before(entries: bytes, redone_from: int) -> bytes:
    """Return the entries of records before an offset."""
    count = bisect_left(
        range(len(entries) // ENTRY_SIZE), redone_from, key=lambda at: ENTRY.unpack_from(entries, at * ENTRY_SIZE)[0]
    )
    return entries[: count * ENTRY_SIZE]


def bad_port(file: MappedFile, position: int, which: int) -> BadPort:
    size = int.from_bytes(file.pages[position : position + 4], "big")
    record = StoredRecord(bytes(file.pages[position : position + size]))
    born_end = BORN_HOST_AT + len(record.born_address)
    host, end = (
        (record.store_address, born_end + 8 + len(record.store_address)) if which else (record.born_address, born_end)
    )
    return BadPort(file.start + position, file.start + position + end - 4, format_host(host))


def look_at_part(how: How, part: Part) -> list[Piece]:
    """Check the pieces of a part, from the first record found in it; yield none if the file is gone."""
    file = open_file(Path(part.path), part.start)
    if file is None or file.size < part.limit:
        return []
    looker = Looker(how)
    position = boundary_behind(file, part.low, part.data_end) if part.low else 0
    place = looker.index.place_of(part.start + position)
    pieces = []
    while position < part.high:
        piece = looker.look(file, position, part.limit, place)
        pieces.append(piece)
        place, position = piece.matched.ended, piece.end - part.start
        if piece.why == BLANK:
            break
        if piece.why != REACHED_END:  # another guess
            position = find_record(file.pages, position, part.data_end, part.start)
    return pieces
