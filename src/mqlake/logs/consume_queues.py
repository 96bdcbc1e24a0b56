"""All consume queues of a store. A queue's files are opened when it is first asked for."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from mqlake.errors import UnknownTopic
from mqlake.files.mapped_file import sync_directory, sync_file
from mqlake.logs.batch_queue import BatchQueue
from mqlake.logs.consume_queue import ConsumeQueue
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

QueueEnds = dict[str, dict[int, int]]
"""Topic -> queue id -> the number behind its last entry."""


class ConsumeQueues:
    """The queues of all topics, by topic and queue id."""

    def __init__(self, directory: Path, file_size: int, *, writable: bool, scratch: Path | None = None) -> None:
        self.directory = directory
        self.file_size = file_size
        self._writable = writable
        self._scratch = scratch
        self._lock = threading.Lock()
        self._known: dict[str, set[int]] = {}
        self._open: dict[tuple[str, int], ConsumeQueue] = {}
        self._unsynced: set[Path] = set()
        """Files and folders that recovery changed: they reach the disk with the next `sync`."""
        self.version = 0
        """Rises when a queue comes into being or goes: the writer's only, a reader must look at the folders."""
        self.log_end = 0
        """What a queue that is opened later may point at: set once recovery knows it, raised by readers that follow."""
        self.ends: QueueEnds = {}
        """Where queues that are not open end, as far as that is known: those need not be searched."""

    def load(self) -> None:
        """Learn which queues there are; folders that are no queue's are passed over, as RocketMQ does."""
        self._known = dict(_list_queues(self.directory))

    def trust_up_to(self, log_end: int) -> None:
        """The log ends here: queues that were opened before this was known are looked at again."""
        self.log_end = log_end
        with self._lock:
            self._open.clear()

    # ---- as a whole, when a store is opened

    def _folders(self) -> Iterator[tuple[str, int, Folder]]:
        for topic, queue_ids in self._known.items():
            for queue_id in queue_ids:
                yield topic, queue_id, read_folder(f"{self.directory}/{topic}/{queue_id}")

    def are_whole(self, ends: QueueEnds, log_end: int, *, from_zero: bool) -> bool:
        """Every queue of a table has its files, up to its end there, and they could be a queue's of a log so long.

        `from_zero` where no log file was ever deleted.
        """
        if any(end and i not in self._known.get(topic, ()) for topic, of in ends.items() for i, end in of.items()):
            return False
        return all(
            self._is_whole(f"{self.directory}/{topic}/{i}", ends.get(topic, {}).get(i, 0), log_end, from_zero)
            for topic, queue_ids in self._known.items()
            for i in queue_ids
        )

    def _is_whole(self, path: str, end: int, log_end: int, from_zero: bool) -> bool:
        if from_zero:
            return is_whole_and_plausible(path, self.file_size, end, log_end)
        folder = read_folder(path)
        return is_whole(folder, self.file_size, end) and is_plausible(folder, self.file_size, end, log_end)

    def cut_to(self, ends: QueueEnds, set_aside: Path) -> int:
        """Make every queue end where a table says, a queue it does not know at 0; how many were changed.

        The queues are whole up to there.
        """
        count = 0
        self.ends = {topic: dict(of) for topic, of in ends.items()}
        for topic, queue_id, folder in self._folders():
            end = self.ends.setdefault(topic, {}).setdefault(queue_id, 0)
            if end == 0:
                clear_folder(folder, set_aside)
                count += bool(folder.files)
            elif changed := cut_folder(folder, self.file_size, end):
                self._unsynced.add(Path(changed))
                count += 1
        return count

    def clear_irregular(self, set_aside: Path, *, from_zero: bool) -> None:
        """Empty the folders of queues whose files are short, missing or misnamed: they are to be written again."""
        for _, _, folder in self._folders():
            if folder.strangers or not is_regular(folder, self.file_size, from_zero=from_zero):
                clear_folder(folder, set_aside)

    def are_regular(self, *, from_zero: bool) -> bool:
        return all(is_regular(folder, self.file_size, from_zero=from_zero) for _, _, folder in self._folders())

    def each(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Every queue, one at a time: one that was not open is closed again, and its end noted."""
        for topic, queue_ids in sorted(self._known.items()):
            for queue_id in sorted(queue_ids):
                queue = self._open.get((topic, queue_id))
                if queue is not None:
                    yield topic, queue_id, queue
                    continue
                queue = self._load(topic, queue_id)
                yield topic, queue_id, queue
                queue.sync()
                if queue_id in self._known.get(topic, ()):  # not deleted meanwhile
                    self.ends.setdefault(topic, {})[queue_id] = queue.end

    def peek(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue that exists, for one look: it is not kept open."""
        return self._open.get((topic, queue_id)) or self._load(topic, queue_id)

    def snapshot(self) -> QueueEnds:
        """Where every queue ends now. The dispatcher must not be at work meanwhile."""
        ends = {topic: dict(of) for topic, of in self.ends.items()}
        with self._lock:
            for (topic, queue_id), queue in self._open.items():
                ends.setdefault(topic, {})[queue_id] = queue.end
        return ends

    def topics(self) -> list[str]:
        if not self._writable:
            self.load()
        return sorted(self._known)

    def queue_ids(self, topic: str) -> list[int]:
        if not self._writable:
            self.load()
        return sorted(self._known.get(topic, ()))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue that exists; UnknownTopic where it does not."""
        queue = self._open.get((topic, queue_id))
        if queue is None:
            if not self._writable and queue_id not in self._known.get(topic, ()):
                self.load()  # another process may have made it since
            if queue_id not in self._known.get(topic, ()):
                self._refuse(topic, queue_id)
            queue = self._add(topic, queue_id, create=False)
        if not self._writable:
            queue.follow(self.log_end)
        return queue

    def _refuse(self, topic: str, queue_id: int) -> None:
        if topic in self._known:
            raise UnknownTopic(topic, queue_id, f"queues {', '.join(map(str, self.queue_ids(topic)))} of this topic")
        names = self.topics()
        raise UnknownTopic(topic, None, f"{len(names)} topics: {', '.join(names[:8])}" if names else "no topics yet")

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        return self._open.get((topic, queue_id)) or self._add(topic, queue_id, create=True)

    def _add(self, topic: str, queue_id: int, *, create: bool) -> ConsumeQueue:
        with self._lock:
            queue = self._open.get((topic, queue_id))
            if queue is None:
                if queue_id not in self._known.get(topic, ()):
                    if not create:  # deleted meanwhile: who reads it must not bring it back
                        self._refuse(topic, queue_id)
                    self._unsynced |= {self.directory, self.directory / topic}
                queue = self._load(topic, queue_id)
                self._open[topic, queue_id] = queue
                self._known.setdefault(topic, set()).add(queue_id)
                self.version += 1
            return queue

    def _load(self, topic: str, queue_id: int) -> ConsumeQueue:
        path = self.directory / topic / str(queue_id)
        queue = ConsumeQueue(path, self.file_size, writable=self._writable, scratch=self._scratch)
        queue.load(self.log_end, self.ends.get(topic, {}).get(queue_id))
        return queue

    def remove(self, topic: str, trash: Path) -> None:
        """Delete all queues of a topic, at once. Neither dispatch nor a checkpoint may be at work meanwhile.

        `trash`: a place on the same file system that is emptied when the store is next opened.
        """
        folder = self.directory / topic
        with self._lock:
            for key in [key for key in self._open if key[0] == topic]:
                self._open.pop(key).abandon()
            self._known.pop(topic, None)
            self.ends.pop(topic, None)
            self._unsynced = {path for path in self._unsynced if folder not in (path, *path.parents)}
            self.version += 1
            if folder.is_dir():
                trash.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(trash, ignore_errors=True)
                folder.rename(trash)
                sync_directory(self.directory)
        shutil.rmtree(trash, ignore_errors=True)

    def forget(self, topics: Iterable[str]) -> None:
        """Another process deleted these: open them again, if they are there again."""
        gone = set(topics)
        with self._lock:
            self._open = {key: queue for key, queue in self._open.items() if key[0] not in gone}
            self._known = {topic: ids for topic, ids in self._known.items() if topic not in gone}
            self.ends = {topic: of for topic, of in self.ends.items() if topic not in gone}

    def end_of(self, topic: str, queue_id: int) -> int:
        """Where a queue ends; 0 for one that does not exist yet."""
        if queue_id not in self._known.get(topic, ()) and (self._writable or queue_id not in self.queue_ids(topic)):
            return 0
        return self.get(topic, queue_id).end

    def sync(self) -> None:
        """Bring what was written to the disk, and the names of new files and folders with it."""
        for queue in self.open_queues():
            queue.sync()
        with self._lock:
            unsynced, self._unsynced = self._unsynced, set()
        for path in unsynced:
            if path.is_dir():
                sync_directory(path)
            elif path.exists():
                sync_file(path)

    def open_queues(self) -> list[ConsumeQueue]:
        with self._lock:
            return list(self._open.values())

    def close(self) -> None:
        for queue in self.open_queues():
            queue.files.close()


class BatchQueues:
    """The batch queues that RocketMQ 5 made; empty for most stores."""

    def __init__(self, directory: Path, file_size: int, log_end: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._log_end = log_end
        self._known = dict(_list_queues(directory))
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


def _list_queues(directory: Path) -> Iterator[tuple[str, set[int]]]:
    try:
        topics = [entry for entry in os.scandir(directory) if entry.is_dir()]
    except FileNotFoundError:
        return
    for topic in topics:
        queue_ids = {int(entry.name) for entry in os.scandir(topic.path) if entry.name.isdigit() and entry.is_dir()}
        if queue_ids:
            yield topic.name, queue_ids
