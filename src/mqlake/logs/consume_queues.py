"""All consume queues of a store, of which there may be a hundred thousand and more.

Only the end of every queue is kept in memory. A queue's files are opened when it is read, and a bounded number of
queues stays open. To append to closed queues, dispatch opens one file after the other for the duration of the write.

The writer knows all queues. A follower finds new ones in the folders, when it is asked for them. The folder of a queue
exists before the writer's `dispatched` end covers its first record, so a follower that reads that end first finds it.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mqlake.codec.queue_entry import ENTRY, ENTRY_SIZE, entry_of_no_message
from mqlake.errors import BadFile, UnknownTopic, file_error
from mqlake.files.mapped_file import sync_directory
from mqlake.files.mapped_file_queue import MappedFileQueue
from mqlake.files.names import file_name, folder_names
from mqlake.files.small_files import remove_folder
from mqlake.files.unsynced import Unsynced
from mqlake.kernel import write_to_files
from mqlake.kernel.types import Run
from mqlake.logs.batch_queue import BatchQueue
from mqlake.logs.consume_queue import UNKNOWN, ConsumeQueue
from mqlake.logs.queue_folder import (
    Folder,
    clear_folder,
    cut_folder,
    is_plausible,
    is_regular,
    is_whole,
    is_whole_and_plausible,
    read_folder,
)
from mqlake.logs.topic_table import can_be_folder
from mqlake.runtime.locks import make_lock

MAX_OPEN = 256
"""Queues that stay open in one store; `open_files` counts their files."""
QueueEnds = dict[str, dict[int, int]]
"""Topic -> queue id -> the queue offset after its last entry."""
NO_ENDS: dict[int, int] = {}


class _Append(NamedTuple):
    """Entries for the last file of a closed queue."""

    path: str
    at: int
    run: Run


class ConsumeQueues:
    """The queues of all topics, by topic and queue id."""

    def __init__(
        self, directory: Path, file_size: int, log: MappedFileQueue, *, writable: bool, scratch: Path | None = None
    ) -> None:
        """`log`: the files of the commit log. What stands for a lost message depends on which of them are there."""
        self.directory = directory
        self.file_size = file_size
        self._log = log
        self._writable = writable
        self._scratch = scratch
        self._lock = make_lock("queues")
        self._ends: QueueEnds = {}
        """Every existing queue with its end; UNKNOWN if it was not searched for yet."""
        self._open: dict[tuple[str, int], ConsumeQueue] = {}
        self._in_use: weakref.WeakValueDictionary[tuple[str, int], ConsumeQueue] = weakref.WeakValueDictionary()
        """Open queues, and closed ones that somebody still refers to. There must be one object per queue: two would
        disagree about its files."""
        self._unsynced = Unsynced(directory if writable else None)
        self.version = 0
        """Incremented when a queue is created or deleted. Only in the writer; a follower must look at the folders."""
        self.log_end = 0
        """Entries must end before this offset in a queue that is opened later. Set by recovery, raised by followers."""

    def load(self) -> None:
        """List the existing queues. Folders that are not a queue's are skipped, as in RocketMQ."""
        self._ends = {topic: dict.fromkeys(ids, UNKNOWN) for topic, ids in _list_queues(self.directory)}

    def know_ends(self, ends: QueueEnds) -> None:
        """Take the ends of the existing queues from a table. The ends it does not have are searched for later."""
        with self._lock:
            self._open.clear()
            for topic, known in self._ends.items():
                of = ends.get(topic, {})
                for queue_id in known:
                    known[queue_id] = of.get(queue_id, UNKNOWN)

    def trust_up_to(self, log_end: int) -> None:
        """Set the end of the log. Queues that were opened before it was known are reopened on use."""
        self.log_end = log_end
        with self._lock:
            self._open.clear()

    # ---- as a whole, when a store is opened

    def _folders(self) -> Iterator[tuple[str, int, Folder]]:
        for topic, known in self._ends.items():
            for queue_id in known:
                yield topic, queue_id, read_folder(f"{self.directory}/{topic}/{queue_id}")

    def are_whole(self, ends: QueueEnds, log_end: int, *, from_zero: bool) -> bool:
        """Return whether every queue has its files up to its end in the table, with entries that fit a log this long.

        `from_zero`: no log file was ever deleted.
        """
        if any(end and i not in self._ends.get(topic, ()) for topic, of in ends.items() for i, end in of.items()):
            return False
        return all(
            self._is_whole(f"{self.directory}/{topic}/{i}", ends.get(topic, {}).get(i, 0), log_end, from_zero)
            for topic, known in self._ends.items()
            for i in known
        )

    def _is_whole(self, path: str, end: int, log_end: int, from_zero: bool) -> bool:
        if from_zero:
            return is_whole_and_plausible(path, self.file_size, end, log_end)
        folder = read_folder(path)
        return is_whole(folder, self.file_size, end) and is_plausible(folder, self.file_size, end, log_end)

    def cut_to(self, ends: QueueEnds, set_aside: Path) -> int:
        """Cut every queue to its end in the table, or to 0 if it is not there. Return how many changed.

        The queues must be whole up to there.
        """
        count = 0
        for topic, queue_id, folder in self._folders():
            end = self._ends[topic][queue_id] = ends.get(topic, {}).get(queue_id, 0)
            if end == 0:
                clear_folder(folder, set_aside)
                count += bool(folder.files)
            elif changed := cut_folder(folder, self.file_size, end):
                self._unsynced.add([changed])
                count += 1
        return count

    def clear_irregular(self, set_aside: Path, *, from_zero: bool) -> None:
        """Empty the folders of queues whose files are short, missing or misnamed: dispatch rewrites them."""
        for _, _, folder in self._folders():
            if folder.strangers or not is_regular(folder, self.file_size, from_zero=from_zero):
                clear_folder(folder, set_aside)

    def are_regular(self, *, from_zero: bool) -> bool:
        return all(is_regular(folder, self.file_size, from_zero=from_zero) for _, _, folder in self._folders())

    def each(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Yield every queue, one at a time, without keeping it open."""
        for topic, known in sorted(self._ends.items()):
            for queue_id in sorted(known):
                if queue_id in self._ends.get(topic, ()):  # not deleted meanwhile
                    yield topic, queue_id, self.peek(topic, queue_id)

    def peek(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return an existing queue without keeping it open."""
        with self._lock:
            return self._in_use.get((topic, queue_id)) or self._load(topic, queue_id)

    def snapshot(self) -> QueueEnds:
        """Return where every queue ends now. The dispatcher must not run meanwhile."""
        with self._lock:
            return {
                topic: {queue_id: end for queue_id, end in known.items() if end != UNKNOWN}
                for topic, known in self._ends.items()
            }

    # ---- one queue

    def knows(self, topic: str) -> bool:
        return topic in self._ends

    def topics(self) -> list[str]:
        if not self._writable:
            self._look_for_topics()
        return sorted(self._ends)

    def queue_ids(self, topic: str) -> list[int]:
        if not self._writable:
            self._look_for_queues(topic)
        return sorted(self._ends.get(topic, ()))

    def _look_for_topics(self) -> None:
        """Find the topics, for a follower: list one folder, and the folders of new topics."""
        names = set(folder_names(str(self.directory)))
        self.forget([topic for topic in list(self._ends) if topic not in names])
        for topic in names:
            if topic not in self._ends:
                self._look_for_queues(topic)

    def _look_for_queues(self, topic: str) -> None:
        """Find the queues of a topic, for a follower."""
        if not can_be_folder(topic):
            return
        found = [int(name) for name in folder_names(f"{self.directory}/{topic}") if name.isdigit()]
        with self._lock:
            if found:
                known = self._ends.setdefault(topic, {})
                for queue_id in found:
                    known.setdefault(queue_id, UNKNOWN)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return an existing queue. Raises UnknownTopic if there is none."""
        queue = self._open.get((topic, queue_id))
        if queue is None:
            if not self._writable and queue_id not in self._ends.get(topic, ()):
                self._look_for_queues(topic)  # the writer may have created it since
            queue = self._add(topic, queue_id, create=False)
        queue.was_used = True
        if not self._writable:
            queue.follow(self.log_end)
        return queue

    def _refuse(self, topic: str, queue_id: int) -> None:
        if topic in self._ends:
            ids = ", ".join(map(str, sorted(self._ends[topic])))
            raise UnknownTopic(topic, queue_id, f"queues {ids} of this topic")
        raise UnknownTopic(topic, None, known_topics(self._ends))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._open.get((topic, queue_id))
        if queue is None:
            queue = self._add(topic, queue_id, create=True)
        queue.was_used = True
        return queue

    def _add(self, topic: str, queue_id: int, *, create: bool) -> ConsumeQueue:
        """Open a queue and keep it open."""
        with self._lock:
            queue = self._in_use.get((topic, queue_id))
            if queue is None:
                if queue_id not in self._ends.get(topic, ()):
                    if not create:  # deleted meanwhile: a reader must not bring it back
                        self._refuse(topic, queue_id)
                    self._ends.setdefault(topic, {})[queue_id] = UNKNOWN
                    self.version += 1
                queue = self._load(topic, queue_id)
            self._keep_open((topic, queue_id), queue)
            return queue

    def _keep_open(self, key: tuple[str, int], queue: ConsumeQueue) -> None:
        """Keep a queue open, and close queues that were not used since they were last checked."""
        self._open[key] = queue
        while len(self._open) > MAX_OPEN:
            oldest = next(iter(self._open))
            queue = self._open.pop(oldest)
            if queue.was_used:
                queue.was_used = False
                self._open[oldest] = queue
            else:
                queue.files.close()

    def _load(self, topic: str, queue_id: int) -> ConsumeQueue:
        known = self._ends[topic]
        queue = ConsumeQueue(
            Path(f"{self.directory}/{topic}/{queue_id}"),
            self.file_size,
            writable=self._writable,
            scratch=self._scratch,
            ends=known,
            unsynced=self._unsynced,
        )
        queue.load(self.log_end, known[queue_id] if known[queue_id] != UNKNOWN else None)
        self._in_use[topic, queue_id] = queue
        return queue

    def write(self, runs: Iterable[Run], *, proven: bool = False) -> list[Run]:
        """Write entries to their queues, which are created if they are new. Return those that no queue can take.

        Only the dispatcher may call it. See `ConsumeQueue.write`.
        """
        refused: list[Run] = []
        closed: dict[tuple[str, int], _Append] = {}
        for run in runs:
            key = run[0], run[1]
            if key in closed:  # each call continues the queue's end that the one before left
                refused += self._append_to_closed(closed)
            append = self._append_of(run)
            if append is not None:
                closed[key] = append
            elif not self._write_open(run, proven=proven):
                refused.append(run)
        return refused + self._append_to_closed(closed)

    def _write_open(self, run: Run, *, proven: bool = False) -> bool:
        """Write entries to a queue that stays open from now on."""
        topic, queue_id, first, entries = run
        is_new = queue_id not in self._ends.get(topic, ())
        no_message = self._entry_of_no_message(ENTRY.unpack_from(entries)[0])
        written = self.get_or_create(topic, queue_id).write(first, entries, no_message, proven=proven)
        if is_new and written:
            self._unsynced.add([f"{self.directory}/{topic}", str(self.directory)])
        return written

    def _entry_of_no_message(self, following: int) -> bytes | None:
        return entry_of_no_message(self._log.first_offset, following, self._log.file_size)

    def fill_to(self, topic: str, queue_id: int, end: int, log_end: int) -> None:
        """Let a queue continue at `end`: its messages before that, in a log up to `log_end`, are lost or deleted."""
        self.get_or_create(topic, queue_id).fill_to(end, self._entry_of_no_message(log_end))

    def _append_of(self, run: Run) -> _Append | None:
        """Return where to append to the last file of a closed queue. None if it is open, or not so simple."""
        topic, queue_id, first, entries = run
        if self._ends.get(topic, NO_ENDS).get(queue_id) != first or (topic, queue_id) in self._open:
            return None
        position = first * ENTRY_SIZE
        at = position % self.file_size
        if at == 0 or at + len(entries) > self.file_size:
            return None
        return _Append(f"{self.directory}/{topic}/{queue_id}/{file_name(position - at)}", at, run)

    def _append_to_closed(self, closed: dict[tuple[str, int], _Append]) -> list[Run]:
        """Append to queues that are not open, and clear the dict. Return the entries that no queue can take."""
        refused: list[Run] = []
        left = list(closed.values())
        closed.clear()
        while left:
            paths = [append.path.encode("utf-8", "surrogateescape") for append in left]
            done, failure = write_to_files(paths, [append.at for append in left], [append.run[3] for append in left])
            for append in left[:done]:
                topic, queue_id, first, entries = append.run
                self._ends[topic][queue_id] = first + len(entries) // ENTRY_SIZE
            self._unsynced.add(append.path for append in left[:done])
            if failure == errno.ENOENT:  # its file is gone: the queue itself decides what to do
                refused += [] if self._write_open(left[done].run) else [left[done].run]
                done += 1
            elif failure in (errno.EINVAL, errno.ENXIO):
                raise BadFile(Path(left[done].path), "no regular file", "one; move it away")
            elif failure:
                error = OSError(failure, os.strerror(failure))
                raise file_error(Path(left[done].path), "written", len(left[done].run[3]), error)
            left = left[done:]
        return refused

    def remove(self, topic: str, trash: Path) -> None:
        """Delete all queues of a topic atomically. Neither dispatch nor a checkpoint may run meanwhile.

        `trash` is on the same file system and is emptied when the store is next opened. So a crash after the rename
        leaves the topic deleted.
        """
        folder = self.directory / topic
        with self._lock:
            for key in [key for key in self._in_use if key[0] == topic]:
                self._open.pop(key, None)
                queue = self._in_use.pop(key, None)
                if queue is not None:
                    queue.abandon()
            self._ends.pop(topic, None)
            self._unsynced.forget_under(str(folder))
            self.version += 1
            if folder.is_dir():
                trash.parent.mkdir(parents=True, exist_ok=True)
                remove_folder(trash)
                folder.rename(trash)
                sync_directory(self.directory)
        remove_folder(trash)

    def forget(self, topics: Iterable[str]) -> None:
        """Drop topics that another process deleted. If they exist again, they are reopened on use."""
        gone = set(topics)
        with self._lock:
            for key in [key for key in self._in_use if key[0] in gone]:
                self._open.pop(key, None)
                self._in_use.pop(key, None)
            for topic in gone:
                self._ends.pop(topic, None)

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return where a queue ends; 0 for one that does not exist yet."""
        end = self._ends.get(topic, {}).get(queue_id)
        if self._writable and end != UNKNOWN:
            return end or 0
        try:
            return self.get(topic, queue_id).end
        except UnknownTopic:
            return 0

    def sync(self) -> None:
        """Make the written entries and the names of new files and folders durable."""
        self._unsynced.sync()

    def open_queues(self) -> list[ConsumeQueue]:
        with self._lock:
            return list(self._open.values())

    def close(self) -> None:
        for queue in self.open_queues():
            queue.files.close()
        self._unsynced.close()


class BatchQueues:
    """The batch queues that RocketMQ 5 wrote; most stores have none."""

    def __init__(self, directory: Path, file_size: int, log_end: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._log_end = log_end
        self._known = {topic: set(ids) for topic, ids in _list_queues(directory)}
        self.exist = bool(self._known)
        self._open: dict[tuple[str, int], BatchQueue] = {}

    def topics(self) -> list[str]:
        return sorted(self._known)

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(self._known.get(topic, ()))

    def get(self, topic: str, queue_id: int) -> BatchQueue | None:
        if queue_id not in self._known.get(topic, ()):
            return None
        queue = self._open.get((topic, queue_id))
        if queue is None:
            queue = BatchQueue(self._directory / topic / str(queue_id), self._file_size)
            queue.load(self._log_end)
            self._open[topic, queue_id] = queue
        return queue


def known_topics(names: Collection[str]) -> str:
    """Return the count and the first of the topics, for an error text."""
    if not names:
        return "no topics yet"
    return f"{len(names)} topic{'' if len(names) == 1 else 's'}: {', '.join(sorted(names)[:8])}"


def _list_queues(directory: Path) -> Iterator[tuple[str, list[int]]]:
    for topic in folder_names(str(directory)):
        queue_ids = [int(name) for name in folder_names(f"{directory}/{topic}") if name.isdigit()]
        if queue_ids:
            yield topic, queue_ids
