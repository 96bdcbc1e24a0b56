"""A message that could not be processed comes again later, a little later each time, and is put aside in the end.

    fail -> %RETRY%group, with delay level 3 + the times that it came again: 10 s, 30 s, 1 m ... 2 h
         -> %DLQ%group, for good, when it came again as often as the group allows (retryMaxTimes, 16)

The copy keeps what the message is, remembers where it was first (RETRY_TOPIC, ORIGIN_MESSAGE_ID), and counts
`reconsume_times`; all of it as RocketMQ does. Only the group whose message it is reads these topics.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from mqlake.delivery.deliveries import copy_of
from mqlake.delivery.groups import Group
from mqlake.delivery.properties import DELAY_LEVEL, ORIGIN_MESSAGE_ID, RETRY_TOPIC
from mqlake.delivery.system_topics import DEAD_PREFIX, dead_letter_topic, retry_topic
from mqlake.errors import InvalidMessage
from mqlake.message import Message, StoredMessage

FIRST_LEVEL = 3
MAX_LEVEL = 1 << 16
NO_WAIT = ("WAIT", "false")
"""RocketMQ's note that nobody waits for the disk on its account."""


def retried(group: Group, message: StoredMessage, level: int = 0) -> Message | None:
    """The message to put for one that failed; None where the group wants none again.

    `level` 0 is the one of its turn, another is taken as given, and a negative one puts it aside at once.
    """
    if isinstance(level, bool) or not isinstance(level, int) or level > MAX_LEVEL:
        raise InvalidMessage("level", repr(level), "a delay level, 0 for the one of its turn, -1 for dead letters")
    if group.retry_queue_count <= 0:
        return None
    properties = {RETRY_TOPIC: message.topic, ORIGIN_MESSAGE_ID: message.message_id, **message.properties}
    properties.update([NO_WAIT])
    if level < 0 or message.reconsume_times >= group.max_retry_count:
        topic, queue_id, level = dead_letter_topic(group.name), 0, 0
    else:
        topic, queue_id = retry_topic(group.name), random.randrange(group.retry_queue_count)
        level = level or FIRST_LEVEL + message.reconsume_times
    properties[DELAY_LEVEL] = str(level)
    return copy_of(message, topic, queue_id, properties, reconsume_times=message.reconsume_times + 1)


def resent(dead: StoredMessage) -> Message:
    """The message to put for a dead letter that its group is to have again, as if it came for the first time."""
    if not dead.topic.startswith(DEAD_PREFIX):
        raise InvalidMessage("dead letter", f"a message of topic {dead.topic}", f"one of a topic {DEAD_PREFIX}GROUP")
    properties = {name: value for name, value in dead.properties.items() if name != DELAY_LEVEL}
    return copy_of(dead, retry_topic(dead.topic.removeprefix(DEAD_PREFIX)), 0, properties, reconsume_times=0)


def groups_with_dead_letters(topics: list[str]) -> Iterator[str]:
    return (topic.removeprefix(DEAD_PREFIX) for topic in topics if topic.startswith(DEAD_PREFIX))
