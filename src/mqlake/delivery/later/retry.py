"""Redelivers failed messages with growing delays; after the last try a message becomes a dead letter.

    fail -> %RETRY%group, with delay level 3 + previous retries: 10 s, 30 s, 1 m ... 2 h
         -> %DLQ%group, after as many retries as the group allows (retryMaxTimes, 16)

The copy has the same content, names the original (RETRY_TOPIC, ORIGIN_MESSAGE_ID) and counts `reconsume_times`, all as
in RocketMQ. Only the group for which the message failed reads these topics.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from mqlake.delivery.later.deliveries import copy_of
from mqlake.delivery.properties import DELAY_LEVEL, ORIGIN_MESSAGE_ID, RETRY_TOPIC
from mqlake.delivery.registry.groups import Group
from mqlake.delivery.registry.system_topics import DEAD_PREFIX, dead_letter_topic, retry_topic
from mqlake.errors import InvalidMessage
from mqlake.message import Message, StoredMessage

FIRST_LEVEL = 3
MAX_LEVEL = 1 << 16
NO_WAIT = ("WAIT", "false")
"""RocketMQ's property of a message whose put does not wait for the disk."""


def retried(group: Group, message: StoredMessage, level: int = 0) -> Message | None:
    """Return the message to put for one that failed; None if the group has no retry queues.

    `level` 0 chooses the delay level by the number of retries, a positive level is used as given, and a negative one
    makes the message a dead letter at once.
    """
    if isinstance(level, bool) or not isinstance(level, int) or level > MAX_LEVEL:
        raise InvalidMessage("level", repr(level), "a delay level, 0 for the next one, -1 for a dead letter")
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
    """Return the message to put so that the group gets a dead letter again, as if for the first time."""
    if not dead.topic.startswith(DEAD_PREFIX):
        raise InvalidMessage("dead letter", f"a message of topic {dead.topic}", f"one of a topic {DEAD_PREFIX}GROUP")
    properties = {name: value for name, value in dead.properties.items() if name != DELAY_LEVEL}
    return copy_of(dead, retry_topic(dead.topic.removeprefix(DEAD_PREFIX)), 0, properties, reconsume_times=0)


def groups_with_dead_letters(topics: list[str]) -> Iterator[str]:
    return (topic.removeprefix(DEAD_PREFIX) for topic in topics if topic.startswith(DEAD_PREFIX))
