"""The log -> runs of queue entries and index keys, staged in files: the first half of a rebuild, in many processes.

A log file is split into parts at arbitrary bytes. A task reads from the first record in its part to the first record
after it, in pieces; each piece is one walk of the kernel. The first record of a part is a guess. `chain` verifies it:
it accepts a piece only if the piece before ended there, as dispatch would have continued. If no piece fits, the log is
walked again from that offset. So a wrong guess costs only time.

The entries and keys of a part are staged in two files. A second try writes the same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY_SIZE
from mqlake.errors import ChangedUnderRead
from mqlake.files.mapped_file import MappedFile
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name
from mqlake.kernel import dispatch_records, find_record
from mqlake.kernel.types import BLANK, REACHED_END, REASONS
from mqlake.logs.damage import boundary_behind, next_record
from mqlake.logs.deleted_topics import without_deleted
from mqlake.logs.key_index import KEY
from mqlake.logs.scars import Scars

ENTRIES, KEYS = ".entries", ".keys"
PIECE_BYTES = 16 << 20
"""Log bytes of one walk: its results fit the processor caches, and its buffers are reused."""


class Part(NamedTuple):
    """The records that begin at positions [low, high) of a log file; none ends after `limit`."""

    path: str
    start: int
    file_size: int
    low: int
    high: int
    limit: int


class Staging(NamedTuple):
    """Where pieces are staged, and how records are dispatched."""

    directory: str
    delays_ms: tuple[int, ...]
    index_keys: bool
    index_tags: bool
    deleted_topics: Mapping[str, int]
    """Deleted topics: their records before these offsets are in no queue."""


class StagedRun(NamedTuple):
    """Entries of one queue with consecutive queue offsets, and their place in the file of entries."""

    topic: str
    queue_id: int
    first: int
    entry_count: int
    stage: str
    place: int


class Piece(NamedTuple):
    """The log from offset `start` to `end`, and why the walk ended there."""

    start: int
    end: int
    why: int
    stage: str
    runs: list[StagedRun]
    key_place: int
    key_count: int
    record_count: int
    last_record: int
    last_timestamp: int


def parts_of(log: MappedFileQueue, end: int, size: int) -> list[Part]:
    """Split the log up to `end` into parts of `size` bytes."""
    found = []
    for start in log.starts:
        limit = min(log.file_size, end - start)
        path = str(log.directory / file_name(start))
        found += [Part(path, start, log.file_size, low, min(low + size, limit), limit) for low in range(0, limit, size)]
    return found


def harvest(staging: Staging, part: Part) -> list[Piece]:
    """Stage the pieces of a part under the name of the part."""
    file = open_log_file(part)
    begin = boundary_behind(file, part.low, part.limit) if part.low else 0
    with _Stage(staging, file_name(part.start + part.low)) as stage:
        return list(_pieces(stage, part, file, begin))


def harvest_at(staging: Staging, part: Part, position: int) -> Piece:
    """Stage the piece that begins at a known position of a part; no task guessed it."""
    with _Stage(staging, f"{file_name(part.start + position)}-again") as stage:
        return next(_pieces(stage, part, open_log_file(part), position))


def open_log_file(part: Part) -> MappedFile:
    path = Path(part.path)
    try:
        return MappedFile.open(path, part.start, part.file_size, writable=False)
    except FileNotFoundError:
        found = f"no file {path.name}: it was deleted meanwhile"
        raise ChangedUnderRead(str(path.parent.parent), part.start, found, "the log as it was") from None


def _pieces(stage: _Stage, part: Part, file: MappedFile, position: int) -> Iterator[Piece]:
    while position < part.high:
        size = min(part.high - position, PIECE_BYTES)
        piece = stage.put(file, position, part.limit, size)
        yield piece
        position = piece.end - part.start
        if piece.why == BLANK:
            return
        if piece.why != REACHED_END:  # another guess: `chain` knows how dispatch continues here
            position = find_record(file.pages, position, part.limit, part.start)


class _Stage:
    """Two files, of entries and of keys, created with their first data."""

    def __init__(self, staging: Staging, name: str) -> None:
        self._staging = staging
        self._name = name
        self._files: dict[str, FileIO] = {}

    def __enter__(self) -> _Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def put(self, file: MappedFile, position: int, limit: int, size: int) -> Piece:
        """Walk the next records of a log file as dispatch does, and stage what it would have written."""
        how = self._staging
        found = dispatch_records(
            file.pages, position, limit, file.start, size, how.delays_ms, how.index_keys, how.index_tags
        )
        runs = without_deleted(found.runs, how.deleted_topics)
        place = self._write(ENTRIES, b"".join(entries for _, _, _, entries in runs))
        staged = []
        for topic, queue_id, first, entries in runs:
            staged.append(StagedRun(topic, queue_id, first, len(entries) // ENTRY_SIZE, self._name, place))
            place += len(entries)
        key_place, key_count = self._write(KEYS, found.keys), len(found.keys) // KEY.size
        ends = file.start + position, file.start + found.position
        last = found.last_offset, found.last_timestamp
        return Piece(*ends, found.why, self._name, staged, key_place, key_count, found.record_count, *last)

    def _write(self, kind: str, data: bytes) -> int:
        """Append data; return its position."""
        if not data:
            return 0
        file = self._files.get(kind)
        if file is None:
            path = Path(self._staging.directory, self._name + kind)
            file = self._files[kind] = path.open("wb", buffering=0)
        place = file.tell()
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        return place


class Walk:
    """Chains the pieces in the order of dispatch, each from the end of the one before; keeps the state of dispatch."""

    def __init__(self, log: MappedFileQueue, first: int, end: int, scars: Scars) -> None:
        self._log = log
        self._first = first
        self._end = end
        self._scars = scars
        self.record_count = 0
        self.last_record = -1
        self.again_count = 0
        """Pieces that were walked again, because no guess was right."""

    def chain(self, pieces: Iterable[Piece], again: Callable[[int], Piece]) -> Iterator[Piece]:
        """`again` stages the piece that begins at an offset."""
        known = {piece.start: piece for piece in pieces}
        position = self._first
        while position < self._end:
            piece = known.get(position)
            if piece is None:
                self.again_count += 1
                piece = again(position)
            if piece.record_count:
                self.record_count += piece.record_count
                self.last_record = piece.last_record
            yield piece
            position = self._behind(piece)

    def _behind(self, piece: Piece) -> int:
        """Return where dispatch continues; the rules are those of `Dispatcher._step`."""
        if piece.why == REACHED_END:
            return piece.end
        if piece.why == BLANK:
            return piece.start - piece.start % self._log.file_size + self._log.file_size
        known = self._scars.end_of(piece.end)
        if known > piece.end:
            return min(known, self._end)
        after = next_record(self._log, piece.end, self._end, 0) or self._end
        self._scars.add(piece.end, after, REASONS[piece.why])
        return after
