"""What the log must know of each topic to number the next message of a queue.

A queue's next number is learnt from its consume queue when the queue is first written, and counted by the appender
from then on: there the log is ahead, the queue on disk follows with dispatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mqlake.errors import InvalidMessage
from mqlake.kernel import Message, TopicState

MAX_TOPIC_BYTES = 127
MAX_RETRY_TOPIC_BYTES = 255
RETRY_PREFIX = "%RETRY%"
ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


class TopicTable:
    """All topics written since the store was opened, as the appender sees them."""

    def __init__(
        self,
        queue_count: Callable[[str], int],
        queue_end: Callable[[str, int], int],
        foreign_topics: frozenset[str],
    ) -> None:
        """`queue_count` says how many queues a topic has, `queue_end` where one ends on disk."""
        self._queue_count = queue_count
        self._queue_end = queue_end
        self._foreign_topics = foreign_topics
        self.states: dict[str, TopicState] = {}
        self._parked: dict[str, TopicState] = {}
        """States of topics whose set-up changed: the next put asks `admit` again."""
        self.admit: Callable[[str], int | None] = lambda topic: None
        """How many queues a topic is set up with, None where nothing says so; raises where it takes no messages."""

    def prepare(self, message: Message) -> None:
        """Make the appender know a message's topic and queue; InvalidMessage for a name that RocketMQ refuses."""
        state = self._known(message.topic)
        if isinstance(message.queue_id, int) and 0 <= message.queue_id < 1 << 31:
            self.next_offset(state, message.queue_id)

    def lane(self, topic: str, queue_id: int) -> tuple[TopicState, int]:
        """Where packed records of a topic go: its state, which knows the next numbers of the queues in question."""
        state = self._known(topic)
        if queue_id >= 0:
            self.next_offset(state, queue_id)
        return state, queue_id

    def _known(self, topic: str) -> TopicState:
        if topic not in self.states:
            require_topic(topic)
            if topic in self._foreign_topics:
                raise InvalidMessage("topic", repr(topic), "a topic without batch queues: they are read only here")
            return self._enter(topic, self.admit(topic))
        return self.states[topic]

    def state(self, topic: str) -> TopicState:
        """A topic's state; a new one knows the next numbers of all queues that take turns."""
        state = self.states.get(topic)
        if state is None:
            state = self._enter(topic, None)
        return state

    def _enter(self, topic: str, queue_count: int | None) -> TopicState:
        state = self._parked.get(topic)
        if state is None:
            state = TopicState(topic, queue_count or self._queue_count(topic))
        elif queue_count is not None:
            state.queue_count = queue_count
            state.turn %= queue_count
        for queue_id in range(state.queue_count):
            self.next_offset(state, queue_id)
        self.states[topic] = state
        self._parked.pop(topic, None)
        return state

    def park(self, topic: str) -> None:
        """Have the next put ask again how the topic is set up. Under the log's lock: no append is half way."""
        state = self.states.pop(topic, None)
        if state is not None:
            self._parked[topic] = state

    def forget(self, topic: str) -> None:
        """The topic was deleted: should it come again, it begins at 0. Under the log's lock."""
        self.states.pop(topic, None)
        self._parked.pop(topic, None)

    def all_states(self) -> list[TopicState]:
        return [*self.states.values(), *self._parked.values()]

    def next_offset(self, state: TopicState, queue_id: int) -> int:
        """The number that the next message of a queue gets."""
        offset = state.next_offsets.get(queue_id)
        if offset is None:
            offset = state.next_offsets[queue_id] = self._queue_end(state.name, queue_id)
        return offset


def can_be_folder(topic: str) -> bool:
    """A queue's entries lie in a folder of its topic's name: what a record names must not lead elsewhere."""
    return (
        topic not in ("", ".", "..") and not {"/", "\0"} & set(topic) and len(topic.encode("utf-8", "replace")) <= 255
    )


def require_light_queue(name: str) -> None:
    """Light queues may have names that topics may not, as long as they can be folders."""
    if not can_be_folder(name):
        raise InvalidMessage(
            "INNER_MULTI_DISPATCH", repr(name[:40]), "names that can be a folder's, separated by commas"
        )


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
