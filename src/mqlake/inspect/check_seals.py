"""Compare the log with its seals, and say which records lie in a block that changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.seal_file import BLOCK_BYTES
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.files.names import file_name
from mqlake.inspect.findings import Findings
from mqlake.inspect.log_map import LogMap
from mqlake.inspect.survey import open_file
from mqlake.kernel import check_record, find_record
from mqlake.logs.damage import APPROACH, boundary_behind
from mqlake.logs.seals import CHUNK_BYTES, Range, Seals, broken_blocks
from mqlake.store.lineage import is_ours


class SealWork(NamedTuple):
    """Positions [low, high) of a log file that are to be compared with its seals. `low` begins a block."""

    root: str
    path: str
    """The log file, which may have a wrong name."""
    start: int
    file_size: int
    low: int
    high: int


def compare(work: SealWork) -> list[int]:
    """Return the positions of the blocks that changed. Runs in any process."""
    layout = Layout(Path(work.root))
    table = Seals(layout, work.file_size, writable=False).table(work.start)
    file = open_file(Path(work.path), work.start)
    if table is None:
        return []
    pages = file.pages if file is not None else b""
    found: list[int] = []
    for low in range(work.low, work.high, CHUNK_BYTES):
        found += broken_blocks(table, pages, low, min(low + CHUNK_BYTES, work.high))
    return [table.block(index)[0] for index in found]


class SealCheck:
    """The seals of a store: which of them count, which files cannot be used, and which blocks changed."""

    def __init__(self, layout: Layout, log: LogMap, *, written_here: bool) -> None:
        """`written_here`: a process of mqlake writes the store now, and keeps its seals true."""
        self._layout = layout
        self._log = log
        self.seals = Seals(layout, log.file_size, writable=False)
        starts = [start for start in self.seals.starts() if start >= log.first]
        self.unusable = [self.seals.folder / file_name(start) for start in starts if self.seals.table(start) is None]
        same = written_here or is_ours(layout, log.ends.checkpoint, self._file_at)
        self.sealed_end = max((start + t.end for start in starts if (t := self.seals.table(start))), default=0)
        self.fitting_end = self.seals.fitting_end(self._file_at, is_same_log=same) if starts else 0
        self.starts = starts
        """The starts of the log files that have a seal file."""
        self.broken: list[Range] = []
        """Ranges of the log that changed since they were sealed, block by block. Known after `finish`."""

    def _file_at(self, offset: int) -> MappedFile | None:
        return self._log.files.get(offset - offset % self._log.file_size)

    def works(self, size: int) -> list[SealWork]:
        """Return what is to be compared, in parts of about `size` bytes."""
        size = max(1, size // BLOCK_BYTES) * BLOCK_BYTES
        made = []
        for start in self.starts:
            table = self.seals.table(start)
            stop = min(table.end, self.fitting_end - start) if table is not None else 0
            if table is not None and start in self._log.files:
                place = str(self._layout.root), str(self._log.files[start].path), start, self._log.file_size
                made += [SealWork(*place, low, min(low + size, stop)) for low in range(0, stop, size)]
        return made

    def block_at(self, offset: int) -> Range | None:
        """Return the sealed block that covers an offset."""
        sealed = self.seals.sums_at(offset)
        return None if sealed is None else sealed[0]

    def finish(self, known: Mapping[SealWork, list[int]], findings: Findings) -> None:
        """Report what changed. The log was walked, so its end is known. `known` works were done before."""
        for path in self.unusable:
            findings.add("seal-file", path, None, "a wrong checksum, or seals of another file", "seals of its log file")
        if self.fitting_end < self.sealed_end:
            told = f"seals up to {self.sealed_end}, of another past of the log"
            findings.add("seal-stale", self.seals.folder, None, told, f"seals up to {self.fitting_end}")
        broken = known if known else {work: compare(work) for work in self.works(1 << 40)}
        for work, positions in broken.items():
            for low in positions:
                self._take(work.start, low, findings)
        self.broken.sort()

    def records_in(self, block: Range) -> list[int]:
        """Return the physical offsets of the whole records that overlap a block of `broken`."""
        file = self._file_at(block[0])
        assert file is not None, "what was compared is there"
        return list(records_over(file, block[0] - file.start, min(block[1] - file.start, file.size)))

    def _take(self, start: int, low: int, findings: Findings) -> None:
        block = self.block_at(start + low)
        if block is None or block[1] > self._log.end:
            return  # recovery will cut the log here
        self.broken.append(block)
        high = block[1] - start
        file = self._log.files[start]
        told = f"other bytes than were sealed, in {records_text(self.records_in(block))}"
        findings.add("seal-broken", file.path, low, told, f"{high - low} bytes as they were sealed")


def records_text(found: list[int]) -> str:
    """Return the physical offsets of records as text."""
    if not found:
        return "no whole record"
    ends = f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"
    return f"{len(found)} record{'s' if len(found) > 1 else ''}: {ends}"


def records_over(file: MappedFile, low: int, high: int) -> Iterable[int]:
    """Yield the physical offsets of the whole records that overlap positions [low, high)."""
    before = low - APPROACH
    position = boundary_behind(file, before, high) if before > 0 else 0
    while position < high:
        size = check_record(file.pages, position, file.size, file.start + position, False)
        if size == 0:
            return
        if size < 0:
            position = find_record(file.pages, position + 1, high, file.start)
            continue
        if position + size > low:
            yield file.start + position
        position += size
