"""File names in the lake. They follow from the content, so the same work gives the same names."""

from __future__ import annotations

import re

MANY = "(many)"
"""Stands for several topics or days. No topic folder has this name, because parentheses are escaped."""


def messages_path(identity: str, start: int, end: int, topic: str | None, date: str | None) -> str:
    """Return the path of a file with messages from [start, end) of a log. None means several topics or days."""
    folder = f"messages/topic={MANY if topic is None else escape(topic)}/date={MANY if date is None else date}"
    return f"{folder}/{range_name(identity, start, end)}.parquet"


def table_path(table: str, identity: str, start: int, end: int) -> str:
    """Return the path of another table's file for [start, end) of a log."""
    return f"{table}/{range_name(identity, start, end)}.parquet"


def range_name(identity: str, start: int, end: int) -> str:
    return f"{identity[:12]}-{start:020d}-{end:020d}"


def escape(topic: str) -> str:
    """Return a topic as a folder name: letters, digits, _ and - stay, other bytes become %XX."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda found: b"%%%02X" % found[0][0], topic.encode()).decode()
