"""Walks a store and reports every broken promise; never writes a byte.

Nothing is opened as a store: a folder that `MessageStore.open` refuses is looked at all the same. A live store is
looked at up to what its writer has dispatched, so that what is being written is no finding. The log goes through the
kernel twice: once for its own sake (`log_map`), once to derive what queues and index must hold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.index_entry import DEFAULT_ENTRIES, DEFAULT_SLOTS
from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER_SIZE, QueueEntry
from mqlake.config import DEFAULT_LOG_FILE_SIZE, DEFAULT_QUEUE_FILE_SIZE, StoreConfig
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name
from mqlake.kernel import count_valid_entries, dispatch_records
from mqlake.kernel.types import BAD_CRC, BAD_LENGTHS, BAD_MAGIC, BAD_OFFSET, BAD_SIZE, NOTHING, REASONS, Dispatched
from mqlake.store.check_files import broken_json, look_at_batch_queues, look_at_small_files
from mqlake.store.check_index import IndexCheck
from mqlake.store.check_queues import QueueCheck
from mqlake.store.findings import Finding, Findings, Severity
from mqlake.store.log_map import BROKEN_MARKER, MISSING, LogMap, read_ends
from mqlake.store.opening import QUEUE_SIZE, find_store, read_notes
from mqlake.store.survey import likely_file_size, look, open_file, place

CHUNK = 16 << 20
MIN_LOG_FILE_SIZE = 4096
"""No store has smaller files: a shorter one is a remainder that tells nothing."""
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
"""Told how many bytes are done, of how many."""


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
        """No promise is broken; notes are allowed."""
        return self.severity == Severity.NOTE


def check(
    path: str | os.PathLike[str], *, config: StoreConfig | None = None, progress: Progress | None = None
) -> CheckReport:
    """Look at a store, live or not, whole or broken; NotAStore where there is none."""
    layout = find_store(path, read_only=True, create=False)
    return Examination(layout, config or StoreConfig(), progress).report()


class Examination:
    """One walk over everything. What `repair` needs to know beyond the findings is kept."""

    def __init__(
        self, layout: Layout, config: StoreConfig, progress: Progress | None = None, *, locked_here: bool = False
    ) -> None:
        """`locked_here`: the caller holds the lock, and nobody writes."""
        began = time.monotonic()
        self.layout = layout
        self.config = config
        self.findings = Findings(layout.root)
        self._progress = progress
        self._done = 0
        self.found = look(layout.commit_log)
        likely = likely_file_size(self.found, look(layout.spare)) or 0
        likely = likely if likely >= MIN_LOG_FILE_SIZE else DEFAULT_LOG_FILE_SIZE
        self.file_size = config.commit_log.file_size_bytes or likely
        self.queue_size = config.consume_queue.file_size_bytes or self._likely_queue_size()
        self._total = 2 * sum(file.size for file in self.found)
        ends = read_ends(layout, locked_here=locked_here)
        if ends.live and ends.limit is None:
            ends = ends._replace(limit=self._newest_named(), watermark=0)
        self.placement = place(self.found, self.file_size)
        self.log = LogMap(self.placement, self.file_size, ends, self._advance)
        self.queues = QueueCheck(layout, self.queue_size, self.log, self.findings)
        self._look_at_log_files()
        self._look_at_log()
        self._look_at_derived()
        look_at_batch_queues(layout, self.log, self.findings)
        look_at_small_files(layout, self.log, self.findings)
        self.broken_json = broken_json(layout, self.findings)
        self._took_ms = round((time.monotonic() - began) * 1000)

    def report(self) -> CheckReport:
        log, rows = self.log, tuple(self.findings.rows())
        return CheckReport(self.layout.root, rows, log.ends.live, log.first, log.end, self._took_ms)

    def _likely_queue_size(self) -> int:
        files = [file for folder in self.layout.consume_queues.glob("*/*") for file in look(folder)]
        size = likely_file_size(files, [])
        if size is not None and size % ENTRY_SIZE == 0:
            return size
        return read_notes(self.layout).get(QUEUE_SIZE) or DEFAULT_QUEUE_FILE_SIZE  # a writer may be about to make some

    def _newest_named(self) -> int | None:
        """The offset of the newest record that a queue names, as far as that can be one; None where none does."""
        newest = None
        files_end = max((file.start for file in self.found if file.start is not None), default=-1) + self.file_size
        for folder in self.layout.consume_queues.glob("*/*"):
            for found in reversed(look(folder)):
                file = open_file(found.path, 0)
                count = count_valid_entries(file.pages, files_end) if file is not None else 0
                if file is not None and count:
                    entry = QueueEntry(*ENTRY.unpack_from(file.pages, (count - 1) * ENTRY_SIZE))
                    if entry.size != FILLER_SIZE and (newest is None or entry.physical_offset > newest):
                        newest = entry.physical_offset
                    break
        return newest

    def _advance(self, by: int) -> None:
        self._done += by
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    # ---- the log

    def _look_at_log_files(self) -> None:
        """Names and sizes."""
        add = self.findings.add
        for start, path in self.placement.misnamed.items():
            add("file-misnamed", path, None, path.name, f"{file_name(start)}: its records say so")
        for each, why in self.placement.aside:
            if each.start is None:
                add("file-foreign", each.path, None, each.path.name, "only files named by 20 digits here")
            elif why == "empty":
                add("file-empty", each.path, None, "0 bytes", f"{self.file_size} bytes, or no file")
            else:
                add("file-surplus", each.path, None, why, f"records from {each.start} on, or no file")
        for start, file in self.log.files.items():
            if file.size != self.file_size and start not in self.placement.misnamed:
                what = "file-short" if file.size < self.file_size else "file-long"
                add(what, file.path, None, f"{file.size} bytes", f"{self.file_size} bytes, as the others have")
            if start >= self.log.end > 0 and start > self.log.first and not any(file.data_ranges(0)):
                add("file-ahead", file.path, None, "a file made ahead", "that, or none")

    def _look_at_log(self) -> None:
        add = self.findings.add
        log = self.log
        for gap in log.gaps:
            file = self.layout.commit_log / file_name(gap.start - gap.start % self.file_size)
            at = gap.start % self.file_size
            if gap.reason == MISSING:
                add("file-missing", file, gap.start, "no file", f"the log from {gap.start} to {gap.end}")
            else:
                why = "a broken end-of-file marker" if gap.reason == BROKEN_MARKER else REASONS[gap.reason]
                path = log.file_of(gap.start) or file
                add(CODES[gap.reason], path, at, f"{why} ({gap.end - gap.start} bytes)", "a whole record")
        for offset, told in log.markers:
            path = log.files[offset - offset % self.file_size].path
            add("marker", path, offset % self.file_size, f"{told} bytes", f"{-offset % self.file_size} bytes")
        for port in log.bad_ports:
            path = log.files[port.record - port.record % self.file_size].path
            add("record-host", path, port.record % self.file_size, port.host, "a port from 0 to 65535")
        for offset in log.steps_back:
            path = log.files[offset - offset % self.file_size].path
            add("time-order", path, offset % self.file_size, "a store time before the one before it", "rising times")
        if not log.ends.live:
            self._look_at_tail()

    def _look_at_tail(self) -> None:
        log = self.log
        named = self._newest_named()
        file = log.file_of(log.end) or log.file_of(log.end - 1)
        if file is None:
            if named:
                self.findings.add("tail-lost", self.layout.commit_log, None, "no file", f"records up to {named}")
            return
        stopped_cleanly = not self.layout.abort.exists()
        at = log.end % self.file_size
        if stopped_cleanly and named is not None and named >= log.end:
            told = f"the log ends at {log.end}: {REASONS.get(log.stop_reason, 'its file is missing')}"
            self.findings.add("tail-lost", file, at, told, f"a record at {named}, which a queue names")
        elif log.tail_is_dirty():
            what = "tail-dirty" if stopped_cleanly else "torn-tail"
            self.findings.add(what, file, at, "bytes that are no whole record", "zeroes behind the end")

    # ---- queues and index

    def _look_at_derived(self) -> None:
        index = self._index_check()
        for file, position, end in self.log.stretches():
            while position < end:
                before = position
                dispatched = self._dispatch(file, position, end, tags=True)
                position = dispatched[0]
                self.queues.take(dispatched[2])
                if index is not None:
                    keys = dispatched[3]
                    if index.misses(keys):  # without tags, as old releases write it?
                        plain = self._dispatch(file, before, end, tags=False)[3]
                        keys = keys if index.misses(plain) else plain
                    index.take(keys)
                self._advance(position - before)
        self.queues.finish()
        if index is not None:
            index.finish()

    def _index_check(self) -> IndexCheck | None:
        notes, numbers = read_notes(self.layout), self.config.index
        slots = numbers.slot_count or notes.get("maxHashSlotNum") or DEFAULT_SLOTS
        entries = numbers.entry_count or notes.get("maxIndexNum") or DEFAULT_ENTRIES
        return IndexCheck(self.layout, slots, entries, self.log, self.findings) if numbers.enabled else None

    def _dispatch(self, file: MappedFile, position: int, end: int, *, tags: bool) -> Dispatched:
        delays, index_keys = self.config.delays_ms, self.config.index.enabled
        return dispatch_records(file.pages, position, end, file.start, CHUNK, delays, index_keys, tags)
