"""Walks a store and reports every broken promise; never writes a byte.

It does not open the folder as a store, so a folder that `MessageStore.open` refuses is checked too. A live store is
checked up to what its writer has dispatched, so that writes in progress are no findings. The log is checked piece by
piece (`piece`). Other processes may have checked the pieces before: then only their results are combined here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE, QueueEntry
from mqlake.config import DEFAULT_LOG_FILE_SIZE, DEFAULT_QUEUE_FILE_SIZE, MIN_LOG_FILE_SIZE, StoreConfig
from mqlake.errors import typed_errors
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name
from mqlake.inspect.batch_queues import BatchQueueCheck
from mqlake.inspect.check_files import broken_json, look_at_small_files
from mqlake.inspect.check_index import Chains, ChainWork, IndexCheck
from mqlake.inspect.check_queues import QueueCheck
from mqlake.inspect.check_seals import SealCheck, SealWork
from mqlake.inspect.findings import Finding, Findings, Severity
from mqlake.inspect.log_map import BROKEN_MARKER, MISSING, LogMap, read_ends
from mqlake.inspect.piece import GRID, How, Looker, Part, Piece
from mqlake.inspect.queue_files import queue_folders
from mqlake.inspect.survey import likely_file_size, look, open_file, place
from mqlake.kernel import check_record, count_valid_entries
from mqlake.kernel.types import BAD_CRC, BAD_LENGTHS, BAD_MAGIC, BAD_OFFSET, BAD_SIZE, NOTHING, REASONS
from mqlake.logs.deleted_topics import deleted_topics_of
from mqlake.store.opening import LOG_SIZE, QUEUE_SIZE, find_store, index_numbers, indexed_from, read_notes

CODES = {
    BAD_CRC: "record-crc",
    BAD_MAGIC: "record-magic",
    BAD_SIZE: "record-size",
    BAD_LENGTHS: "record-lengths",
    BAD_OFFSET: "record-offset",
    NOTHING: "record-zero",
    BROKEN_MARKER: "marker",
}

Progress = Callable[[int, int], object]
"""Called with the bytes checked so far, and the total."""


class CheckReport(NamedTuple):
    """What a check found, worst first."""

    path: Path
    findings: tuple[Finding, ...]
    live: bool
    first_offset: int
    end_offset: int
    took_ms: int

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)

    @property
    def holds(self) -> bool:
        """Whether no promise is broken; notes are allowed."""
        return self.severity == Severity.NOTE


def check(
    path: str | os.PathLike[str], *, config: StoreConfig | None = None, progress: Progress | None = None
) -> CheckReport:
    """Check a store, live or not, whole or damaged; raise NotAStore if there is none."""
    layout = find_store(path, read_only=True, create=False)
    with typed_errors(layout.root, "checked"):
        return Examination(layout, config or StoreConfig(), progress).walk().report()


class Examination:
    """One walk over everything, done by `walk`. It keeps what `repair` needs besides the findings."""

    def __init__(
        self,
        layout: Layout,
        config: StoreConfig,
        progress: Progress | None = None,
        *,
        locked_here: bool = False,
        grid: int = GRID,
    ) -> None:
        """`locked_here`: the caller holds the store lock, so there is no writer."""
        began = time.monotonic()
        self.layout = layout
        self.config = config
        self.findings = Findings(layout.root)
        self._progress = progress
        self._grid = grid
        self._done = 0
        ends = read_ends(layout, locked_here=locked_here)  # first: the files below hold all of the log before them
        self.found = look(layout.commit_log)
        likely = likely_file_size(self.found, look(layout.spare), read_notes(layout).get(LOG_SIZE, 0)) or 0
        if likely < MIN_LOG_FILE_SIZE:  # a remnant without information
            likely = DEFAULT_LOG_FILE_SIZE
        self.file_size = config.commit_log.file_size_bytes or likely
        self.queue_size = config.consume_queue.file_size_bytes or self._likely_queue_size()
        written_here = ends.live and ends.limit is not None
        self.placement = place(self.found, self.file_size)
        self._named = None if written_here else self._newest_named()
        if ends.live and ends.limit is None:
            ends = ends._replace(limit=self._named.physical_offset if self._named is not None else None, watermark=0)
        elif not ends.live and ends.checkpoint is None and not layout.abort.exists():
            ends = ends._replace(watermark=max(ends.watermark, self._end_of_named()))  # as recovery trusts RocketMQ
        self.log = LogMap(self.placement, self.file_size, ends)
        self._total = self.size
        self.seals = SealCheck(layout, self.log, written_here=written_here)
        self._deleted_topics = deleted_topics_of(layout)  # after the ends: what was deleted before them is known
        self.queues = QueueCheck(layout, self.queue_size, self.log, self.findings, self._deleted_topics)
        self.batch_queues = BatchQueueCheck(layout, self.log, self.findings)
        self.index: IndexCheck | None = None
        self.index_numbers = index_numbers(layout, config.index)
        self._numbers = self.index_numbers[:2]
        if config.index.enabled and self.index_numbers.known:
            self.index = IndexCheck(layout, *self._numbers, self.log, self.findings)
        self.how = self._how()
        self._looker = Looker(self.how, self.index.files if self.index is not None else None)
        self.broken_json: list[Path] = []
        self._took_ms = round((time.monotonic() - began) * 1000)

    @property
    def size(self) -> int:
        """Bytes of the log files that are checked."""
        return sum(self.log.limit_in(file) for file in self.log.files.values())

    def report(self) -> CheckReport:
        log, rows = self.log, tuple(self.findings.rows())
        return CheckReport(self.layout.root, rows, log.ends.live, log.first, log.end, self._took_ms)

    def _likely_queue_size(self) -> int:
        files = [file for folder in queue_folders(self.layout.consume_queues) for file in look(folder)]
        size = likely_file_size(files, [])
        if size is not None and size % ENTRY_SIZE == 0:
            return size
        return (
            read_notes(self.layout).get(QUEUE_SIZE) or DEFAULT_QUEUE_FILE_SIZE
        )  # a writer may be about to create some

    def _newest_named(self) -> QueueEntry | None:
        """Return the entry of the newest record that a queue names plausibly; None if there is none."""
        newest = None
        files_end = max(self.placement.files, default=-self.file_size) + self.file_size
        for folder in queue_folders(self.layout.consume_queues):
            for found in reversed(look(folder)):
                file = open_file(found.path, 0)
                count = count_valid_entries(file.pages, files_end) if file is not None else 0
                if file is not None and count:
                    entry = QueueEntry(*ENTRY.unpack_from(file.pages, (count - 1) * ENTRY_SIZE))
                    if entry.size != FILLER_SIZE and (newest is None or entry > newest):
                        newest = entry
                    break
        return newest

    def _end_of_named(self) -> int:
        """Return the end of the newest record that a queue names; 0 if that record is not whole."""
        if self._named is None:
            return 0
        offset, size, _ = self._named
        file = self.placement.files.get(offset - offset % self.file_size)
        is_whole = file is not None and check_record(file.pages, offset - file.start, file.size, offset, True) == size
        return offset + size if is_whole else 0

    def _advance(self, by: int) -> None:
        self._done += by
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    # ---- the log

    def _look_at_log_files(self) -> None:
        """Check names and sizes of the log files."""
        add = self.findings.add
        for start, path in self.placement.misnamed.items():
            add("file-misnamed", path, None, path.name, f"{file_name(start)}: its records say so")
        for each, why in self.placement.aside:
            if each.path in self.placement.apart:
                add("file-apart", each.path, None, why, "files of the log up to it, or no such file")
            elif each.start is None:
                add("file-foreign", each.path, None, each.path.name, "only files whose names are offsets, in 20 digits")
            elif why == "empty":
                add("file-empty", each.path, None, "0 bytes", f"{self.file_size} bytes, or no file")
            else:
                add("file-surplus", each.path, None, why, f"records from {each.start}, or no file")
        for start, file in self.log.files.items():
            if file.size != self.file_size and start not in self.placement.misnamed:
                what = "file-short" if file.size < self.file_size else "file-long"
                add(what, file.path, None, f"{file.size} bytes", f"{self.file_size} bytes, as the others have")
            if start >= self.log.end > 0 and start > self.log.first and not any(file.data_ranges(0)):
                add("file-ahead", file.path, None, "a spare file", "a spare file, or none")

    def _look_at_tail(self) -> None:
        log = self.log
        named = max(self._named.physical_offset if self._named is not None else -1, self.queues.beyond)
        file = log.file_of(log.end) or log.file_of(log.end - 1)
        if file is None:
            if named >= 0:
                self.findings.add("tail-lost", self.layout.commit_log, None, "no file", f"records up to {named}")
            return
        stopped_cleanly = not self.layout.abort.exists()
        at = log.end % self.file_size
        if stopped_cleanly and named >= log.end:
            told = f"the log ends at {log.end}: {REASONS.get(log.stop_reason, 'its file is missing')}"
            self.findings.add("tail-lost", file, at, told, f"a record at {named}, which a queue names")
        elif log.tail_is_dirty():
            what = "tail-dirty" if stopped_cleanly else "torn-tail"
            self.findings.add(what, file, at, "bytes that are no whole record", "zeros after the end")

    # ---- log, queues and index, piece by piece

    def _how(self) -> How:
        index = None
        if self.index is not None:
            index = tuple((str(file.path), next_entry) for file, next_entry in self.index.files.files)
        return How(
            str(self.layout.root),
            self._grid,
            self.queue_size,
            self.config.delays_ms,
            self.batch_queues.topics,
            *self._numbers,
            index,
            self._deleted_topics,
            indexed_from=indexed_from(self.layout),
            redone_from=self.log.ends.redone_from,
        )

    def parts(self, size: int) -> list[Part]:
        """Split the log into parts of about `size` bytes, aligned to the grid, for other processes to check."""
        size = max(1, size // self._grid) * self._grid
        found = []
        for start, file in sorted(self.log.files.items()):
            limit = self.log.limit_in(file)
            data_end = min(limit, max((stop for _, stop in file.data_ranges(0)), default=0))
            for low in range(0, data_end, size):
                found.append(Part(str(file.path), start, low, min(low + size, data_end), data_end, limit))
        return found

    def chain_works(self) -> list[ChainWork]:
        """Return the index files, for other processes to check their chains."""
        files = self.index.files.files if self.index is not None else []
        live = self.log.ends.live
        return [ChainWork(str(file.path), *self._numbers, next_entry, live) for file, next_entry in files]

    def walk(
        self,
        known: Iterable[Piece] = (),
        chains: Mapping[str, Chains] | None = None,
        seals: Mapping[SealWork, list[int]] | None = None,
    ) -> Examination:
        """Check everything. `known` pieces, chains of index files by path, and seals were checked before."""
        began = time.monotonic()
        self._known = {piece.start: piece for piece in known}
        self.log.walk(self._look)
        self._look_at_log_files()
        look_at_log(self.layout, self.log, self.findings)
        self.seals.finish(seals or {}, self.findings)
        self.queues.finish()
        if not self.log.ends.live:
            self._look_at_tail()
        if self.index is not None:
            self.index.finish(chains or {})
        elif self.config.index.enabled:
            told = "files with unknown slot and entry counts"
            self.findings.add("index-numbers", self.layout.index, None, told, "maxHashSlotNum and maxIndexNum")
        self.batch_queues.finish()
        if self.log.ends.live:
            self._forget_deleted()
        look_at_small_files(self.layout, self.log, self.findings)
        self.broken_json = broken_json(self.layout, self.findings)
        self._took_ms += round((time.monotonic() - began) * 1000)
        return self

    def _forget_deleted(self) -> None:
        """Drop what was found in topics that were deleted since: they are marked before their files are touched."""
        for topic, end in deleted_topics_of(self.layout).items():
            if self._deleted_topics.get(topic) != end:
                self.findings.forget(self.layout.consume_queues / topic)

    def _look(self, file: MappedFile, position: int, end: int) -> Piece:
        place = self.index.place if self.index is not None else (0, 1)
        piece = self._known.pop(file.start + position, None)
        if piece is None:
            piece = self._looker.look(file, position, end, place)
        self.queues.take(piece)
        if self.index is not None:
            matched = piece.matched
            if matched.began != place:  # the process that checked it did not know what came before
                matched = self._looker.match(file, position, piece.end - file.start, place)
            self.index.take(matched)
        self._advance(piece.end - piece.start)
        return piece


def look_at_log(layout: Layout, log: LogMap, findings: Findings) -> None:
    """Report what is wrong with the log itself."""
    size = log.file_size
    for gap in log.gaps:
        file = layout.commit_log / file_name(gap.start - gap.start % size)
        if gap.reason == MISSING:
            findings.add("file-missing", file, gap.start, "no file", f"the log from {gap.start} to {gap.end}")
        else:
            why = "a broken end-of-file marker" if gap.reason == BROKEN_MARKER else REASONS[gap.reason]
            told = f"{why} ({gap.end - gap.start} bytes)"
            findings.add(CODES[gap.reason], log.file_of(gap.start) or file, gap.start % size, told, "a whole record")
    for offset, told_size in log.markers:
        path = log.files[offset - offset % size].path
        findings.add("marker", path, offset % size, f"{told_size} bytes", f"{-offset % size} bytes")
    for port in log.bad_ports:
        path = log.files[port.record - port.record % size].path
        findings.add("record-host", path, port.record % size, port.host, "a port from 0 to 65535")
    for offset in log.steps_back:
        path = log.files[offset - offset % size].path
        findings.add("time-order", path, offset % size, "a store time below that of the record before", "rising times")
