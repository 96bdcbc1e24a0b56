"""What a running worker has taken and finished: which messages may be committed, and how many there were.

Handlers that run at the same time finish in any order, but progress is one queue offset for each queue. So a message is
committed when all that were taken before it from its queue are finished too. If the process is killed, what was
finished after an unfinished one is delivered again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from mqlake.message import StoredMessage
from mqlake.runtime.locks import make_lock

LIGHT_QUEUES = "INNER_MULTI_DISPATCH"
"""A message with this property may have come from a queue of another topic."""


@dataclass(slots=True)
class RunCounts:
    """How many messages a worker took, and what became of them."""

    taken: int = 0
    processed: int = 0
    """The handler returned."""
    failed: int = 0
    """The handler raised: the message is delivered again later, or is a dead letter."""
    last_error: str | None = None
    """The last exception of a handler."""
    began: float = field(default_factory=time.monotonic, repr=False)

    @property
    def running(self) -> int:
        """How many are being handled now; at the end, those that were left for the next worker."""
        return self.taken - self.processed - self.failed

    @property
    def seconds(self) -> float:
        """How long the worker has been running."""
        return time.monotonic() - self.began


OnProgress = Callable[[RunCounts], None]


class Taken:
    """The messages that were taken and are not committed. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = make_lock("handling")
        self._queues: dict[tuple[str, int] | None, deque[StoredMessage]] = {}
        self._finished: set[int] = set()
        """The identities of finished messages that wait for earlier ones."""
        self._counts = RunCounts()

    @property
    def counts(self) -> RunCounts:
        """A copy of the counts as they are now."""
        with self._lock:
            return replace(self._counts)

    def take(self, messages: Iterable[StoredMessage]) -> None:
        with self._lock:
            for message in messages:
                self._counts.taken += 1
                self._queues.setdefault(_queue_of(message), deque()).append(message)

    def finish(self, message: StoredMessage, error: BaseException | None) -> list[StoredMessage]:
        """Count a message that was handled; return the messages up to which its queue may be committed now."""
        queue_id = _queue_of(message)
        done: list[StoredMessage] = []
        with self._lock:
            if error is None:
                self._counts.processed += 1
            else:
                self._counts.failed += 1
                self._counts.last_error = f"{type(error).__name__}: {error}"
            self._finished.add(id(message))
            queue = self._queues[queue_id]
            while queue and id(queue[0]) in self._finished:
                self._finished.discard(id(queue[0]))
                done.append(queue.popleft())
            if not queue:
                del self._queues[queue_id]
        return done if queue_id is None else done[-1:]


def _queue_of(message: StoredMessage) -> tuple[str, int] | None:
    """Return the queue that a message came from. All light queues count as one: the message does not tell which."""
    return None if LIGHT_QUEUES in message.properties else (message.topic, message.queue_id)
