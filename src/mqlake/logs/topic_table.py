"""What the log must know of each topic to number the next message of a queue.

A queue's next number is learnt from its consume queue when the queue is first written, and counted here from then on:
here the log is ahead, the queue on disk follows with dispatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mqlake.errors import InvalidMessage

MAX_TOPIC_BYTES = 127
MAX_RETRY_TOPIC_BYTES = 255
RETRY_PREFIX = "%RETRY%"
ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


class TopicState:
    """One topic: its queues' next numbers, whose turn it is, and what was put since the store was opened."""

    __slots__ = ("name", "next_offsets", "put_bytes", "put_count", "queue_count", "turn")

    def __init__(self, name: str, queue_count: int) -> None:
        self.name = name
        self.queue_count = queue_count
        self.turn = 0
        self.next_offsets: dict[int, int] = {}
        self.put_count = 0
        self.put_bytes = 0


class TopicTable:
    """All topics written since the store was opened."""

    def __init__(self, queue_count: Callable[[str], int], queue_end: Callable[[str, int], int]) -> None:
        """`queue_count` says how many queues a topic has, `queue_end` where one ends on disk."""
        self._queue_count = queue_count
        self._queue_end = queue_end
        self.states: dict[str, TopicState] = {}

    def add(self, topic: str) -> TopicState:
        """The state of a topic that is written for the first time; InvalidMessage for a name RocketMQ refuses."""
        require_topic(topic)
        return self.add_unchecked(topic)

    def add_unchecked(self, topic: str) -> TopicState:
        return self.states.setdefault(topic, TopicState(topic, self._queue_count(topic)))

    def next_offset(self, state: TopicState, queue_id: int) -> int:
        """The number that the next message of a queue gets. Called under the log's lock."""
        offset = state.next_offsets.get(queue_id)
        if offset is None:
            offset = state.next_offsets[queue_id] = self._queue_end(state.name, queue_id)
        return offset


def require_topic(topic: object) -> None:
    """Refuse what RocketMQ refuses: empty, too long, or with characters it does not allow."""
    if not isinstance(topic, str) or not topic:
        raise InvalidMessage("topic", repr(topic), "a text that is not empty")
    size = len(topic.encode("utf-8", "surrogatepass"))
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith(RETRY_PREFIX) else MAX_TOPIC_BYTES
    if size > limit:
        raise InvalidMessage("topic", f"{size} bytes ({topic[:40]!r}…)", f"at most {limit} bytes")
    if not ALLOWED.fullmatch(topic):
        raise InvalidMessage("topic", repr(topic), "only ASCII letters, digits and the characters % | - _")
