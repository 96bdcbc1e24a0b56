"""Select topics by name."""

from __future__ import annotations

import re

from mqlake.spark.options import SourceOptions
from mqlake.store.scan import INTERNAL, is_internal

__all__ = ["INTERNAL", "is_internal", "wants"]


def wants(options: SourceOptions, topic: str) -> bool:
    """Return whether messages of a topic are wanted at all."""
    if options.topics is not None:
        return topic in options.topics
    if options.topics_pattern is not None and re.fullmatch(options.topics_pattern, topic) is None:
        return False
    return options.include_internal or not is_internal(topic)
