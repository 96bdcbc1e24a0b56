"""Select topics by name."""

from __future__ import annotations

import re

from mqlake.spark.options import SourceOptions

INTERNAL = re.compile(
    "SCHEDULE_TOPIC_XXXX|TBW102|BenchmarkTest|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT|TRANS_CHECK_MAX_TIME_TOPIC"
    "|(RMQ_SYS_|rmq_sys_|MQLAKE_).*"
)
"""Topics that RocketMQ or this store uses internally."""


def is_internal(topic: str) -> bool:
    return INTERNAL.fullmatch(topic) is not None


def wants(options: SourceOptions, topic: str) -> bool:
    """Return whether messages of a topic are wanted at all."""
    if options.topics is not None:
        return topic in options.topics
    if options.topics_pattern is not None and re.fullmatch(options.topics_pattern, topic) is None:
        return False
    return options.include_internal or not is_internal(topic)
