"""All consume queues of a store. A queue's files are opened when it is first asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from mqlake.errors import UnknownTopic
from mqlake.logs.batch_queue import BatchQueue
from mqlake.logs.consume_queue import ConsumeQueue


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
        self.log_end = 0
        """What a queue that is opened later may point at: set once recovery knows it, raised by readers that follow."""

    def load(self) -> None:
        """Learn which queues there are; folders that are no queue's are passed over, as RocketMQ does."""
        self._known = dict(_list_queues(self.directory))

    def trust_up_to(self, log_end: int) -> None:
        """The log ends here: queues that were opened before this was known are looked at again."""
        self.log_end = log_end
        with self._lock:
            self._open.clear()

    def topics(self) -> list[str]:
        if not self._writable:
            self.load()
        return sorted(self._known)

    def queue_ids(self, topic: str) -> list[int]:
        if not self._writable:
            self.load()
        return sorted(self._known.get(topic, ()))

    def all(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Every queue, opened."""
        for topic, queue_ids in sorted(self._known.items()):
            for queue_id in sorted(queue_ids):
                yield topic, queue_id, self.get(topic, queue_id)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue that exists; UnknownTopic where it does not."""
        queue = self._open.get((topic, queue_id))
        if queue is None:
            if not self._writable and queue_id not in self._known.get(topic, ()):
                self.load()  # another process may have made it since
            if queue_id not in self._known.get(topic, ()):
                self._refuse(topic, queue_id)
            queue = self._add(topic, queue_id)
        elif not self._writable:
            queue.follow(self.log_end)
        return queue

    def _refuse(self, topic: str, queue_id: int) -> None:
        if topic in self._known:
            raise UnknownTopic(topic, queue_id, f"queues {', '.join(map(str, self.queue_ids(topic)))} of this topic")
        names = self.topics()
        raise UnknownTopic(topic, None, f"{len(names)} topics: {', '.join(names[:8])}" if names else "no topics yet")

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        return self._open.get((topic, queue_id)) or self._add(topic, queue_id)

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        with self._lock:
            queue = self._open.get((topic, queue_id))
            if queue is None:
                path = self.directory / topic / str(queue_id)
                queue = ConsumeQueue(path, self.file_size, writable=self._writable, scratch=self._scratch)
                queue.load(self.log_end)
                self._open[topic, queue_id] = queue
                self._known.setdefault(topic, set()).add(queue_id)
            return queue

    def end_of(self, topic: str, queue_id: int) -> int:
        """Where a queue ends; 0 for one that does not exist yet."""
        if queue_id not in self._known.get(topic, ()):
            return 0
        return self.get(topic, queue_id).end

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
