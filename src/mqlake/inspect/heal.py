"""Heal damage of the log with the bytes of another copy, each of them proven.

The bytes that replace a block which no longer fits its seal must fit it: both checksums, over all of the block. If the
source ends in the block, its bytes must fit together with the log's own after its end. Those that replace a scar which
no seal proves must be whole records, CRC included, from its first byte to its last; and around it the source must have
the bytes that the log has, as far as it goes. A seal that fits the bytes of a scar proves nothing: it was made of the
damage. It is dropped before they are replaced.

Bytes are written in place, through a descriptor of their own: a failed sync must not be hidden from the thread that
syncs for puts. Mapped readers see them at once. Only pages that differ are written, and they hold nothing but bytes
that were damaged or stay what they are. So a crash in the middle leaves each byte damaged or healed, and healing again
goes on from there. What was there before is kept under `mqlake/backup`.

A scar leaves the list last: when its bytes are on disk, its messages are in their queues again, and a checkpoint says
so. A key that the index never got, because the damage was there when it was built, comes back with the next opening,
which builds the index anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from mqlake.codec.seal_file import BLOCK_BYTES
from mqlake.errors import StoreError, file_error
from mqlake.files.mapped_file import PAGE_SIZE, MappedFile, open_regular
from mqlake.inspect.check_seals import records_over
from mqlake.inspect.heal_source import Source
from mqlake.inspect.repair_backup import Backup
from mqlake.kernel import checksum_blocks, survey_records, walk_records
from mqlake.kernel.types import BLANK, REACHED_END, REASONS, Readable
from mqlake.logs.commit_log import MARKER
from mqlake.logs.seals import CHUNK_BYTES, Range, broken_blocks
from mqlake.store.writer import Writer

CONTEXT: Final = 64 << 10
"""So many bytes before and after a scar must be the same in log and source."""
MAX_UNSEALED: Final = 256 << 20
"""A larger scar without seals is not held in memory to be proven: restore its file instead."""
Progress = Callable[[int, int], object]
"""Called with the bytes of the log looked at so far, and the total."""


class Unhealed(NamedTuple):
    """Damage that stays, and why."""

    start: int
    end: int
    reason: str


class HealReport(NamedTuple):
    """What healing found and did."""

    source: str
    healed: tuple[Range, ...]
    """Ranges of the log that hold their old bytes again."""
    left: tuple[Unhealed, ...]
    written_bytes: int
    message_count: int
    """Messages in healed scars: they are in their queues again."""
    rebuilds_index: bool
    """Whether the next opening builds queues and index anew, because keys of healed messages are not in the index."""
    backup: Path | None
    """Where the bytes are kept that were there before."""


def heal(writer: Writer, source: Source, *, look: bool = True, progress: Progress | None = None) -> HealReport:
    """Heal an open store. With `look`, all of the log is looked at first; else what is known to be damaged."""
    with writer.sealer.lock:
        healing = _Healing(writer, source)
        if look:
            healing.look(progress)
        return healing.run()


class _Healing:
    """One run. The caller holds the seals' lock, so nothing else seals or scrubs meanwhile."""

    def __init__(self, writer: Writer, source: Source) -> None:
        self._writer = writer
        self._files = writer.log_files
        self._size = writer.log_files.file_size
        self._source = source
        self._backup = Backup(writer.layout)
        self._broken = list(writer.sealer.state.broken or ())
        self._healed: list[Range] = []
        self._healed_scars: list[Range] = []
        self._left: list[Unhealed] = []
        self._written = self._messages = 0
        self._rebuilds_index = False

    # ---- what is damaged

    def look(self, progress: Progress | None) -> None:
        """Compare all seals, and walk all records: a block may have been sealed with damage in it."""
        end = min(self._writer.ends.durable, self._writer.ends.dispatched)
        first = self._files.first_offset
        found: list[Range] = []
        for start in self._files.starts:
            file = self._files.file_at(start)
            if file is None or start >= end:
                continue
            table = self._writer.seals.table(start)
            sealed = table.end if table is not None else 0
            for low in range(0, sealed, CHUNK_BYTES):
                assert table is not None, "what is sealed has a table"
                high = min(low + CHUNK_BYTES, sealed)
                blocks = [table.block(index) for index in broken_blocks(table, file.pages, low, high)]
                found += [(start + one, start + stop) for one, stop in blocks]
                if progress is not None:
                    progress(start + high - first, end - first)
            self._walk(file, min(end - start, file.size))
        self._broken = found
        if progress is not None:
            progress(end - first, end - first)

    def _walk(self, file: MappedFile, end: int) -> None:
        """List what holds no whole record as a scar."""
        position = 0
        while position < end:
            found = survey_records(file.pages, position, end, file.start, CHUNK_BYTES)
            position = found.position
            if found.why == BLANK:
                return
            if found.why != REACHED_END:
                position = self._writer.after_damage(file.start + position, REASONS[found.why]) - file.start

    # ---- healing it

    def run(self) -> HealReport:
        blocks = [block for block in self._broken if self._try(block, self._heal_block)]
        for scar in self._writer.scars.ranges:
            for part in self._by_file(scar.start, scar.end):
                if self._try(part, self._heal_scar):
                    self._healed_scars.append(part)
        if self._rebuilds_index:
            self._writer.doubt_index()
        if self._healed_scars or self._rebuilds_index:
            self._writer.checkpoint_now()
        for part in self._healed_scars:
            self._writer.scars.remove(*part)
        for block in blocks:
            self._writer.sealer.healed(*block)
        for part in self._healed:
            self._writer.sealer.reseal(*part)
        return HealReport(
            self._source.name,
            tuple(self._healed),
            tuple(self._left),
            self._written,
            self._messages,
            self._rebuilds_index,
            self._backup.folder,
        )

    def _by_file(self, start: int, end: int) -> Iterator[Range]:
        while start < end:
            stop = min(end, start - start % self._size + self._size)
            yield start, stop
            start = stop

    def _try(self, part: Range, attempt: Callable[[MappedFile, int, int], str | None]) -> bool:
        file = self._files.file_at(part[0])
        if file is None:
            reason: str | None = "its file is not there"
        else:
            try:
                reason = attempt(file, *part)
            except StoreError as error:
                reason = str(error)
        if reason is None:
            self._healed.append(part)
        else:
            self._left.append(Unhealed(*part, reason))
        return reason is None

    def _heal_block(self, file: MappedFile, start: int, end: int) -> str | None:
        """Replace a sealed block; return why it could not be."""
        sealed = self._writer.seals.sums_at(start)
        if sealed is None or sealed[0] != (start, end):
            return "it has no seal any more"
        if self._fits(file, start, end, sealed[1]):
            return None
        data = self._source.read(start, end)
        if _sums(data) != sealed[1]:
            own = bytes(file.view(start - file.start, end - file.start))
            theirs = _to_its_end(data, own)
            data = theirs + own[len(theirs) :]
            if _sums(data) != sealed[1]:
                return self._why_unproven(start, theirs, own)
        self._write(file, start, data)
        if not self._fits(file, start, end, sealed[1]):
            return "it does not fit its seal after it was written"
        records = list(records_over(file, start - file.start, end - file.start))
        if records:
            self._dispatch(records[0], end)
        return None

    def _fits(self, file: MappedFile, start: int, end: int, sums: bytes) -> bool:
        return _sums(file.view(start - file.start, end - file.start)) == sums

    def _why_unproven(self, start: int, theirs: bytes, own: bytes) -> str:
        """Say why the bytes of the source do not fit the seal of a block. `theirs` end where the source does."""
        name, stop = self._source.name, start + len(theirs)
        if not theirs:
            return f"{name} ends before it"
        if theirs == own:
            return f"the bytes of {name} do not fit the seal: it has the same damage"
        if own.startswith(theirs):
            return f"{name} ends at {stop}, and the bytes before that are the same here"
        if len(theirs) < len(own):
            others = "there is damage after its end too, or it is damaged itself, or of another log"
            return f"{name} ends at {stop}; with the bytes that follow here it does not fit the seal: {others}"
        return f"the bytes of {name} do not fit the seal: it is damaged there too, or of another log"

    def _heal_scar(self, file: MappedFile, start: int, end: int) -> str | None:
        """Replace a scar, unless its blocks were healed already; return why it could not be."""
        if _are_records(file.pages, start - file.start, end - file.start, file.start, file.size) is not None:
            if end - start > MAX_UNSEALED:
                return f"{end - start} bytes without seals: restore its file from a backup"
            reason = self._replace_scar(file, start, end)
            if reason is not None:
                return reason
        self._messages += self._dispatch(start, end)
        return None

    def _dispatch(self, start: int, end: int) -> int:
        """Enter healed records into their queues again; return how many. Queues and index may be built of the damage:
        then they are built anew.
        """
        dispatcher = self._writer.dispatcher
        found = dispatcher.run(lambda: dispatcher.dispatch_again(start, end))
        self._rebuilds_index = self._rebuilds_index or not found.is_whole
        return found.message_count

    def _replace_scar(self, file: MappedFile, start: int, end: int) -> str | None:
        first, stop = self._context(start, end, file.start, file.end)
        if (first, stop) == (start, end):  # it fills its file
            first, stop = self._context(start, end, self._files.first_offset, self._files.end_offset)
        if first == start and stop == end:
            return "nothing around it shows that the source has the same log"
        data = self._source.read(first, stop)
        own = self._own(first, stop)
        theirs = _to_its_end(data, own)
        name, its_end = self._source.name, first + len(theirs)
        if data[: start - first] != own[: start - first]:
            return f"{name} ends at {its_end}, before it" if its_end < start else f"{name} has other bytes before it"
        is_short = len(data) < end - first
        reason = None if is_short else _are_records(data, start - first, end - first, first, file.end - first)
        if is_short or (reason is not None and its_end < end):
            return f"{name} ends at {its_end}, before this range does"
        if reason is not None:
            return f"{name} has no whole records there: {reason}"
        after = theirs[end - first :]
        if after != own[end - first :][: len(after)]:
            return f"{name} has other bytes after it"
        if first == start and not any(after):
            return f"{name} ends at {end}, and nothing before it shows that it has the same log"
        self._drop_wrong_seals(file, start, end)
        self._write(file, start, data[start - first : end - first])
        return _are_records(file.pages, start - file.start, end - file.start, file.start, file.size)

    def _context(self, start: int, end: int, low: int, high: int) -> Range:
        """Widen a range within [low, high) by the bytes that a source must have too."""
        first = max(low, start - CONTEXT)
        stop = max(end, min(end + CONTEXT, high, self._writer.ends.durable))
        for scar in self._writer.scars.ranges:
            for part in self._by_file(scar.start, scar.end):
                if part in self._healed_scars:
                    continue
                if first < part[1] <= start:  # what is damaged itself shows nothing
                    first = part[1]
                if end <= part[0] < stop:
                    stop = part[0]
        return first, stop

    def _own(self, start: int, end: int) -> bytes:
        parts = ((self._files.file_at(low), low, high) for low, high in self._by_file(start, end))
        return b"".join(bytes(file.view(low - file.start, high - file.start)) for file, low, high in parts if file)

    def _drop_wrong_seals(self, file: MappedFile, start: int, end: int) -> None:
        """Drop the seals of blocks that were sealed with a scar's damage in them. They are made anew at the end."""
        for offset in range(start - start % BLOCK_BYTES, end, BLOCK_BYTES):
            sealed = self._writer.seals.sums_at(offset)
            if sealed is not None and self._fits(file, *sealed[0], sealed[1]):
                self._writer.seals.forget([sealed[0]])

    def _write(self, file: MappedFile, start: int, data: bytes) -> None:
        """Write the pages that differ, once what was there is kept, and sync them."""
        low = start - file.start
        pages = [at for at in range(0, len(data), PAGE_SIZE) if _differs(file, low + at, data[at : at + PAGE_SIZE])]
        for at in pages:
            part = data[at : at + PAGE_SIZE]
            self._backup.keep_range(file.path, low + at, file.pages[low + at : low + at + len(part)])
        self._backup.seal()
        with _opened(file.path) as descriptor:
            for at in pages:
                part = data[at : at + PAGE_SIZE]
                if os.pwrite(descriptor, part, low + at) != len(part):
                    raise file_error(file.path, "written", len(part), OSError("a short write"))
                self._written += len(part)
            os.fdatasync(descriptor)


def _sums(data: Readable) -> bytes:
    return checksum_blocks(data, 0, len(data), BLOCK_BYTES)


def _to_its_end(data: bytes, own: Readable) -> bytes:
    """Return what a source has of a range. Zeros to its end are after the source's end, unless they are here too."""
    theirs = data.rstrip(b"\0")
    return theirs if any(own[len(theirs) :]) else data


def _differs(file: MappedFile, position: int, data: bytes) -> bool:
    return bool(file.pages[position : position + len(data)] != data)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = open_regular(path, os.O_RDWR)
    try:
        yield descriptor
    except OSError as error:
        raise file_error(path, "healed", 0, error) from error
    finally:
        os.close(descriptor)


def _are_records(log: Readable, low: int, high: int, log_start: int, file_end: int) -> str | None:
    """Return why [low, high) does not hold whole records from end to end; None if it does.

    At the end of the file, at position `file_end`, a marker may follow the last one.
    """
    walked = walk_records(log, low, high, log_start, True)
    if walked.why == REACHED_END:
        return None
    if walked.why == BLANK:
        told = MARKER.unpack_from(log, walked.position)[0]
        return None if walked.position + told == high == file_end else "a marker is in the middle"
    return REASONS[walked.why]
