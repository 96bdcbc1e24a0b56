"""Consume queues against the log: every numbered record has its entry, and every entry its record.

The entries that must be there are derived from the log, as dispatch does it, and compared with the queues' bytes. What
is left of a queue then are entries of messages that retention took, entries of no message where records were lost, and
zeroes behind the end; anything else is wrong.

A hole in a queue's numbers with nothing lost around it comes from a header that contradicts its neighbours
(`neighbours`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER, FILLER_SIZE
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.kernel import StoredRecord
from mqlake.store.findings import Findings
from mqlake.store.log_map import LogMap
from mqlake.store.neighbours import Fix, Hole, fix_for, is_hidden, is_lost, records_inside
from mqlake.store.piece import Piece, QueueRun
from mqlake.store.queue_files import QueueFiles, Wrong, queue_folder
from mqlake.store.survey import look

LOST = 1
"""The tags code of an entry of no message in the middle of a queue: those before its beginning have 0."""
MAX_HOLES = 1000
"""Holes that are looked into; each costs a walk over the records between its neighbours."""


class Patch(NamedTuple):
    """What an entry must be that no record of the log gives."""

    file: Path
    position: int
    data: bytes


class _Queue(QueueFiles):
    """One queue: its files as they are, and what the log has told of it so far."""

    def __init__(self, directory: Path, file_size: int) -> None:
        super().__init__(directory, file_size)
        self.seen = False
        """The log has records of this queue."""
        self.first = self.next = 0
        self.last_record = -1
        self.holes: list[Hole] = []


class QueueCheck:
    """Takes the log's pieces in order; `finish` looks at what is left."""

    def __init__(self, layout: Layout, file_size: int, log: LogMap, findings: Findings) -> None:
        self._layout = layout
        self._file_size = file_size
        self._log = log
        self._findings = findings
        self.queues: dict[tuple[str, int], _Queue] = {}
        self.outliers: set[int] = set()
        """Records whose number does not follow, or with which a queue begins above 0."""
        self.repeated: set[tuple[str, int, int]] = set()
        """Topic, queue and number that more than one record has."""
        self.fixes: list[Fix] = []
        self.mended: set[Hole] = set()
        self.patches: list[Patch] = []
        self.wrong: set[tuple[str, int]] = set()
        """Queues that must be built again."""
        self.refused: set[tuple[str, int]] = set()
        """Of those, the ones that cannot even be opened."""

    def take(self, piece: Piece) -> None:
        for run in piece.runs:
            queue = self._queue(run.topic, run.queue_id)
            if not queue.seen:
                queue.seen, queue.first = True, run.first
                if run.first > 0:
                    self.outliers.add(run.first_record)
            elif run.first != queue.next:
                self.outliers.add(run.first_record)
                if run.first < queue.next:
                    self.repeated.add((run.topic, run.queue_id, run.first))
                sides = queue.last_record, run.first_record
                queue.holes.append(Hole(run.topic, run.queue_id, queue.next, run.first, *sides))
            queue.next, queue.last_record = run.stop, run.last_record
            for wrong in run.wrong:
                self._take_wrong(run, queue, wrong)

    def _take_wrong(self, run: QueueRun, queue: _Queue, wrong: Wrong) -> None:
        for number, here, wanted in wrong.entries:
            self._wrong_entry(run.topic, run.queue_id, queue, number, here, show_entry(wanted))
        self._findings.add_more(
            "queue-entry", queue.path_of(wrong.entries[0][0]), wrong.entry_count - len(wrong.entries)
        )

    def _queue(self, topic: str, queue_id: int) -> _Queue:
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = self.queues[topic, queue_id] = _Queue(queue_folder(self._layout, topic, queue_id), self._file_size)
        return queue

    def _wrong_entry(self, topic: str, queue_id: int, queue: _Queue, number: int, here: bytes, expected: str) -> None:
        self.wrong.add((topic, queue_id))
        position = number * ENTRY_SIZE % self._file_size
        self._findings.add("queue-entry", queue.path_of(number), position, show_entry(here), expected)

    # ---- when the whole log was seen

    def finish(self) -> None:
        for (topic, queue_id), queue in sorted(self.queues.items()):
            if not queue.known:
                self.wrong.add((topic, queue_id))
                expected = f"a folder with entries {queue.first} to {queue.next - 1}"
                self._findings.add("queue-missing", queue.directory, None, "none", expected)
        self._find_fixes()
        for queue in self.queues.values():
            self._look_into_holes(queue)
        for topic, queue_id in self._on_disk():
            self._look_at_files(topic, queue_id)
            self._look_at_rest(topic, queue_id, self._queue(topic, queue_id))

    def _on_disk(self) -> Iterator[tuple[str, int]]:
        for folder in sorted(self._layout.consume_queues.glob("*/*")):
            if not folder.is_dir() or not (folder.name.isascii() and folder.name.isdigit()):
                self._findings.add("foreign", folder, None, "no queue", "folders named by a queue id")
            else:
                yield folder.parent.name, int(folder.name)

    def _find_fixes(self) -> None:
        """First of all: a mended header explains holes in two queues."""
        for queue in self.queues.values():
            for hole in queue.holes[:MAX_HOLES]:
                known = self._is_mended(hole) or is_lost(self._log, hole)
                fix = None if known else self._fix_of(queue, hole)
                if fix is not None:
                    self.wrong.add((hole.topic, hole.queue_id))
                    self.fixes.append(fix)
                    self.mended.add(hole)
                    file = self._log.files[fix.offset - fix.offset % self._log.file_size]
                    self._findings.add("record-header", file.path, fix.offset - file.start, fix.found, fix.expected)

    def _look_into_holes(self, queue: _Queue) -> None:
        for hole in queue.holes[:MAX_HOLES]:
            what = "number-repeat" if hole.stop < hole.first else "number-gap"
            if self._is_mended(hole) or (what == "number-gap" and is_lost(self._log, hole)):
                continue
            file = self._log.files[hole.before - hole.before % self._log.file_size]
            found = f"{hole.topic}, queue {hole.queue_id}: number {hole.stop}"
            self._findings.add(what, file.path, hole.before - file.start, found, f"number {hole.first}")

    def _is_mended(self, hole: Hole) -> bool:
        """The other side of a number that jumped and came back, or a record that did not belong here, is told once."""
        return hole in self.mended or any(fix.offset in (hole.after, hole.before) for fix in self.fixes)

    def _fix_of(self, queue: _Queue, hole: Hole) -> Fix | None:
        """The record that is the missing one, but for one bit of its header.

        The record behind the hole is it only where the queue does not go on from its number.
        """
        follows = queue.last_record != hole.before and all(other.after != hole.before for other in queue.holes)
        suspects = [record for record in records_inside(self._log, hole) if self._is_suspect(record)]
        fixes = [fix_for(record, hole) for record in suspects if record.physical_offset != hole.before or not follows]
        candidates = [fix for fix in fixes if fix is not None]
        others = [fix for fix in candidates if fix.offset != hole.before]
        named = queue.bytes_at(hole.first * ENTRY_SIZE, ENTRY_SIZE)[:8]  # where two are possible, the queue decides
        chosen = [fix for fix in candidates if fix.offset.to_bytes(8, "big") == named] or others or candidates
        return chosen[0] if len(chosen) == 1 else None

    def _is_suspect(self, record: StoredRecord) -> bool:
        """Its number does not follow, or another record has it too, or it has one and is in no queue."""
        twice = (record.topic, record.queue_id, record.queue_offset) in self.repeated
        return record.physical_offset in self.outliers or twice or is_hidden(record)

    def _look_at_files(self, topic: str, queue_id: int) -> None:
        """Names, sizes and order of a queue's files."""
        found = look(self._layout.consume_queues / topic / str(queue_id))
        expected = None
        for each in found:
            what = None
            if each.start is None or each.start % self._file_size:
                what, told = "queue-file-name", (each.path.name, f"a multiple of {self._file_size} in 20 digits")
            elif each.size != self._file_size:
                what, told = "queue-file-size", (f"{each.size} bytes", f"{self._file_size} bytes")
                expected = each.start + self._file_size
            else:
                if expected is not None and each.start != expected:
                    what, told = "queue-file-missing", (f"a file that starts at {each.start}", f"one at {expected}")
                expected = each.start + self._file_size
            if what is not None:
                self.wrong.add((topic, queue_id))
                self.refused.add((topic, queue_id))
                self._findings.add(what, each.path, None, *told)

    def _look_at_rest(self, topic: str, queue_id: int, queue: _Queue) -> None:
        """Entries that the log does not ask for."""
        first, stop = (queue.first, queue.next) if queue.seen else (1 << 60, 0)
        for file in queue.all():
            number = file.start // ENTRY_SIZE
            end = number + min(file.size, self._file_size) // ENTRY_SIZE
            if first > number:
                self._look_before(topic, queue_id, queue, file, number, min(first, end))
            if stop < end and not self._log.ends.live and queue.seen:
                self._look_behind(topic, queue_id, queue, file, max(stop, number))
        for hole in queue.holes:
            if hole.stop - hole.first <= MAX_HOLES:
                self._look_at_hole(queue, hole)

    def _look_before(self, topic: str, queue_id: int, queue: _Queue, file: MappedFile, number: int, stop: int) -> None:
        """Before the first record: messages that retention took, or entries of no message."""
        base = file.start // ENTRY_SIZE
        data = file.pages[(number - base) * ENTRY_SIZE : (stop - base) * ENTRY_SIZE]
        for at, (offset, size, _) in enumerate(ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_SIZE])):
            if not queue.seen and offset == size == 0:
                return
            if size > 0 and (size == FILLER_SIZE or 0 <= offset < self._log.first or self._in_gap(offset)):
                continue
            here = data[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE]
            if not queue.seen and self._log.ends.limit is not None and offset >= self._log.ends.limit:
                return  # written since the look at a live store began
            expected = f"an entry of what was before offset {self._log.first}, or of no message"
            self._wrong_entry(topic, queue_id, queue, number + at, here, expected)
            if (
                not queue.seen
            ):  # the log cannot tell what was here: the queue keeps its numbers, but ends with a message
                is_last = not any(data[(at + 1) * ENTRY_SIZE : (at + 2) * ENTRY_SIZE])
                patch = bytes(ENTRY_SIZE) if is_last else FILLER
                self.patches.append(Patch(file.path, (number + at) * ENTRY_SIZE - file.start, patch))

    def _in_gap(self, offset: int) -> bool:
        return any(gap.start <= offset < gap.end for gap in self._log.gaps)

    def _look_behind(self, topic: str, queue_id: int, queue: _Queue, file: MappedFile, stop: int) -> None:
        position = stop * ENTRY_SIZE - file.start
        zeroes = bytes(1 << 16)
        for start, end in file.data_ranges(position):
            for at in range(start, end, len(zeroes)):
                part = file.pages[at : min(end, at + len(zeroes))]
                if part != zeroes[: len(part)]:
                    dirty = at + next(i for i, byte in enumerate(part) if byte)
                    dirty -= dirty % ENTRY_SIZE
                    self.wrong.add((topic, queue_id))
                    told = f"zeroes behind entry {stop - 1}"
                    self._findings.add("queue-tail", file.path, dirty, "something other than zero", told)
                    return

    def _look_at_hole(self, queue: _Queue, hole: Hole) -> None:
        """The numbers of lost records: entries of no message, in a form that RocketMQ passes over."""
        for number in range(hole.first, hole.stop):
            here = queue.bytes_at(number * ENTRY_SIZE, ENTRY_SIZE)
            if len(here) < ENTRY_SIZE:
                return
            offset, size, _ = ENTRY.unpack(here)
            wanted = self._entry_of_no_message(queue, hole)
            if here == wanted or self._in_gap(offset):
                continue
            position = number * ENTRY_SIZE % self._file_size
            self.patches.append(Patch(queue.path_of(number), position, wanted))
            expected = f"{show_entry(wanted)}: its own record was lost"
            what = "queue-hole" if size == FILLER_SIZE else "queue-entry"
            self._findings.add(what, queue.path_of(number), position, show_entry(here), expected)

    def _entry_of_no_message(self, queue: _Queue, hole: Hole) -> bytes:
        """RocketMQ must neither fail on it nor pass over more than it.

        It looks for a record of the size in the entry, finds that no file has it, and goes on with the next log file
        behind the entry's offset. So the entry names the beginning of the file before the next message's. In a log that
        does not begin at 0 it must not be the log's first file, nor one before: RocketMQ 5 looks for where the queue
        begins by such offsets. Where there is no such file the entry names the next message, which is delivered twice.
        """
        first, before = self._log.first, hole.before - hole.before % self._log.file_size - self._log.file_size
        if before > first or before == first == 0:
            return ENTRY.pack(before, FILLER_SIZE, LOST)
        return queue.bytes_at(hole.stop * ENTRY_SIZE, ENTRY_SIZE)


def show_entry(data: bytes) -> str:
    if len(data) < ENTRY_SIZE:
        return "nothing"
    offset, size, tags_code = ENTRY.unpack(data)
    if size == FILLER_SIZE:
        return "no message"
    return "zeroes" if not any(data) else f"record at {offset}, {size} bytes, tags {tags_code}"
