"""RocketMQ's system topics: their names, and how many queues each has."""

from __future__ import annotations

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
UNDECIDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages that stayed undecided after all check-backs."""
RETRY_PREFIX = "%RETRY%"
DEAD_PREFIX = "%DLQ%"
INTERNAL_GROUP_PREFIX = "CID_RMQ_SYS_"
ONE_QUEUE = frozenset({TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, UNDECIDED_TOPIC})


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_PREFIX + group


def is_system_topic(topic: str) -> bool:
    return system_queue_count(topic, 1) is not None


def system_queue_count(topic: str, level_count: int) -> int | None:
    """Return how many queues a system topic of RocketMQ has; None for any other topic."""
    if topic == SCHEDULE_TOPIC:
        return level_count
    return 1 if topic in ONE_QUEUE or topic.startswith((RETRY_PREFIX, DEAD_PREFIX)) else None
