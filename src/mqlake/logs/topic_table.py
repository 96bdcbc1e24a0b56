"""What the log must know of each topic to give the next message its queue offset.

The next queue offset of a queue is read from its consume queue when the queue is first written, and counted by the
appender from then on: there the log is ahead, the queue on disk follows with dispatch.

A topic is admitted before its first message is appended. Admission asks other parts of the store (is the topic set up,
may it be written, how many queues has it), so it happens without the log's lock. Everything else here happens under it.
A topic that is being deleted admits nothing until its deletion is on disk: a message of its next life must not be
stored before a crash is certain to keep the two lives apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mqlake.errors import InvalidMessage
from mqlake.kernel import Appender, Message, TopicState
from mqlake.runtime.locks import make_condition

MAX_TOPIC_BYTES = 127
MAX_RETRY_TOPIC_BYTES = 255
RETRY_PREFIX = "%RETRY%"
LIGHT_QUEUES = "INNER_MULTI_DISPATCH"
"""The property that names the light queues that a message enters beside its own; the next has its offsets there."""
LIGHT_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
LIGHT_PREFIX = "%LMQ%"
ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


class NotAdmitted(Exception):
    """A topic must be admitted before the log's lock is taken. The caller admits it and tries again."""


class TopicTable:
    """All topics written since the store was opened, as the appender sees them."""

    def __init__(
        self,
        queue_count: Callable[[str], int],
        queue_end: Callable[[str, int], int],
        foreign_topics: frozenset[str],
    ) -> None:
        """`queue_count` returns how many queues a topic has, `queue_end` where one ends on disk."""
        self._queue_count = queue_count
        self._queue_end = queue_end
        self._foreign_topics = foreign_topics
        self._appender: Appender | None = None
        self.states: dict[str, TopicState] = {}
        """The appender's own table: a topic in it takes messages without asking."""
        self._admitted: dict[str, tuple[int, int | None]] = {}
        """Topics that were admitted and have no state yet: how many deletions had ended then, and the queue count."""
        self._parked: dict[str, TopicState] = {}
        """States of topics whose set-up changed: the next put asks again."""
        self._deleting: dict[str, TopicState | None] = {}
        """Topics that are being deleted, with the state to return to if that fails."""
        self._deleted = make_condition("admission")
        self._deletion_count = 0
        self.may_write: Callable[[str], int | None] = lambda topic: None
        """Return how many queues a topic is set up with, None if nothing says so; raise if it takes no messages."""

    def use(self, appender: Appender) -> None:
        """Share the appender's table."""
        self._appender = appender
        self.states = appender.states

    # ---- without the log's lock

    def admit(self, topic: str) -> None:
        """Ask whether a topic may be written, unless that is known. Waits while the topic is being deleted."""
        if topic in self.states:
            return
        require_topic(topic)
        if topic in self._foreign_topics:
            raise InvalidMessage("topic", repr(topic), "a topic without batch queues: they are read only here")
        if topic in self._deleting:
            with self._deleted.lock:
                self._deleted.wait_for(lambda: topic not in self._deleting)
        count = self._deletion_count  # before asking: the answer may be of a life that ends meanwhile
        self._admitted[topic] = count, self.may_write(topic)

    def claim_deletion(self, topic: str) -> None:
        """Be the one who deletes a topic. Waits while another thread deletes it."""
        with self._deleted.lock:
            self._deleted.wait_for(lambda: topic not in self._deleting)
            self._deleting[topic] = None

    # ---- under the log's lock

    def prepare(self, message: Message) -> None:
        """Make the appender know a message's topic and queue."""
        state = self._known(message.topic)
        if isinstance(message.queue_id, int) and 0 <= message.queue_id < 1 << 31:
            self.next_offset(state, message.queue_id)

    def destination(self, topic: str, queue_id: int) -> tuple[TopicState, int]:
        """Return where packed records of a topic go: a state that knows the queue offsets in question."""
        state = self._known(topic)
        if queue_id >= 0:
            self.next_offset(state, queue_id)
        return state, queue_id

    def _known(self, topic: str) -> TopicState:
        state = self.states.get(topic)
        if state is None:
            count, queue_count = self._admitted.pop(topic, (-1, None))
            if count != self._deletion_count or topic in self._deleting:
                raise NotAdmitted(topic)
            state = self._enter(topic, queue_count)
        return state

    def state(self, topic: str) -> TopicState:
        """Return a light queue's state; a new one knows the next queue offsets of all queues that take turns."""
        if topic in self._deleting:
            raise NotAdmitted(topic)
        return self.states.get(topic) or self._enter(topic, None)

    def _enter(self, topic: str, queue_count: int | None) -> TopicState:
        state = self._parked.get(topic)
        if state is None:
            state = TopicState(topic, queue_count or self._queue_count(topic))
        elif queue_count is not None:
            state.queue_count = queue_count
            state.turn %= queue_count
        for queue_id in range(state.queue_count):
            self.next_offset(state, queue_id)
        state.retired = False
        self.states[topic] = state
        self._parked.pop(topic, None)
        return state

    def park(self, topic: str) -> None:
        """Make the next put ask again how the topic is set up."""
        self._admitted.pop(topic, None)
        state = self._retire(topic)
        if state is not None:
            self._parked[topic] = state

    def begin_deletion(self, topic: str) -> None:
        """Forget a topic: its next life starts at queue offset 0. Puts to it wait for `end_deletion`."""
        self._deleting[topic] = self._retire(topic) or self._parked.pop(topic, None)
        self._admitted.pop(topic, None)

    def end_deletion(self, topic: str, *, deleted: bool) -> None:
        """Admit puts again. Called without the log's lock.

        If the topic was not deleted its queue offsets continue. The queues on disk may lag, so they cannot say where.
        """
        state = self._deleting.get(topic)
        if state is not None and not deleted:
            self._parked[topic] = state
        with self._deleted.lock:
            self._deletion_count += 1
            self._deleting.pop(topic, None)
            self._deleted.notify_all()

    def _retire(self, topic: str) -> TopicState | None:
        assert self._appender is not None, "a table is used by an appender"
        return self._appender.retire(topic)

    def all_states(self) -> list[TopicState]:
        return [*self.states.values(), *self._parked.values()]

    def next_offset(self, state: TopicState, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets."""
        offset = state.next_offsets.get(queue_id)
        if offset is None:
            offset = state.next_offsets[queue_id] = self._queue_end(state.name, queue_id)
        return offset


def can_be_folder(topic: str) -> bool:
    """Return whether a topic's name can be a folder's name: a damaged record must not lead to another folder."""
    return (
        topic not in ("", ".", "..") and not {"/", "\0"} & set(topic) and len(topic.encode("utf-8", "replace")) <= 255
    )


def require_light_queue(name: str) -> None:
    """Refuse a light queue's name that cannot be a folder's. It may have characters that a topic's may not."""
    if not can_be_folder(name):
        raise InvalidMessage(LIGHT_QUEUES, repr(name[:40]), "names that can be a folder's, separated by commas")


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
