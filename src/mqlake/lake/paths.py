"""What files of the lake are called: by what is in them, so that the same work has the same names."""

from __future__ import annotations

import re

MANY = "(many)"
"""For files with messages of several topics; no topic is called so, because parentheses are escaped."""


def messages_path(identity: str, start: int, end: int, topic: str | None, date: str | None) -> str:
    """A file with the messages of a topic and a day, or of many, out of [start, end) of a log."""
    folder = f"messages/topic={MANY if topic is None else escape(topic)}/date={MANY if date is None else date}"
    return f"{folder}/{range_name(identity, start, end)}.parquet"


def table_path(table: str, identity: str, start: int, end: int) -> str:
    """The file of another table about [start, end) of a log."""
    return f"{table}/{range_name(identity, start, end)}.parquet"


def range_name(identity: str, start: int, end: int) -> str:
    return f"{identity[:12]}-{start:020d}-{end:020d}"


def escape(topic: str) -> str:
    """A topic as the name of a folder: letters, digits, _ and - stay, other bytes are %XX."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda found: b"%%%02X" % found[0][0], topic.encode()).decode()
