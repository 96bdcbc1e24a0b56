"""Check consume queues against the log: every record of a queue has its entry, and every entry its record.

The expected entries are derived from the log, as dispatch does it, and compared with the bytes of the queues. Besides
them a queue may hold entries of messages that retention deleted, fillers for lost records, and zeros after the end.
Anything else is wrong.

A hole in the queue offsets with nothing lost around it comes from a header that contradicts its neighbours
(`neighbours`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, FILLER, FILLER_SIZE, entry_of_no_message
from mqlake.files.layout import Layout
from mqlake.files.mapped_file import MappedFile
from mqlake.inspect.findings import Findings
from mqlake.inspect.log_map import LogMap
from mqlake.inspect.neighbours import Fix, Hole, fix_for, is_hidden, is_lost, records_inside
from mqlake.inspect.piece import NEVER, Piece, QueueRun
from mqlake.inspect.queue_files import QueueFiles, Wrong, queue_folder, queue_folders
from mqlake.inspect.survey import look
from mqlake.kernel import StoredRecord

MAX_HOLES = 1000
"""At most this many holes are examined; each costs a walk over the records between its neighbours."""


class Patch(NamedTuple):
    """The required value of an entry that has no record in the log."""

    file: Path
    position: int
    data: bytes


class _Queue(QueueFiles):
    """One queue: its files as they are, and what the log so far requires of it."""

    def __init__(self, directory: Path, file_size: int) -> None:
        super().__init__(directory, file_size)
        self.seen = False
        """Whether the log has records of this queue."""
        self.first = self.next = 0
        self.first_record = self.last_record = -1
        self.holes: list[Hole] = []
        self.lost_end = 0
        """The queue offset after the last lost message if nothing follows it; else 0."""


class QueueCheck:
    """Takes the pieces of the log in order; `finish` checks the remaining entries."""

    def __init__(
        self,
        layout: Layout,
        file_size: int,
        log: LogMap,
        findings: Findings,
        deleted_topics: Collection[str] = (),
    ) -> None:
        self._layout = layout
        self._file_size = file_size
        self._log = log
        self._findings = findings
        self._deleted_topics = deleted_topics
        self.queues: dict[tuple[str, int], _Queue] = {}
        self.outliers: set[int] = set()
        """Records whose queue offset does not follow the one before, or with which a queue begins above 0."""
        self.repeated: set[tuple[str, int, int]] = set()
        """Topic, queue and queue offset that more than one record has."""
        self.fixes: list[Fix] = []
        self.mended: set[Hole] = set()
        self.patches: list[Patch] = []
        self.beyond = -1
        """The newest record that a queue names after the log's end; -1 if none does."""
        self.wrong: set[tuple[str, int]] = set()
        """Queues that must be rebuilt."""
        self.refused: set[tuple[str, int]] = set()
        """Those of `wrong` that cannot even be opened."""

    def take(self, piece: Piece) -> None:
        for run in piece.runs:
            queue = self._queue(run.topic, run.queue_id)
            if not queue.seen:
                queue.seen, queue.first, queue.first_record = True, run.first, run.first_record
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

    # ---- after the whole log

    def finish(self) -> None:
        for (topic, queue_id), queue in sorted(self.queues.items()):
            if not queue.known and queue.first_record < self._log.ends.redone_from:
                self.wrong.add((topic, queue_id))
                expected = f"a folder with entries {queue.first} to {queue.next - 1}"
                self._findings.add("queue-missing", queue.directory, None, "none", expected)
        self._find_fixes()
        for queue in self.queues.values():
            self._look_into_holes(queue)
        for topic, queue_id in self._on_disk():
            if self._log.ends.live and topic in self._deleted_topics and not self._queue(topic, queue_id).seen:
                continue  # its files are being removed, or it is new
            self._look_at_files(topic, queue_id)
            self._look_at_rest(topic, queue_id, self._queue(topic, queue_id))

    def _on_disk(self) -> Iterator[tuple[str, int]]:
        for folder in queue_folders(self._layout.consume_queues):
            if folder.name.isascii() and folder.name.isdigit() and folder.is_dir():
                yield folder.parent.name, int(folder.name)
            elif os.path.lexists(folder):
                self._findings.add("foreign", folder, None, "no queue", "a folder named by a queue id")

    def _find_fixes(self) -> None:
        """Examine holes first: one corrected header may explain holes in two queues."""
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
            found = f"{hole.topic}, queue {hole.queue_id}: queue offset {hole.stop}"
            self._findings.add(what, file.path, hole.before - file.start, found, f"queue offset {hole.first}")

    def _is_mended(self, hole: Hole) -> bool:
        """Return whether a corrected header explains this hole: each fault is reported once."""
        return hole in self.mended or any(fix.offset in (hole.after, hole.before) for fix in self.fixes)

    def _fix_of(self, queue: _Queue, hole: Hole) -> Fix | None:
        """Return the record that is the missing one except for one bit of its header.

        The record after the hole qualifies only if the queue does not continue from its queue offset.
        """
        follows = queue.last_record != hole.before and all(other.after != hole.before for other in queue.holes)
        suspects = [record for record in records_inside(self._log, hole) if self._is_suspect(record)]
        fixes = [fix_for(record, hole) for record in suspects if record.physical_offset != hole.before or not follows]
        candidates = [fix for fix in fixes if fix is not None]
        others = [fix for fix in candidates if fix.offset != hole.before]
        named = queue.bytes_at(hole.first * ENTRY_SIZE, ENTRY_SIZE)[:8]  # if two are possible, the queue decides
        chosen = [fix for fix in candidates if fix.offset.to_bytes(8, "big") == named] or others or candidates
        return chosen[0] if len(chosen) == 1 else None

    def _is_suspect(self, record: StoredRecord) -> bool:
        """Return whether the queue offset does not follow, or is not unique, or belongs to a record of no queue."""
        twice = (record.topic, record.queue_id, record.queue_offset) in self.repeated
        return record.physical_offset in self.outliers or twice or is_hidden(record)

    def _look_at_files(self, topic: str, queue_id: int) -> None:
        """Check names, sizes and order of the files of a queue."""
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
        """Check the entries that the log does not require."""
        first, stop = (queue.first, queue.next) if queue.seen else (1 << 60, 0)
        for file in queue.all():
            number = file.start // ENTRY_SIZE
            end = number + min(file.size, self._file_size) // ENTRY_SIZE
            if first > number:
                self._look_before(topic, queue_id, queue, file, number, min(first, end))
            if stop < end and not self._log.ends.live and queue.seen:
                if stop >= number:
                    stop = queue.lost_end = self._end_of_lost(topic, queue_id, queue, file, stop)
                    self._look_beyond(file.pages[stop * ENTRY_SIZE - file.start :][:ENTRY_SIZE])
                if self._log.ends.redone_from == NEVER:  # else the next opening zeroes what is there
                    self._look_behind(topic, queue_id, queue, file, max(stop, number))
        is_settled = self._log.ends.redone_from == NEVER and (topic, queue_id) not in self.wrong
        if queue.lost_end > queue.next and is_settled:
            lost = Hole(topic, queue_id, queue.next, queue.lost_end, queue.last_record, self._log.end)
            self._look_at_lost_end(queue, lost)
        for hole in queue.holes:
            if hole.stop - hole.first <= MAX_HOLES and hole.before < self._log.ends.redone_from:
                self._look_at_hole(queue, hole)

    def _look_beyond(self, entries: bytes) -> None:
        """Note what entries name if it was after the end of the log: then messages are lost there."""
        for offset, size, _ in ENTRY.iter_unpack(entries[: len(entries) - len(entries) % ENTRY_SIZE]):
            if 0 < size < FILLER_SIZE and offset >= self._log.end:
                self.beyond = max(self.beyond, offset)

    def _look_before(self, topic: str, queue_id: int, queue: _Queue, file: MappedFile, number: int, stop: int) -> None:
        """Check the entries before the first record: messages that retention deleted, or fillers."""
        base = file.start // ENTRY_SIZE
        data = file.pages[(number - base) * ENTRY_SIZE : (stop - base) * ENTRY_SIZE]
        if not queue.seen and not self._log.ends.live:
            self._look_beyond(data)
        for at, (offset, size, _) in enumerate(ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_SIZE])):
            if not queue.seen and offset == size == 0:
                return
            if size > 0 and (size == FILLER_SIZE or 0 <= offset < self._log.first or self._in_gap(offset)):
                continue
            here = data[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE]
            if not queue.seen and offset >= self._log.ends.derived_before:
                return  # written after the check of a live store began, or removed by the next opening
            expected = f"an entry of a message before offset {self._log.first}, or a filler"
            self._wrong_entry(topic, queue_id, queue, number + at, here, expected)
            if (
                not queue.seen
            ):  # the log does not show what was here: the queue keeps its offsets, but must end with a message
                is_last = not any(data[(at + 1) * ENTRY_SIZE : (at + 2) * ENTRY_SIZE])
                patch = bytes(ENTRY_SIZE) if is_last else FILLER
                self.patches.append(Patch(file.path, (number + at) * ENTRY_SIZE - file.start, patch))

    def _end_of_lost(self, topic: str, queue_id: int, queue: _Queue, file: MappedFile, stop: int) -> int:
        """Return the queue offset after the entries of messages lost at the end of the log. It is not reused.

        Such an entry names a lost place, or no message, or the last message of the queue once more.
        """
        checkpoint = self._log.ends.checkpoint
        known = checkpoint.queue_ends.get(topic, {}).get(queue_id, 0) if checkpoint is not None else 0
        last = queue.bytes_at((queue.next - 1) * ENTRY_SIZE, ENTRY_SIZE)
        end = min(file.size, self._file_size)
        for position in range(stop * ENTRY_SIZE - file.start, end - ENTRY_SIZE + 1, ENTRY_SIZE):
            here = file.pages[max(0, position) : position + ENTRY_SIZE]
            if len(here) < ENTRY_SIZE:  # the file has a name that is not its own
                break
            offset, size, _ = ENTRY.unpack(here)
            stands_for_lost = stop < known and (size == FILLER_SIZE or here == last)
            if size <= 0 or not (self._in_gap(offset) or stands_for_lost):
                break
            stop += 1
        return stop

    def _in_gap(self, offset: int) -> bool:
        return any(gap.start <= offset < gap.end for gap in self._log.gaps)

    def _look_behind(self, topic: str, queue_id: int, queue: _Queue, file: MappedFile, stop: int) -> None:
        position = stop * ENTRY_SIZE - file.start
        zeros = bytes(1 << 16)
        for start, end in file.data_ranges(position):
            for at in range(start, end, len(zeros)):
                part = file.pages[at : min(end, at + len(zeros))]
                if part != zeros[: len(part)]:
                    dirty = at + next(i for i, byte in enumerate(part) if byte)
                    dirty -= dirty % ENTRY_SIZE
                    self.wrong.add((topic, queue_id))
                    told = f"zeros after entry {stop - 1}"
                    self._findings.add("queue-tail", file.path, dirty, "other bytes than zeros", told)
                    return

    def _look_at_hole(self, queue: _Queue, hole: Hole) -> None:
        """Check the entries of lost records: fillers, in a form that RocketMQ skips.

        They may also name the message before them, as a repair writes them at the end of a queue.
        """
        before = queue.bytes_at((hole.first - 1) * ENTRY_SIZE, ENTRY_SIZE) if is_lost(self._log, hole) else b""
        self._require_lost(queue, hole, self._entry_of_no_message(queue, hole), before)

    def _look_at_lost_end(self, queue: _Queue, lost: Hole) -> None:
        """Check the entries of messages lost at the end of a queue (`ConsumeQueue.fill_to`)."""
        named = queue.bytes_at((lost.first - 1) * ENTRY_SIZE, ENTRY_SIZE)
        no_message = entry_of_no_message(self._log.first, lost.before, self._log.file_size)
        self._require_lost(queue, lost._replace(stop=lost.stop - 1), no_message or named, named)
        self._require_lost(queue, lost._replace(first=lost.stop - 1, before=-1), named)  # no filler is allowed here

    def _require_lost(self, queue: _Queue, hole: Hole, wanted: bytes, also: bytes = b"") -> None:
        for number in range(hole.first, hole.stop):
            here = queue.bytes_at(number * ENTRY_SIZE, ENTRY_SIZE)
            if len(here) < ENTRY_SIZE:
                return
            offset, size, _ = ENTRY.unpack(here)
            if here in (wanted, also) or self._in_gap(offset) or self._is_of_no_message(here, hole):
                continue
            position = number * ENTRY_SIZE % self._file_size
            self.patches.append(Patch(queue.path_of(number), position, wanted))
            expected = f"{show_entry(wanted)}: its own record was lost"
            what = "queue-hole" if size == FILLER_SIZE else "queue-entry"
            self._findings.add(what, queue.path_of(number), position, show_entry(here), expected)

    def _entry_of_no_message(self, queue: _Queue, hole: Hole) -> bytes:
        """Return what dispatch writes for a lost message (`ConsumeQueue.write`)."""
        entry = entry_of_no_message(self._log.first, hole.before, self._log.file_size)
        return entry or queue.bytes_at(hole.stop * ENTRY_SIZE, ENTRY_SIZE)

    def _is_of_no_message(self, entry: bytes, hole: Hole) -> bool:
        """Return whether an entry is such a filler, also of an earlier file than it would be now."""
        offset = ENTRY.unpack(entry)[0]
        return entry == entry_of_no_message(self._log.first, offset + self._log.file_size, self._log.file_size) and (
            offset + self._log.file_size <= hole.before
        )


def show_entry(data: bytes) -> str:
    if len(data) < ENTRY_SIZE:
        return "nothing"
    offset, size, tags_code = ENTRY.unpack(data)
    if size == FILLER_SIZE:
        return "no message"
    return "zeros" if not any(data) else f"record at {offset}, {size} bytes, tags {tags_code}"
